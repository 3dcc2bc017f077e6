"""Two ranks of a real vLLM share one model without tied weights. The last test kills one of them."""

import asyncio
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from periplus import clock
from periplus.errors import WrongBase
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.engine import EngineDied, OnSwap
from rollout_worker.engines.vllm.worker_description import WorkerDescription
from rollout_worker.weights.engine_check import EngineChecker
from tests.support.engines.vllm.adapters import PROBE_SEED, SCALE, AdapterVersions
from tests.support.engines.vllm.running import NOTICED_S, RunningVllm, request, running_vllm, started
from tests.support.engines.vllm.small_model import VOCAB, SmallModel

pytestmark = [pytest.mark.vllm, pytest.mark.processes]

MEAN_NATS = 0.01
"""Difference of log-probabilities between bfloat16 and float32 that is rounding."""


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningVllm]:
    model = SmallModel(tied=False, num_versions=4)
    with running_vllm(tmp_path_factory.mktemp("model"), model, ranks=2) as running:
        running.run(running.engine.swap(model.whole(0), Policy(0, 0), OnSwap.KEEP_KV))
        yield running


def test_the_ranks_divide_the_heads_the_feed_forward_network_and_the_vocabulary(vllm: RunningVllm) -> None:
    described = [WorkerDescription.from_json(each).shards for each in vllm.call("periplus_describe")]
    first, second = ({shard.name: shard for shard in shards} for shards in described)
    layer = "model.layers.0"
    assert (first[f"{layer}.self_attn.k_proj.weight"].row_stop, second[f"{layer}.mlp.up_proj.weight"].row_start) == (
        32,
        48,
    )
    assert second[f"{layer}.mlp.down_proj.weight"].column_start == 48
    # 79 tokens are padded to 128: the second rank has 15 of them.
    assert (second["lm_head.weight"].row_start, second["lm_head.weight"].row_stop) == (64, VOCAB)
    assert first[f"{layer}.input_layernorm.weight"].num_elements == 64


def test_both_ranks_hold_their_parts_bit_for_bit_after_a_chain_of_deltas(vllm: RunningVllm) -> None:
    engine, model = vllm.engine, vllm.model
    assert vllm.run(engine.digest()) == state_digest(model.states[0])
    for version in (1, 2, 3):
        vllm.run(engine.swap(model.changed(version - 1, version), Policy(0, version), OnSwap.KEEP_KV))
        assert vllm.run(engine.digest()) == state_digest(model.states[version])
    ids = np.random.default_rng(1).integers(0, VOCAB, (4, 16))
    expected = np.array([model.logprobs(3, row) for row in ids.tolist()])
    assert np.abs(vllm.run(engine.logprobs(ids)) - expected).mean() < MEAN_NATS


def test_a_swap_during_generation_is_of_both_ranks(vllm: RunningVllm) -> None:
    engine, model = vllm.engine, vllm.model
    asked = request(0, max_new_tokens=100)

    async def work() -> tuple[int, ...]:
        await engine.swap(model.whole(0), Policy(0, 4), OnSwap.KEEP_KV)
        (task,) = await started(engine, [asked])
        await engine.swap(model.changed(0, 1), Policy(0, 5), OnSwap.REPREFILL)
        completion = await task
        prompt, num_old = len(asked.prompt_ids), completion.runs[0].num_tokens
        expected = model.logprobs(1, asked.prompt_ids + completion.token_ids)[prompt - 1 :][num_old:]
        assert np.abs(np.array(completion.logprobs[num_old:]) - expected).mean() < MEAN_NATS
        return tuple(run.policy.version for run in completion.runs)

    assert vllm.run(work()) == (4, 5)
    assert vllm.run(engine.digest()) == state_digest(model.states[1])


def test_adapters_are_merged_in_the_parts_of_both_ranks(vllm: RunningVllm) -> None:
    engine, adapters = AdapterEngine(vllm.engine, SCALE), AdapterVersions(vllm.model, num_versions=2)
    checker = EngineChecker(engine, PROBE_SEED)
    for version in (0, 1):
        change = adapters.changed(version) if version else adapters.whole(0)
        vllm.run(engine.swap(change, Policy(0, 5 + version), OnSwap.KEEP_KV))
        found = vllm.run(checker.check(adapters.signed(version)))
        assert found.is_sound, found.why


def test_weights_of_another_model_are_refused_before_any_rank_writes(vllm: RunningVllm) -> None:
    vllm.run(vllm.engine.swap(vllm.model.whole(2), Policy(0, 6), OnSwap.KEEP_KV))
    with pytest.raises(WrongBase):
        vllm.run(vllm.engine.swap(SmallModel(tied=True, num_versions=1).whole(0), Policy(0, 7), OnSwap.KEEP_KV))
    assert vllm.run(vllm.engine.digest()) == state_digest(vllm.model.states[2])


def test_a_killed_worker_is_noticed_at_once(vllm: RunningVllm) -> None:
    """The last test of this module: it leaves no engine."""
    first, second = (WorkerDescription.from_json(each).processes[0] for each in vllm.call("periplus_describe"))
    assert first != second

    async def work() -> float:
        tasks = await started(vllm.engine, [request(group, max_new_tokens=150) for group in range(3)], num_tokens=1)
        os.kill(second, signal.SIGKILL)
        killed_s = clock.monotonic_s()
        swap = asyncio.ensure_future(vllm.engine.swap(vllm.model.whole(0), Policy(0, 8), OnSwap.KEEP_KV))
        found = await asyncio.gather(*tasks, swap, return_exceptions=True)
        assert [type(each) for each in found] == [EngineDied] * 4, found
        return clock.monotonic_s() - killed_s

    assert vllm.run(work()) < NOTICED_S
