"""Samples that are computed again with the weights that sampled them."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from periplus.values.low_rank import merged_state
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, SamplingParams, StopReason, Trajectory
from tests.support.tiny_job import tiny_job
from tests.support.trainer.small_models import PACKED, PADDED, random_model
from trainer.checks import sample_checks
from trainer.checks.doubted_workers import DoubtedWorkers
from trainer.checks.kept_versions import KeptVersions
from trainer.checks.rescoring import Rescorer
from trainer.checks.sample_checks import COST_SHARE, SampleChecks, draw_seed
from trainer.data.adapters import ADAPTER, AdapterSettings, adapted_layers, inject, round_base
from trainer.learning.batch import Sample, sample_of
from trainer.learning.forward.attention import use_packed_attention
from trainer.publishing.publish import bf16_state

VOCABULARY = 50


@pytest.fixture
def model() -> Any:
    return tiny_qwen3()


def tiny_qwen3() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            initializer_range=0.2,
            tie_word_embeddings=True,
        )
        return Qwen3ForCausalLM(config)


def rounded(model: Any) -> Any:
    """A plain model with the published weights."""
    plain = deepcopy(model)
    plain.config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return plain


@torch.no_grad()
def drawn(
    model: Any, draws: np.random.Generator, count: int, *, worker: str = "a", temperature: float = 1.0
) -> list[Trajectory]:
    """Samples of version 0 with 12 tokens each, drawn from the model one by one."""
    width = int(draws.integers(2, 7))
    ids, logprobs = draws.integers(0, VOCABULARY, (count, width)), []
    for _ in range(12):
        rows = torch.log_softmax(model(torch.from_numpy(ids)).logits[:, -1] / temperature, -1).numpy()
        sums = np.exp(rows.astype(np.float64)).cumsum(1)
        tokens = (sums <= draws.random((count, 1)) * sums[:, -1:]).sum(1)
        logprobs.append(rows[np.arange(count), tokens])
        ids = np.concatenate([ids, tokens[:, None]], 1)
    return [
        Trajectory(
            lease_id=0,
            group=index,
            sample=0,
            item=0,
            purpose=Purpose.TRAIN,
            prompt_ids=ids[index, :width].astype(np.int32),
            completion_ids=ids[index, width:].astype(np.int32),
            logprobs=np.array([each[index] for each in logprobs], np.float32),
            mask=np.ones(12, np.bool_),
            policies=(PolicyRun(Policy(0, 0), 12),),
            reward=0.0,
            stop_reason=StopReason.LENGTH,
            sampling=SamplingParams(temperature=temperature),
            worker_id=worker,
            generation_s=0.0,
        )
        for index in range(count)
    ]


def rescorer_of(model: Any, adapter_scale: float | None = None) -> Rescorer:
    return Rescorer(model.config, torch.device("cpu"), adapter_scale)


def moved(model: Any, size: float = 0.02) -> None:
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))


@torch.no_grad()
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_what_is_computed_again_is_what_a_plain_model_with_the_published_weights_gives(
    model: Any, is_packed: bool, temperature: float
) -> None:
    if is_packed:
        assert use_packed_attention(model)
    draws, plain, state = np.random.default_rng(0), rounded(model), bf16_state(model)
    trajectories = [*drawn(plain, draws, 3, temperature=temperature), *drawn(plain, draws, 2, temperature=temperature)]
    masters = [parameter.clone() for parameter in model.parameters()]
    moved(model)  # training has gone on

    now = [parameter.clone() for parameter in model.parameters()]
    found = rescorer_of(model).surprisals(state, [sample_of(t, None) for t in trajectories], temperature, torch.float32)

    expected = np.concatenate([each.logprobs for each in trajectories])
    np.testing.assert_allclose(found.logprobs_M.numpy(), expected, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), now, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(masters, now, strict=True))
    first = trajectories[0]
    row = torch.log_softmax(
        plain(torch.tensor(first.prompt_ids[None].astype(np.int64))).logits[0, -1].double() / temperature, -1
    )
    mean = float(-(row.exp() * row).sum())
    assert float(found.entropies_M[0]) == pytest.approx(mean, abs=1e-5)
    assert float(found.variances_M[0]) == pytest.approx(float((row.exp() * (row + mean) ** 2).sum()), abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", [*PACKED, *PADDED])
def test_each_architecture_is_computed_without_weights_of_its_own(kind: str) -> None:
    model = random_model((PACKED | PADDED)[kind])
    use_packed_attention(model)
    plain, state, draws = rounded(model), bf16_state(model), np.random.default_rng(0)
    ids = draws.integers(3, model.config.vocab_size, (2, 9))
    samples = [
        Sample(
            group=0,
            sample=number,
            prompt_ids=row[:4].astype(np.int32),
            completion_ids=row[4:].astype(np.int32),
            behaviour_logprobs=np.zeros(5, np.float32),
            mask=np.ones(5, np.bool_),
            policies=(PolicyRun(Policy(0, 0), 5),),
            reward=None,
            stop_reason=StopReason.LENGTH,
        )
        for number, row in enumerate(ids)
    ]

    found = rescorer_of(model).surprisals(state, samples, 1.0, torch.float32)

    rows = torch.log_softmax(plain(torch.from_numpy(ids)).logits[:, 3:-1], -1)
    expected = rows.gather(2, torch.from_numpy(ids[:, 4:, None]))[:, :, 0]
    np.testing.assert_allclose(found.logprobs_M.numpy(), expected.flatten().numpy(), atol=1e-5)


@torch.no_grad()
def test_adapters_are_merged_as_engines_merge_them(model: Any) -> None:
    settings = AdapterSettings(rank=4, alpha=8.0, target_modules=("q_proj", "down_proj"))
    round_base(model)
    inject(model, settings, seed=3)
    for layer in adapted_layers(model).values():
        layer.lora_B[ADAPTER].weight.normal_(0, 0.2)
    state = bf16_state(model)
    # What an engine computes: the plain model with the merged weights.
    plain, merged = tiny_qwen3(), merged_state(state, settings.scale)
    for name, parameter in plain.named_parameters():
        words = torch.from_numpy(merged[name].data.view(np.int16)).view(torch.bfloat16)
        parameter.copy_(words.reshape(parameter.shape).float())
    trajectories = drawn(plain, np.random.default_rng(0), 3)
    for layer in adapted_layers(model).values():
        layer.lora_B[ADAPTER].weight.normal_(0, 0.2)  # training has gone on

    rescorer = rescorer_of(model, settings.scale)
    found = rescorer.surprisals(state, [sample_of(each, None) for each in trajectories], 1.0, torch.float32)

    expected = np.concatenate([each.logprobs for each in trajectories])
    np.testing.assert_allclose(found.logprobs_M.numpy(), expected, atol=1e-5)


def checks_of(model: Any, versions: int = 1, bound: int = 2) -> SampleChecks:
    checks = SampleChecks(rescorer_of(model), DoubtedWorkers(print), bound=bound, now=lambda: 0.0)
    for version in range(versions):
        checks.published(Policy(0, version), bf16_state(model))
    return checks


def test_sound_samples_of_an_older_version_raise_no_alarm_and_those_of_other_weights_do(model: Any) -> None:
    draws, plain, checks = np.random.default_rng(1), rounded(model), checks_of(model)
    sound = drawn(plain, draws, 20)
    moved(model)
    checks.published(Policy(0, 1), bf16_state(model))

    assert checks.check(sound, 1.0) == []
    assert checks.num_tokens >= sample_checks.MIN_TOKENS
    as_newer = [replace(each, policies=(PolicyRun(Policy(0, 1), 12),)) for each in sound]
    (found,) = checks.check(as_newer, 1.0)
    assert (found.worker_id, found.first, found.last) == ("a", Policy(0, 0), Policy(0, 1))
    assert "(decoding)" in found.why or "(prefill)" in found.why
    # The worker is in doubt now: its samples are not looked at again until its engine was written anew.
    num_tokens = checks.num_tokens
    assert found.num_tokens == checks.num_tokens
    checks.doubted.found("a", found.why, found.num_tokens)
    assert checks.check(as_newer, 1.0) == []
    assert checks.num_tokens == num_tokens


def test_an_engine_that_rounds_its_logits_is_sound_also_where_the_policy_is_nearly_certain(model: Any) -> None:
    """Training adds up to large logits, which engines round to bfloat16: by more than all else in the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draws = np.random.default_rng(6)
    for _ in range(60):
        ids = torch.from_numpy(draws.integers(0, VOCABULARY, (16, 8)))
        loss: Any = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), torch.full((128,), 7))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert use_packed_attention(model)
    checks, plain = checks_of(model), rounded(model)
    plain.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits.bfloat16().float())

    for _ in range(20):
        assert checks.check(drawn(plain, draws, 12), 1.0) == []


def test_workers_take_turns_and_the_one_at_fault_is_named(model: Any) -> None:
    draws, plain, checks = np.random.default_rng(2), rounded(model), checks_of(model)
    wrong = deepcopy(plain)
    moved(wrong)
    samples = [*drawn(plain, draws, 12, worker="a"), *drawn(plain, draws, 12, worker="b")]
    samples += drawn(wrong, draws, 12, worker="c")

    found = [finding for _ in range(3) for finding in checks.check(samples, 1.0)]

    assert [finding.worker_id for finding in found] == ["c"]
    assert set(checks._tokens_of) == {"a", "b", "c"}


def test_only_tokens_of_the_first_version_that_the_policy_drew_are_checked(model: Any) -> None:
    draws, plain, checks = np.random.default_rng(3), rounded(model), checks_of(model)

    def spoiled(each: Trajectory) -> Trajectory:
        logprobs = each.logprobs.copy()
        logprobs[5:] -= 1.0
        logprobs[2] = 0.0
        mask = np.ones(12, np.bool_)
        mask[2] = False
        runs = (PolicyRun(Policy(0, 0), 5), PolicyRun(Policy(0, 1), 7, kept_kv=True))
        return replace(each, logprobs=logprobs, mask=mask, policies=runs)

    for _ in range(4):
        assert checks.check([spoiled(each) for each in drawn(plain, draws, 20)], 1.0) == []
    assert checks.num_tokens >= 4 * 80


@pytest.mark.parametrize(
    "change",
    [
        lambda each: replace(each, sampling=SamplingParams(temperature=1.0, top_k=5)),
        lambda each: replace(each, sampling=SamplingParams(temperature=1.0, top_p=0.9)),
        lambda each: replace(each, sampling=SamplingParams(temperature=0.0)),
        lambda each: replace(each, policies=(PolicyRun(Policy(0, 7), 12),)),
    ],
    ids=["top_k", "top_p", "greedy", "a version that is not kept"],
)
def test_samples_that_cannot_be_computed_again_are_passed_over(
    model: Any, change: Callable[[Trajectory], Trajectory]
) -> None:
    checks = checks_of(model)
    samples = [change(each) for each in drawn(rounded(model), np.random.default_rng(4), 1)]
    assert checks.check(samples, 1.0) == []
    assert checks.num_tokens == 0
    assert checks.check([], 1.0) == []


def test_where_nothing_can_be_computed_again_the_checks_say_why(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = drawn(rounded(model), np.random.default_rng(7), 1)
    monkeypatch.setattr(sample_checks, "memory_bytes", lambda: 8000)
    checks = checks_of(model)
    assert checks.check(samples, 1.0) == []
    assert checks.obstacle == "a version has 44.6 kB, and an eighth of this machine's memory, 1 kB, is for versions"
    monkeypatch.undo()
    checks = checks_of(model)
    # An accelerator of which another process holds nearly all.
    monkeypatch.setattr(Rescorer, "missing_bytes", 3 << 30)
    assert checks.check(samples, 1.0) == []
    assert checks.obstacle == "the weights in float32 need 3.22 GB more of the device's memory"
    monkeypatch.undo()
    assert checks.check(samples, 1.0) == []
    assert (checks.obstacle, checks.num_tokens) == ("", 12)


@pytest.mark.parametrize(
    ("name", "engines", "seed"),
    [("torch", None, 5), ("vllm", None, None), ("torch", ["", "torch"], 5), ("torch", ["", "torch", "vllm"], None)],
)
def test_draws_are_replayed_where_all_engines_of_the_plan_draw_by_keys(
    tmp_path: Path, name: str, engines: list[str] | None, seed: int | None
) -> None:
    plan = "" if engines is None else json.dumps({"assignments": [{"engine": each} for each in engines]})
    assert draw_seed(tiny_job(tmp_path, seed=5, engine={"name": name}), plan) == seed


def test_checks_stop_while_they_have_taken_their_share_of_the_time(model: Any) -> None:
    times = iter(range(100))
    checks = SampleChecks(rescorer_of(model), DoubtedWorkers(print), bound=1, now=lambda: float(next(times)))
    checks.published(Policy(0, 0), bf16_state(model))
    samples = drawn(rounded(model), np.random.default_rng(5), 1)

    checks.check(samples, 1.0)
    assert checks.spent_s == 1.0
    tokens = checks.num_tokens
    checks.check(samples, 0.9 / COST_SHARE)
    assert checks.num_tokens == tokens
    checks.check(samples, 1.0 / COST_SHARE)
    assert checks.num_tokens == 2 * tokens


@pytest.mark.parametrize(("max_states", "kept"), [(10, [3, 4, 5]), (2, [4, 5]), (0, [])])
def test_versions_are_kept_within_their_number_and_bytes(model: Any, max_states: int, kept: Sequence[int]) -> None:
    state = bf16_state(model)
    versions = KeptVersions(3, max_states * sum(tensor.data.size for tensor in state.values()))
    for version in range(6):
        versions.add(Policy(0, version), state)
    assert [version for version in range(6) if versions.of(Policy(0, version)) is not None] == kept
    assert [each.version for each in versions.before(Policy(0, 5))] == [each for each in kept if each < 5]
