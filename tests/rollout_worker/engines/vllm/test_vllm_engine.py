"""The engine with a real vLLM, of a model with tied weights. The last test kills it."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from periplus import clock
from periplus.errors import ConfigError, StateError, WrongBase
from periplus.values.digest import state_digest
from periplus.values.low_rank import merged_state
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.engine import (
    Completion,
    CompletionEnd,
    Continuations,
    EngineDied,
    OnSwap,
    RequestFailed,
    SampleRequest,
)
from rollout_worker.engines.vllm import async_llm_backend
from rollout_worker.engines.vllm.async_llm_backend import PROBE_SEQUENCES, AsyncLlmBackend, VllmSettings
from rollout_worker.engines.vllm.backend import Sampling, TokenChunk
from rollout_worker.weights.engine_check import EngineChecker
from rollout_worker.weights.host_copy import Signed
from tests.support.engines.vllm.adapters import ADAPTED, PROBE_SEED, SCALE, AdapterVersions
from tests.support.engines.vllm.running import (
    MAX_NEW_TOKENS,
    NOTICED_S,
    NUM_SLOTS,
    RunningVllm,
    engine_of,
    request,
    started,
)
from tests.support.engines.vllm.small_model import EOS, VOCAB, SmallModel

pytestmark = [pytest.mark.vllm, pytest.mark.processes]

MEAN_NATS, MAX_NATS = 0.01, 0.06
"""Differences of log-probabilities between vLLM in bfloat16 and float32 that are rounding. Measured: mean 0.0045."""

LONG = 200
"""Tokens of a completion that is under way for long enough to change weights."""


@pytest.fixture
def at_zero(vllm: RunningVllm) -> RunningVllm:
    """The engine at version 0, with nothing under way."""
    vllm.run(vllm.engine.drain())
    vllm.run(vllm.engine.swap(vllm.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV))
    return vllm


@pytest.fixture(scope="module")
def adapters(vllm: RunningVllm) -> AdapterVersions:
    return AdapterVersions(vllm.model, num_versions=3)


def long_requests(number: int = 4) -> list[SampleRequest]:
    return [request(group, max_new_tokens=LONG) for group in range(number)]


def compare(found: Any, expected: Any) -> None:
    difference = np.abs(np.asarray(found) - np.asarray(expected))
    assert difference.mean() < MEAN_NATS
    assert difference.max() < MAX_NATS


def test_the_loop_goes_on_while_vllm_starts(vllm: RunningVllm) -> None:
    """Starting takes 20 seconds, in which a worker must still answer."""
    assert vllm.longest_stall_s < vllm.start_s / 4


def test_a_cancelled_start_ends_the_vllm_that_has_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, started_llm = threading.Event(), Mock()

    def start(settings: VllmSettings) -> Mock:
        may_start.wait()
        return started_llm

    monkeypatch.setattr(async_llm_backend, "_llm", start)
    settings = VllmSettings(folder=tmp_path, dtype="bfloat16", num_slots=1, max_tokens=8)

    async def work() -> None:
        starting = asyncio.ensure_future(AsyncLlmBackend.start(settings))
        for _ in range(2):
            await asyncio.sleep(0.05)
            starting.cancel()
        await asyncio.sleep(0.05)
        assert not starting.done(), "it owns what it has begun"
        may_start.set()
        await asyncio.wait((starting,))
        assert starting.cancelled()

    asyncio.run(work())
    started_llm.shutdown.assert_called_once_with()


@pytest.mark.parametrize(("num_slots", "expected"), [(5, 5), (None, 128 - PROBE_SEQUENCES)])
def test_without_a_number_of_slots_vllm_serves_as_many_as_its_server_would(
    num_slots: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_engine_args(args: AsyncEngineArgs, *, usage_context: UsageContext) -> Mock:
        return Mock(vllm_config=args.create_engine_config(usage_context))

    monkeypatch.setattr(AsyncLLM, "from_engine_args", from_engine_args)
    folder = SmallModel(tied=True, num_versions=1).save_config(tmp_path)
    settings = VllmSettings(folder=folder, dtype="bfloat16", num_slots=num_slots, max_tokens=8, cache_bytes=1 << 27)
    assert AsyncLlmBackend(async_llm_backend._llm(settings), Mock(), settings).num_slots == expected


def test_the_engine_holds_the_weights_bit_for_bit_after_a_chain_of_deltas(at_zero: RunningVllm) -> None:
    engine, model = at_zero.engine, at_zero.model
    assert at_zero.run(engine.digest()) == state_digest(model.states[0])
    for version in (1, 2, 3):
        at_zero.run(engine.swap(model.changed(version - 1, version), Policy(0, version), OnSwap.KEEP_KV))
        assert at_zero.run(engine.digest()) == state_digest(model.states[version])


def test_several_deltas_are_written_at_once(at_zero: RunningVllm) -> None:
    at_zero.run(at_zero.engine.swap(at_zero.model.changed(0, 1, 2, 3, 4), Policy(0, 4), OnSwap.KEEP_KV))
    assert at_zero.run(at_zero.engine.digest()) == state_digest(at_zero.model.states[4])


def test_logprobs_of_given_tokens_are_those_of_the_newest_weights(at_zero: RunningVllm) -> None:
    engine, model = at_zero.engine, at_zero.model
    ids = np.random.default_rng(1).integers(0, VOCAB, (4, 16))
    for version in (0, 1):
        if version:
            at_zero.run(engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV))
        found = at_zero.run(engine.logprobs(ids))
        assert found.shape == (4, 15)
        compare(found, [model.logprobs(version, row) for row in ids.tolist()])
    other = np.array([model.logprobs(0, row) for row in ids.tolist()])
    assert np.abs(found - other).mean() > 0.05, "two versions of this model can be told apart"


def test_continuations_are_decoded_while_all_slots_are_taken(at_zero: RunningVllm) -> None:
    async def act() -> Continuations:
        busy = [asyncio.create_task(at_zero.engine.submit(request(number, max_new_tokens=LONG))) for number in range(9)]
        found = await at_zero.engine.continuations(np.arange(24).reshape(3, 8), 12)
        assert not any(task.done() for task in busy)
        await at_zero.engine.abort([request(number).request_id for number in range(9)])
        await asyncio.gather(*busy)
        assert found is not None
        return found

    found = at_zero.run(act())
    assert found.token_ids.shape == found.logprobs.shape == (3, 12)
    ids = np.concatenate([np.arange(24).reshape(3, 8), found.token_ids], axis=1).tolist()
    compare(found.logprobs, [at_zero.model.logprobs(0, row)[7:] for row in ids])


@pytest.mark.parametrize(("temperature", "greedy"), [(1.0, False), (0.7, False), (1.0, True)])
def test_logprobs_of_samples_are_those_of_the_distribution_that_they_were_drawn_from(
    at_zero: RunningVllm, temperature: float, greedy: bool
) -> None:
    asked = [request(group, temperature=temperature, greedy=greedy, max_new_tokens=40) for group in range(6)]
    engine = engine_of(at_zero.backend, end_ids=(EOS,))

    async def work() -> list[Completion]:
        await engine.swap(at_zero.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV)
        return await asyncio.gather(*map(engine.submit, asked))

    ends = set()
    # One completion may have too few tokens for a mean. Rounding errors grow as the temperature divides the logits.
    found: list[float] = []
    expected: list[float] = []
    for each, completion in zip(asked, at_zero.run(work()), strict=True):
        ends.add(completion.end)
        ids = each.prompt_ids + completion.token_ids
        found.extend(temperature * logprob for logprob in completion.logprobs)
        expected.extend(temperature * at_zero.model.logprobs(0, ids, temperature)[len(each.prompt_ids) - 1 :])
        assert completion.runs == (PolicyRun(Policy(0, 0), len(completion.token_ids)),)
        at_end = completion.token_ids[-1] == EOS
        assert completion.end is (CompletionEnd.EOS if at_end else CompletionEnd.LENGTH)
        assert at_end or len(completion.token_ids) == each.max_new_tokens
        assert EOS not in completion.token_ids[:-1]
    compare(found, expected)
    assert greedy or ends == {CompletionEnd.EOS, CompletionEnd.LENGTH}


def test_more_requests_than_slots_all_end(at_zero: RunningVllm) -> None:
    engine = at_zero.engine

    async def work() -> list[Completion]:
        tasks = [
            asyncio.ensure_future(engine.submit(request(group, sample))) for group in range(6) for sample in (0, 1, 2)
        ]
        await asyncio.sleep(0)
        assert engine.room == 0
        await engine.drain()
        assert engine.room == NUM_SLOTS
        assert all(task.done() for task in tasks)
        return [task.result() for task in tasks]

    found = at_zero.run(work())
    assert len({each.token_ids for each in found}) > 15, "samples of one prompt differ"


def test_a_sample_is_seeded_by_seed_version_group_and_sample(at_zero: RunningVllm) -> None:
    """Observed, not promised: alone, so that a batch cannot change its bits."""
    first, again, other = (
        at_zero.run(at_zero.engine.submit(request(3, seed=seed, temperature=2.0))) for seed in (5, 5, 6)
    )
    assert first.token_ids == again.token_ids != other.token_ids


@pytest.mark.parametrize("on_swap", [OnSwap.KEEP_KV, OnSwap.REPREFILL])
def test_weights_change_while_completions_are_under_way(at_zero: RunningVllm, on_swap: OnSwap) -> None:
    engine, model, asked = at_zero.engine, at_zero.model, long_requests()

    async def work() -> tuple[list[Completion], Completion]:
        tasks = await started(engine, asked)
        report = await engine.swap(model.changed(0, 1), Policy(0, 1), on_swap)
        assert 0 < report.write_s <= report.pause_s
        # The same prompt again: it must not find the keys of the old weights.
        late = await engine.submit(replace(asked[0], request_id="late", max_new_tokens=1))
        return await asyncio.gather(*tasks), late

    found, late = at_zero.run(work())
    kept = on_swap is OnSwap.KEEP_KV
    for each, completion in zip(asked, found, strict=True):
        assert len(completion.token_ids) == LONG
        old, new = completion.runs
        assert (old.policy, old.kept_kv) == (Policy(0, 0), False)
        assert (new.policy, new.kept_kv) == (Policy(0, 1), kept)
        ids, prompt = each.prompt_ids + completion.token_ids, len(each.prompt_ids)
        compare(completion.logprobs[: old.num_tokens], model.logprobs(0, ids)[prompt - 1 :][: old.num_tokens])
        # The old weights compute the keys of all tokens before the last one that they sampled.
        before = prompt + old.num_tokens - 1
        of_new = model.mixed_logprobs(((0, before), (1, len(ids) - before)), ids) if kept else model.logprobs(1, ids)
        compare(completion.logprobs[old.num_tokens :], of_new[prompt - 1 :][old.num_tokens :])
    assert late.runs == (PolicyRun(Policy(0, 1), 1),)
    compare(late.logprobs, model.logprobs(1, asked[0].prompt_ids + late.token_ids)[-1:])
    assert at_zero.run(engine.digest()) == state_digest(model.states[1])


def test_a_suspended_engine_generates_nothing_and_goes_on_where_it_was(at_zero: RunningVllm) -> None:
    engine, asked = at_zero.engine, long_requests()

    def num_tokens_of_requests() -> dict[str, int]:
        return {state.request.request_id: len(state.token_ids) for state in engine._running}

    async def work() -> tuple[list[Completion], Completion]:
        tasks = await started(engine, asked)
        await engine.suspend()
        await asyncio.sleep(0.1)  # tokens that were on their way have come
        before = num_tokens_of_requests()
        late = asyncio.create_task(engine.submit(replace(asked[0], request_id="late", max_new_tokens=1)))
        await engine.abort([asked[1].request_id])
        await asyncio.sleep(0.5)
        after, are_done = num_tokens_of_requests(), (late.done(), tasks[0].done())
        await engine.resume()  # before anything is asserted: other tests use this engine
        assert after == {name: before[name] for name in after}
        assert are_done == (False, False)
        return await asyncio.gather(*tasks), await late

    found, late = at_zero.run(work())
    assert [each.end for each in found] == [CompletionEnd.LENGTH, CompletionEnd.ABORTED, *[CompletionEnd.LENGTH] * 2]
    for each, completion in zip(asked, found, strict=True):
        expected = at_zero.model.logprobs(0, each.prompt_ids + completion.token_ids)[len(each.prompt_ids) - 1 :]
        compare(completion.logprobs, expected)
    assert late.runs == (PolicyRun(Policy(0, 0), 1),)


def test_completions_of_more_tokens_than_a_batch_holds_are_computed_again(at_zero: RunningVllm) -> None:
    """8 requests of over 300 tokens are more than the 2,048 tokens that vLLM takes into a batch on a CPU."""
    engine, model = at_zero.engine, at_zero.model
    asked = [request(group, max_new_tokens=MAX_NEW_TOKENS) for group in range(NUM_SLOTS)]

    async def work() -> list[Completion]:
        tasks = await started(engine, asked, num_tokens=300)
        await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.REPREFILL)
        return await asyncio.gather(*tasks)

    for each, completion in zip(asked, at_zero.run(work()), strict=True):
        old, new = completion.runs
        assert old.num_tokens + new.num_tokens == MAX_NEW_TOKENS
        of_new = model.logprobs(1, each.prompt_ids + completion.token_ids)[len(each.prompt_ids) - 1 :]
        compare(completion.logprobs[old.num_tokens :], of_new[old.num_tokens :])


def test_draining_lets_completions_end_under_the_old_weights(at_zero: RunningVllm) -> None:
    engine = at_zero.engine

    async def work() -> tuple[list[Completion], Completion]:
        tasks = await started(engine, long_requests())
        swap = asyncio.ensure_future(engine.swap(at_zero.model.changed(0, 1), Policy(0, 1), OnSwap.DRAIN))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(engine.submit(request(9)))
        report = await swap
        assert all(task.done() for task in tasks)
        assert report.pause_s > report.write_s
        return await asyncio.gather(*tasks), await late

    found, late = at_zero.run(work())
    assert {run.policy for each in found for run in each.runs} == {Policy(0, 0)}
    assert {run.policy for run in late.runs} == {Policy(0, 1)}


def test_a_request_without_a_token_begins_again_with_the_new_weights(at_zero: RunningVllm) -> None:
    engine, model = at_zero.engine, at_zero.model

    async def work() -> tuple[list[Completion], int]:
        # vLLM has taken the requests, and has not come to their prompts yet.
        await at_zero.backend.pause(clear_cache=False)
        tasks = [asyncio.ensure_future(engine.submit(request(group))) for group in range(4)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert at_zero.backend._llm.get_num_unfinished_requests() == len(tasks)
        states = list(engine._open.values())
        await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)
        found = await asyncio.gather(*tasks)
        return found, sum(state.num_legs for state in states)

    found, num_legs = at_zero.run(work())
    assert num_legs == 2 * len(found), "they were under way at the swap, and began again"
    for group, completion in enumerate(found):
        assert completion.runs == (PolicyRun(Policy(0, 1), len(completion.token_ids)),)
        prompt_ids = request(group).prompt_ids
        expected = model.logprobs(1, prompt_ids + completion.token_ids)[len(prompt_ids) - 1 :]
        compare(completion.logprobs, expected)


def test_an_aborted_request_keeps_its_tokens_and_one_that_waits_has_none(at_zero: RunningVllm) -> None:
    engine = at_zero.engine

    async def work() -> list[Completion]:
        asked = [request(group, max_new_tokens=LONG) for group in range(NUM_SLOTS + 1)]
        tasks = await started(engine, asked[:NUM_SLOTS], num_tokens=1)
        waiting = asyncio.ensure_future(engine.submit(asked[-1]))
        await asyncio.sleep(0)
        await engine.abort([asked[0].request_id, asked[-1].request_id, "unknown"])
        done = [await tasks[0], await waiting]
        await engine.abort([each.request_id for each in asked])
        return [*done, *await asyncio.gather(*tasks[1:])]

    first, waiting, *rest = at_zero.run(work())
    assert first.end is CompletionEnd.ABORTED
    assert 0 < len(first.token_ids) == len(first.logprobs) < LONG
    assert first.runs == (PolicyRun(Policy(0, 0), len(first.token_ids)),)
    assert (waiting.end, waiting.token_ids, waiting.runs) == (CompletionEnd.ABORTED, (), ())
    assert len(rest) == NUM_SLOTS - 1
    compare(first.logprobs, at_zero.model.logprobs(0, request(0).prompt_ids + first.token_ids)[-len(first.token_ids) :])


def test_a_cancelled_call_ends_its_request(at_zero: RunningVllm) -> None:
    engine = at_zero.engine

    async def work() -> None:
        tasks = await started(engine, [request(1, max_new_tokens=LONG)], num_tokens=1)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        await engine.drain()
        assert engine.room == NUM_SLOTS

    at_zero.run(work())
    assert at_zero.backend._llm.get_num_unfinished_requests() == 0


def test_a_bad_request_fails_alone(at_zero: RunningVllm) -> None:
    engine = at_zero.engine
    bad = replace(request(1), request_id="bad", prompt_ids=(3, VOCAB))

    async def work() -> list[Any]:
        return list(await asyncio.gather(engine.submit(request(0)), engine.submit(bad), return_exceptions=True))

    good, failed = at_zero.run(work())
    assert isinstance(good, Completion)
    assert isinstance(failed, RequestFailed)
    assert f"token id {VOCAB}" in str(failed)


def test_weights_of_another_model_are_refused_and_nothing_is_written(at_zero: RunningVllm) -> None:
    engine, model = at_zero.engine, at_zero.model
    other = SmallModel(tied=False, num_versions=1)
    with pytest.raises(WrongBase, match=r"lm_head\.weight is BF16 \(79, 64\) in the publication"):
        at_zero.run(engine.swap(other.whole(0), Policy(0, 1), OnSwap.KEEP_KV))
    assert at_zero.run(engine.digest()) == state_digest(model.states[0])
    completion = at_zero.run(engine.submit(request(1)))
    assert completion.runs[0].policy == Policy(0, 0)


def test_after_a_torn_write_nothing_is_sampled_until_a_whole_state_was_written(at_zero: RunningVllm) -> None:
    engine, model = at_zero.engine, at_zero.model

    async def work() -> tuple[list[Completion], Completion]:
        tasks = await started(engine, long_requests())
        await at_zero.backend._call("faulty_tear")
        with pytest.raises(Exception, match="in the middle of a write"):
            await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)
        assert await engine.digest() != state_digest(model.states[1])
        late = asyncio.ensure_future(engine.submit(request(7)))
        counts = [len(state.token_ids) for state in engine._open.values()]
        with pytest.raises(StateError, match="whole state"):
            await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)
        with pytest.raises(StateError, match="half written"):
            await engine.logprobs(np.zeros((1, 4), np.int64))
        assert counts == [len(state.token_ids) for state in engine._open.values()]
        await engine.swap(model.whole(1), Policy(0, 1), OnSwap.REPREFILL)
        assert await engine.digest() == state_digest(model.states[1])
        return await asyncio.gather(*tasks), await late

    found, late = at_zero.run(work())
    assert {run.policy for each in found for run in each.runs} == {Policy(0, 0), Policy(0, 1)}
    assert late.runs == (PolicyRun(Policy(0, 1), len(late.token_ids)),)


def test_an_element_that_somebody_else_wrote_changes_the_digest(at_zero: RunningVllm) -> None:
    at_zero.call("faulty_flip", "model.layers.1.self_attn.v_proj.weight", 77)
    assert at_zero.run(at_zero.engine.digest()) != state_digest(at_zero.model.states[0])


def test_a_stale_tied_head_of_0_014_nats_is_found_though_its_digest_is_right(at_zero: RunningVllm) -> None:
    """The hash of the weights cannot see it, and single values differ no more than rounding can make them."""
    engine, model = at_zero.engine, at_zero.model
    checker = EngineChecker(engine, probe_seed=3)
    prompts = probe_prompts(3, VOCAB).tolist()

    def signed(version: int) -> Signed:
        values = np.concatenate([model.logprobs(version, row) for row in prompts])
        return Signed(
            policy=Policy(0, version),
            state_digest=state_digest(model.states[version]),
            probe_logprobs=values.tolist(),
        )

    assert at_zero.run(checker.check(signed(0))).is_sound
    assert checker.baseline is not None
    version = model.add_with_other_embeddings(share=0.2, ulps=8)
    of_stale = np.concatenate([model.logprobs_of_head(version, 0, row) for row in prompts])
    nats = np.abs(of_stale - np.array(signed(version).probe_logprobs))
    assert 0.013 < nats.mean() < 0.014
    assert nats.max() < 0.066
    found = {}
    for is_stale in (True, False):
        at_zero.run(engine.swap(model.whole(0), Policy(0, 0), OnSwap.KEEP_KV))
        at_zero.call("faulty_stale_head", is_stale)
        at_zero.run(engine.swap(model.change(0, version), Policy(0, version), OnSwap.KEEP_KV))
        found[is_stale] = at_zero.run(checker.check(signed(version)))
        assert found[is_stale].digest == state_digest(model.states[version])
    assert found[False].is_sound
    assert found[True].why.endswith("though its tensors are right: it computes with others")


def test_deltas_of_adapters_are_merged_in_vllm_and_proven_by_what_the_trainer_signed(
    at_zero: RunningVllm, adapters: AdapterVersions
) -> None:
    """The host's copy has the signed digest, vLLM's memory has the merge bit for bit, and vLLM computes with it."""
    engine = AdapterEngine(at_zero.engine, SCALE)
    checker = EngineChecker(engine, PROBE_SEED)
    for version in range(3):
        change = adapters.changed(version) if version else adapters.whole(0)
        at_zero.run(engine.swap(change, Policy(0, version), OnSwap.KEEP_KV))
        merge = merged_state(adapters.states[version], SCALE)
        assert at_zero.run(at_zero.engine.digest()) == state_digest(merge)
        found = at_zero.run(checker.check(adapters.signed(version)))
        assert found.is_sound, found.why
        assert found.digest == state_digest(adapters.states[version])
    assert not at_zero.run(checker.check(adapters.signed(1))).is_sound
    at_zero.call("faulty_flip", ADAPTED[0], 77)
    assert "the engine's tensors have digest" in at_zero.run(checker.check(adapters.signed(2))).why


def test_adapters_that_are_merged_with_another_scale_are_found_by_vllms_own_logprobs(
    at_zero: RunningVllm, adapters: AdapterVersions
) -> None:
    engine = AdapterEngine(at_zero.engine, SCALE / 2)
    at_zero.run(engine.swap(adapters.whole(2), Policy(0, 2), OnSwap.KEEP_KV))
    found = at_zero.run(EngineChecker(engine, PROBE_SEED).check(adapters.signed(2)))
    assert found.digest == state_digest(adapters.states[2]), "the published state itself is right"
    assert found.why.endswith("though its tensors are right: it computes with others")


def test_adapters_change_while_completions_are_under_way(at_zero: RunningVllm, adapters: AdapterVersions) -> None:
    engine, model, asked = AdapterEngine(at_zero.engine, SCALE), at_zero.model, long_requests()

    async def work() -> list[Completion]:
        await engine.swap(adapters.whole(1), Policy(0, 1), OnSwap.KEEP_KV)
        tasks = await started(at_zero.engine, asked)
        await engine.swap(adapters.changed(2), Policy(0, 2), OnSwap.REPREFILL)
        return await asyncio.gather(*tasks)

    for each, completion in zip(asked, at_zero.run(work()), strict=True):
        ids, first = each.prompt_ids + completion.token_ids, len(each.prompt_ids) - 1
        assert [run.policy.version for run in completion.runs] == [1, 2]
        for run in completion.runs:
            part = slice(first, first + run.num_tokens)
            expected = model.logprobs(adapters.number(run.policy.version), ids)[part]
            compare(completion.logprobs[part.start - len(each.prompt_ids) + 1 :][: run.num_tokens], expected)
            first += run.num_tokens


class Unlabelled:
    """The same vLLM as a version before 0.30 is: it does not say which weights sampled a token."""

    reports_labels = False

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def set_label(self, label: str) -> None:
        pass

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk]:
        async for chunk in self._backend.generate(request_id, prompt_ids, sampling):
            yield replace(chunk, spans=None)


def test_a_vllm_without_labels_ends_its_requests_at_a_swap_and_continues_them(at_zero: RunningVllm) -> None:
    model, asked = at_zero.model, long_requests()
    engine = engine_of(Unlabelled(at_zero.backend))

    async def work() -> list[Completion]:
        await engine.swap(model.whole(0), Policy(0, 0), OnSwap.REPREFILL)
        tasks = await started(engine, asked)
        with pytest.raises(ConfigError, match="which weights sampled a token"):
            await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)
        await engine.swap(model.changed(0, 1), Policy(0, 1), OnSwap.REPREFILL)
        return await asyncio.gather(*tasks)

    for each, completion in zip(asked, at_zero.run(work()), strict=True):
        ids, prompt, first = each.prompt_ids + completion.token_ids, len(each.prompt_ids), 0
        assert [run.policy.version for run in completion.runs] == [0, 1]
        for run in completion.runs:
            assert not run.kept_kv
            part = slice(first, first + run.num_tokens)
            compare(completion.logprobs[part], model.logprobs(run.policy.version, ids)[prompt - 1 :][part])
            first += run.num_tokens


def test_a_killed_core_is_noticed_at_once_by_every_call(at_zero: RunningVllm) -> None:
    """The last test of this module: it leaves no engine."""
    engine = at_zero.engine
    (core,) = [child for child in multiprocessing.active_children() if "EngineCore" in child.name]

    async def work() -> tuple[list[Any], float]:
        tasks = await started(engine, long_requests())
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)
        killed_s = clock.monotonic_s()
        digest = asyncio.ensure_future(engine.digest())
        found = await asyncio.gather(*tasks, digest, return_exceptions=True)
        return found, clock.monotonic_s() - killed_s

    found, seconds = at_zero.run(work())
    assert [type(each) for each in found] == [EngineDied] * 5
    assert seconds < NOTICED_S
    for call in (engine.submit(request(0)), engine.swap(at_zero.model.whole(0), Policy(0, 1), OnSwap.KEEP_KV)):
        with pytest.raises(EngineDied):
            at_zero.run(call)
