"""Publications of a real optimizer's steps, read by the readers' own code; and the export of what was published."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from periplus.codec.registry import files_decoder
from periplus.digest import payload_digest, state_digest
from periplus.policy import Policy
from periplus.publication import PublicationKind
from rollout_worker.weights import EngineWeights
from trainer import export, publish
from trainer.model import load_model, resolve_model_dir
from trainer.publish import Published

MAX_BYTES = 1 << 30


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny", tmp_path_factory.mktemp("models"), 0)


@pytest.fixture
def actor(model_dir: Path) -> Any:
    return load_model(model_dir)[0]


def first(actor: Any) -> Published:
    state = publish.bf16_state(actor)
    return Published(policy=Policy(0, 0), state=state, digest=state_digest(state))


def step(actor: Any, rate: float) -> None:
    optimizer = torch.optim.AdamW(actor.parameters(), lr=rate, weight_decay=0.0)
    tokens = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(0))
    actor(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def reader(actor: Any, published: Published) -> EngineWeights:
    weights = EngineWeights({name: torch.randn_like(p) for name, p in actor.named_parameters()})
    weights.apply(publish.anchor("j", published), MAX_BYTES)
    return weights


def test_the_delta_of_an_optimizer_step_brings_a_reader_to_the_published_digest(actor: Any) -> None:
    base = first(actor)
    weights = reader(actor, base)
    step(actor, 1e-5)
    published, delta = publish.next_version("j", base, Policy(0, 1), publish.bf16_state(actor))
    assert (delta.opening.kind, delta.opening.base) == (PublicationKind.DELTA, Policy(0, 0))
    assert len(delta.payload) < len(publish.anchor("j", published).payload) / 2
    assert weights.apply(delta, MAX_BYTES) == published.digest == delta.closing.state_digest
    assert weights.read() == published.state


def test_a_change_of_everything_falls_back_to_an_anchor_that_needs_no_base(actor: Any) -> None:
    base = first(actor)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.copy_(torch.randn_like(parameter))
    published, anchor = publish.next_version("j", base, Policy(0, 1), publish.bf16_state(actor))
    assert (anchor.opening.kind, anchor.opening.base) == (PublicationKind.ANCHOR, None)
    assert reader(actor, base).apply(anchor, MAX_BYTES) == published.digest


def test_a_step_below_bfloat16s_resolution_publishes_the_same_state_under_the_next_version(actor: Any) -> None:
    base = first(actor)
    weights = reader(actor, base)
    with torch.no_grad():
        next(actor.parameters()).view(-1)[0] *= 1 + 1e-6
    published, delta = publish.next_version("j", base, Policy(0, 1), publish.bf16_state(actor))
    assert published.digest == base.digest
    assert len(delta.payload) < 4096
    weights.apply(delta, MAX_BYTES)
    assert weights.policy == Policy(0, 1)


def test_a_published_state_does_not_change_when_training_goes_on(actor: Any) -> None:
    published = first(actor)
    step(actor, 1.0)
    assert state_digest(published.state) == published.digest


def test_tied_weights_are_published_once(actor: Any) -> None:
    assert "lm_head.weight" not in publish.bf16_state(actor)
    assert "model.embed_tokens.weight" in publish.bf16_state(actor)


def test_the_bundle_holds_what_a_worker_needs_and_no_weights(model_dir: Path, tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("{}")
    bundle = publish.bundle("j", Policy(0, 0), model_dir, data)
    content = files_decoder(bundle.opening.codec)(bundle.payload, max_content_bytes=bundle.opening.content_bytes)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= content.keys()
    assert not any(name.endswith(".safetensors") for name in content)
    assert b"{}" in content.values()
    assert publish.bundle_digest(bundle) == payload_digest(bundle.payload)
    assert publish.bundle("j", Policy(0, 0), model_dir, data).payload == bundle.payload, "one job, one digest"


def test_the_final_model_loads_with_transformers_and_is_what_was_published(
    actor: Any, model_dir: Path, tmp_path: Path
) -> None:
    step(actor, 1e-3)
    published, tokenizer = first(actor), load_model(model_dir)[1]
    export.final_model(actor, tokenizer, tmp_path / "final", published.digest)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "final", dtype="auto", local_files_only=True)
    assert exported.dtype is torch.bfloat16
    assert state_digest(publish.bf16_state(exported)) == published.digest
    assert next(actor.parameters()).dtype is torch.float32, "the trainer's own weights stay as they are"
    text = "State the final answer to the following arithmetic problem: 4 + 5 ="
    reloaded = AutoTokenizer.from_pretrained(tmp_path / "final", local_files_only=True)
    assert reloaded(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_a_model_that_differs_from_what_was_published_is_not_exported(
    actor: Any, model_dir: Path, tmp_path: Path
) -> None:
    published = first(actor)
    step(actor, 1e-2)
    with pytest.raises(AssertionError, match="published"):
        export.final_model(actor, load_model(model_dir)[1], tmp_path / "final", published.digest)
    assert not (tmp_path / "final").exists()
