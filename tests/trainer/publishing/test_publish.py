"""Publications of a real optimizer's steps, decoded as readers do; and the export of what was published."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from periplus.codec.frame import CodecId
from periplus.codec.registry import files_decoder
from periplus.codec.weights.decoder import decode
from periplus.publication import Assembler, Publication, PublicationKind
from periplus.values.digest import payload_digest, state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from tests.support.publication.signed import payload_parts
from tests.support.publication.trainer import Author, published_by
from trainer.data.model import load_model, resolve_model_dir
from trainer.publishing import publish
from trainer.publishing.publish import Published

MAX_BYTES = 1 << 30
ROOT = Path(__file__).parents[3]

ENCODED_LATER = """
import numpy as np
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor
from tests.support.compiled import compiled
from trainer.publishing import publish

publish.compile_codec()
ready = compiled()
for num_elements in (500, 5_000, 1 << 21):
    for density in (1e-3, 0.02, 0.4):
        rng = np.random.default_rng(0)
        old = (rng.standard_normal(num_elements).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        new = old ^ (rng.random(num_elements) < density)
        base, state = ({"w": Tensor("BF16", (num_elements,), bits.astype(np.uint16))} for bits in (old, new))
        publish.delta_pays(base, state)
        encode(base, state)
assert ready
print(sorted(compiled() - ready))
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny", tmp_path_factory.mktemp("models"), 0)


@pytest.fixture
def actor(model_dir: Path) -> Any:
    return load_model(model_dir)[0]


def first(actor: Any) -> Published:
    return published_by(actor, Policy(0, 0))


def step(actor: Any, rate: float) -> None:
    optimizer = torch.optim.AdamW(actor.parameters(), lr=rate, weight_decay=0.0)
    tokens = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(0))
    actor(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def held_after(base: Published, publication: Publication) -> WeightState:
    held = None if publication.opening.base is None else base.state
    return decode(held, payload_parts(publication), max_content_bytes=publication.opening.content_bytes)


def test_the_delta_of_an_optimizer_step_brings_a_reader_to_the_published_digest(actor: Any) -> None:
    author, base = Author(), first(actor)
    step(actor, 1e-5)
    published = published_by(actor, Policy(0, 1))
    delta = author.delta(base, published)
    assert (delta.opening.kind, delta.opening.base) == (PublicationKind.DELTA, Policy(0, 0))
    assert (delta.opening.base_digest, delta.opening.codec) == (base.digest, CodecId.WEIGHTS)
    assert delta.payload_bytes < author.anchor(published).payload_bytes / 2
    assert held_after(base, delta) == published.state
    assert delta.closing.state_digest == published.digest


def test_readers_that_trust_the_authority_take_what_an_author_signs(actor: Any) -> None:
    author, base = Author(), first(actor)
    step(actor, 1e-4)
    published = published_by(actor, Policy(0, 1), probe=(-1.0, -2.5))
    for made in (author.anchor(base), author.delta(base, published)):
        assembler = Assembler(author.trust(), max_content_bytes=MAX_BYTES)
        assert [assembler.feed(record) for record in made.records()][-1] == made


def test_a_delta_pays_after_an_optimizer_step_and_not_where_everything_is_new(actor: Any) -> None:
    base = first(actor)
    step(actor, 1e-2)
    assert publish.delta_pays(base.state, publish.bf16_state(actor)), "most elements moved a little"
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.copy_(torch.randn_like(parameter))
    state = publish.bf16_state(actor)
    assert not publish.delta_pays(base.state, state)
    assert not publish.delta_pays({name: base.state[name] for name in sorted(base.state)[1:]}, state)


def test_the_sample_that_decides_is_small_and_sees_all_of_a_large_state() -> None:
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 1 << 16, 16 << 20, dtype=np.uint16)
    large = {"w": Tensor("BF16", (bits.size,), bits)}
    stride = content_bytes(large) // publish.SAMPLE_BYTES
    assert publish._sample(large["w"], stride).data.size == publish.SAMPLE_BYTES
    half = bits.copy()
    half[: bits.size // 2] ^= generator.integers(0, 1 << 16, bits.size // 2, dtype=np.uint16)
    assert publish.delta_pays(large, {"w": Tensor("BF16", (bits.size,), half)})


def test_a_step_below_bfloat16s_resolution_publishes_the_same_state_under_the_next_version(actor: Any) -> None:
    base = first(actor)
    with torch.no_grad():
        next(actor.parameters()).view(-1)[0] *= 1 + 1e-6
    published = published_by(actor, Policy(0, 1))
    delta = Author().delta(base, published)
    assert published.digest == base.digest
    assert delta.payload_bytes < 4096
    assert held_after(base, delta) == base.state


def test_a_published_state_does_not_change_when_training_goes_on(actor: Any) -> None:
    published = first(actor)
    step(actor, 1.0)
    assert state_digest(published.state) == published.digest


def test_tied_weights_are_published_once(actor: Any) -> None:
    assert "lm_head.weight" not in publish.bf16_state(actor)
    assert "model.embed_tokens.weight" in publish.bf16_state(actor)


def test_the_bundle_holds_what_a_worker_needs_and_no_weights(model_dir: Path) -> None:
    bundle = publish.bundle(model_dir, b"{}")
    signed = Author().bundle(bundle)
    payload = b"".join(payload_parts(signed))
    content = files_decoder(signed.opening.codec)(payload, max_content_bytes=signed.opening.content_bytes)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= content.keys()
    assert not any(name.endswith(".safetensors") for name in content)
    assert b"{}" in content.values()
    assert bundle.digest == payload_digest(payload)
    assert publish.bundle(model_dir, b"{}").payload == payload, "one job, one digest"


def test_nothing_is_left_to_compile_for_a_real_delta() -> None:
    ran = subprocess.run([sys.executable, "-c", ENCODED_LATER], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.strip() == "[]", ran.stderr
