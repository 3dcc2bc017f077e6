"""Adapters through the whole trainer: trained, published, probed, checkpointed and exported, merged as readers do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from periplus.audit.run_reader import _checkpoint
from periplus.codec.weights.encoder import encode
from periplus.errors import ConfigError, TrainingError
from periplus.values.digest import state_digest
from periplus.values.low_rank import is_adapter, merged_state
from periplus.values.policy import Lineage, Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import WeightState, content_bytes
from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER
from tests.support.trainer.sharded import small_qwen
from trainer.checkpointing import checkpoint, restoration
from trainer.checkpointing.export import final_model
from trainer.checkpointing.manifest import ADAPTERS, Content
from trainer.data.adapters import AdapterSettings, adapted_layers, inject, round_base
from trainer.learning.learner import Learner
from trainer.publishing.publish import bf16_state
from trainer.publishing.snapshot import DeviceWeights, HostWeights
from trainer.recipe import adapter_settings, build_learner

LORA = {"rank": 3, "alpha": 6.0, "target_modules": ["q_proj", "down_proj"]}
SCALE = 2.0
VOCABULARY = 21


def built(**changes: Any) -> tuple[Any, Learner]:
    model = small_qwen()
    job = make_job(model={"lora": LORA}, optimizer={"lr": 5e-2}, **changes)
    return model, build_learner(job, model)


def trained(num_steps: int = 2, **changes: Any) -> tuple[Any, Learner]:
    """Return a model whose adapters a job has trained for some steps, and its learner."""
    model, learner = built(**changes)
    for step in range(num_steps):
        report = learner.step(sampled(model, step), consumer=CONSUMER, learning_rate=5e-2)
        assert report is not None
    return model, learner


def adapters(state: WeightState) -> dict[str, Any]:
    return {name: tensor for name, tensor in state.items() if is_adapter(name)}


def plain_model(state: WeightState) -> Any:
    """Return an ordinary model with the merged weights, as an engine has them."""
    model = small_qwen()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            words = merged_state(state, SCALE)[name].data.view(np.int16)
            parameter.copy_(torch.from_numpy(words.copy()).view(torch.bfloat16).view(parameter.shape))
    return model


# ---- training and publishing ----------------------------------------------------------------------------------------


def test_adapters_begin_as_nothing_and_the_same_for_a_seed() -> None:
    model, _ = built()
    plain = small_qwen()
    round_base(plain)
    ids = torch.from_numpy(probe_prompts(0, VOCABULARY))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
    assert bf16_state(model) == bf16_state(built()[0])
    assert bf16_state(model) != bf16_state(built(seed=1)[0])
    assert len(adapted_layers(model)) == 4


def test_only_adapters_are_trained_and_only_they_change_in_what_is_published() -> None:
    model, learner = built()
    weights = HostWeights(model)
    base = weights.first()
    plain = small_qwen()
    round_base(plain)
    assert {name: base[name] for name in bf16_state(plain)} == bf16_state(plain)
    for step in range(2):  # B is zero at first, so that the first step changes B alone
        report = learner.step(sampled(model, step), consumer=CONSUMER, learning_rate=5e-2)
        assert report is not None
        assert report.grad_norm > 0
    taken = weights.take()(base)
    changed = {name for name in base if base[name] != taken.state[name]}
    assert changed == set(adapters(base))
    assert len(changed) == 8
    assert taken.state == bf16_state(model)
    # Weights that are not trained are not rounded again, but shared.
    assert all(taken.state[name] is base[name] for name in base.keys() - changed)
    delta_bytes = sum(map(len, encode(base, taken.state)))
    assert delta_bytes < content_bytes(adapters(taken.state)) + 1024 < content_bytes(taken.state) / 3


def test_a_device_takes_the_same_versions() -> None:
    model, learner = built()
    weights = DeviceWeights(model)
    base = weights.first()
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=5e-2)
    assert weights.take()(base).state == bf16_state(model)


@pytest.mark.parametrize("algorithm", [{"name": "ppo", "kl_coefficient": 0.1}, {"name": "grpo", "kl_coefficient": 0.1}])
def test_critic_and_reference_are_whole_models_without_adapters(algorithm: dict[str, Any]) -> None:
    _, learner = trained(1, algorithm=algorithm)
    state = learner.state_dict()
    for name in {"critic", "reference"} & state.keys():
        assert not any("lora" in key for key in state[name])
    assert len(state["optimizer"]["param_groups"][0]["params"]) == 8


def test_the_probe_is_of_the_weights_that_engines_merge_and_leaves_the_adapters_on() -> None:
    model, learner = trained()
    ids = probe_prompts(0, VOCABULARY)
    before = bf16_state(model)
    found = HostWeights(model).probe(ids)
    with torch.no_grad():
        logits = plain_model(before)(input_ids=torch.from_numpy(ids)).logits
    expected = torch.log_softmax(logits[:, :-1], -1).gather(-1, torch.from_numpy(ids)[:, 1:, None]).squeeze(-1)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    without = {name: tensor for name, tensor in before.items() if not is_adapter(name)}
    with torch.no_grad():
        base_logits = plain_model({**before, **zeros(before)})(input_ids=torch.from_numpy(ids)).logits
    assert float((base_logits - logits).abs().max()) > 1e-2, "the adapters matter"
    assert without.keys() == dict(small_qwen().named_parameters()).keys()
    assert bf16_state(model) == before
    report = learner.step(sampled(model, 5), consumer=CONSUMER, learning_rate=5e-2)
    assert report is not None
    assert report.grad_norm > 0, "the model can be trained after a probe"


def zeros(state: WeightState) -> dict[str, Any]:
    return {
        name: type(tensor)(tensor.dtype, tensor.shape, np.zeros_like(tensor.data))
        for name, tensor in adapters(state).items()
    }


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def content() -> Content:
    return Content(
        job_id="j",
        policy=Policy(0, 1),
        lineage=Lineage(0),
        progress={},
        audit_line=0,
        audit_prev=bytes(16),
        next_group=0,
        open_groups=(),
        batches_root=bytes(16),
        parent=None,
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Learner, Path]:
    model, learner = trained()
    return model, learner, checkpoint.save(tmp_path, content(), model, learner, {"config.json": b"{}"}).directory


def test_a_checkpoint_holds_adapters_alone_and_the_next_step_is_the_same(saved: tuple[Any, Learner, Path]) -> None:
    model, learner, directory = saved
    whole = small_qwen()
    assert (directory / ADAPTERS).stat().st_size < sum(4 * parameter.numel() for parameter in whole.parameters()) / 2
    other, restored = built(seed=4)
    assert bf16_state(other) != bf16_state(model)
    restoration.restore(checkpoint.newest(directory.parent), other, restored)
    assert bf16_state(other) == bf16_state(model)
    for each, of in ((learner, model), (restored, other)):
        each.step(sampled(of, 9), consumer=CONSUMER, learning_rate=5e-2)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_audit_recomputes_the_published_digest_from_adapters_and_digests_of_the_base(
    saved: tuple[Any, Learner, Path],
) -> None:
    model, _, directory = saved
    audited = _checkpoint(directory, lambda *_: None)
    assert audited is not None
    assert audited.manifest is not None
    assert audited.rounded == audited.manifest.weights == state_digest(bf16_state(model))
    # A base tensor of another digest gives another state.
    data = json.loads((directory / "manifest.json").read_text())
    data["frozen"]["model.norm.weight"][2] = bytes(32).hex()
    (directory / "manifest.json").write_text(json.dumps(data))
    audited = _checkpoint(directory, lambda *_: None)
    assert audited is not None
    assert audited.rounded != state_digest(bf16_state(model))


def test_a_checkpoint_of_another_base_or_other_adapters_is_refused(saved: tuple[Any, Learner, Path]) -> None:
    manifest = checkpoint.newest(saved[2].parent)
    model, learner = built()
    with torch.no_grad():
        model.model.norm.weight[3] += 1.0
    with pytest.raises(ConfigError, match=r"other weights under its adapters: \['model.norm.weight'\]"):
        restoration.restore(manifest, model, learner)
    whole = small_qwen()
    with pytest.raises(ConfigError, match="other weights under its adapters"):
        restoration.restore(manifest, whole, build_learner(make_job(), whole))
    other = small_qwen()
    fewer = make_job(model={"lora": {**LORA, "target_modules": ["q_proj"]}})
    with pytest.raises(ConfigError, match="another model"):
        restoration.restore(manifest, other, build_learner(fewer, other))
    rank = small_qwen()
    with pytest.raises(ConfigError, match="another model"):
        restoration.restore(manifest, rank, build_learner(make_job(model={"lora": {**LORA, "rank": 2}}), rank))


# ---- export ---------------------------------------------------------------------------------------------------------


def test_the_exported_model_has_the_merged_weights_and_loads_as_any_model(tmp_path: Path) -> None:
    model, _ = trained()
    state = bf16_state(model)
    final_model(model, {}, tmp_path / "final", state_digest(state))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", local_files_only=True, dtype="auto")
    assert bf16_state(loaded) == merged_state(state, SCALE)
    with pytest.raises(TrainingError, match="published last"):
        final_model(model, {}, tmp_path / "final", state_digest(merged_state(state, SCALE)))


# ---- settings -------------------------------------------------------------------------------------------------------


def test_a_job_without_the_section_has_no_adapters() -> None:
    assert adapter_settings(make_job()) is None
    assert adapter_settings(make_job(model={"lora": LORA})) == AdapterSettings(
        rank=3, alpha=6.0, target_modules=("q_proj", "down_proj")
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("query", "no layer of the model is named so"),
        ("embed_tokens", "it is a Embedding"),
        ("norm", "it is a Qwen3RMSNorm"),
        ("lm_head", "shares its weight"),
    ],
)
def test_layers_that_cannot_have_adapters_are_refused_by_name(target: str, message: str) -> None:
    settings = AdapterSettings(rank=1, alpha=1.0, target_modules=("q_proj", target))
    with pytest.raises(ConfigError, match=f"'{target}'.*{message}"):
        inject(small_qwen(), settings, 0)


def test_a_warm_up_would_change_the_base_and_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora and train\.warmup are both given"):
        make_job(model={"lora": LORA}, train={"warmup": {"max_steps": 3}})
