"""The torch engine on an event loop: requests, swaps, checks and failures that come while it decodes."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.errors import CorruptFrame, WrongBase
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import (
    ChangedElements,
    Completion,
    CompletionEnd,
    EngineDied,
    OnSwap,
    RequestFailed,
    SampleRequest,
    WholeState,
)
from rollout_worker.engines.torch_engine import TorchEngine
from tests.support.cases.tiers import rest_is_slow
from tests.support.engines.models import EOS, MOST_NEW, PAD, VOCAB, WIDTH, qwen3, request, state_of, whole

NEVER = -1
"""An end token that is never drawn."""

LONG = 60
"""Tokens of a completion within which something happens. `held` makes sure that it is under way then."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def endless(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model with room for long completions. With the end token `NEVER` each of them has its full length."""
    return qwen3(seed, max_position_embeddings=1024).to(dtype)


def play(scene: Callable[[TorchEngine], Awaitable[None]], model: Any = None, max_new_tokens: int = MOST_NEW) -> None:
    """Run a scene with an engine that holds version 0 of its model's weights."""

    async def run() -> None:
        served = qwen3() if model is None else model
        engine = TorchEngine(
            model=served,
            end_ids=(EOS,) if max_new_tokens == MOST_NEW else (),
            pad_id=PAD,
            num_slots=6,
            prompt_tokens=WIDTH,
            max_new_tokens=max_new_tokens,
        )
        try:
            await engine.swap(whole(served), Policy(0, 0), OnSwap.KEEP_KV)
            async with asyncio.timeout(60):
                await scene(engine)
        finally:
            await engine.close()

    asyncio.run(run())


@asynccontextmanager
async def held(engine: TorchEngine, num_steps: int = 6) -> AsyncIterator[None]:
    """Let the engine take some steps, hold it while the body runs, and let it go on."""
    decoder, loop, reached, goes_on = engine._decoder, asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    step, left = decoder.step, num_steps

    def counted(*, may_begin: bool) -> Any:
        nonlocal left
        left -= 1
        found = step(may_begin=may_begin)
        if not left:
            decoder.step = step  # type: ignore[method-assign]
            loop.call_soon_threadsafe(reached.set)
            goes_on.wait()
        return found

    decoder.step = counted  # type: ignore[method-assign]
    await reached.wait()
    try:
        yield
        await asyncio.sleep(0)  # what the body began has been asked for
    finally:
        goes_on.set()


def changed(before: WeightState, after: WeightState) -> ChangedElements:
    """Return the change as a worker gets it: decoded from a delta."""
    decoder = Decoder(before, max_content_bytes=sum(each.data.nbytes for each in after.values()))
    for part in encode(before, after):
        decoder.feed(part)
    return ChangedElements(staged=(decoder.staged(),))


def nudged(state: WeightState, share: float = 0.05, seed: int = 0) -> WeightState:
    """Return the state with a share of its elements changed by a few units in the last place."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, each in state.items():
        bits = each.data.view(np.uint16).copy()
        bits[rng.random(bits.size) < share] += 3
        found[name] = Tensor(each.dtype, each.shape, bits.view(np.uint8))
    return found


def test_requests_beyond_the_slots_are_all_answered_and_room_is_told() -> None:
    async def scene(engine: TorchEngine) -> None:
        assert (engine.num_slots, engine.room, engine.vocab_size) == (6, 6, VOCAB)
        asked = [request(group, sample) for group in range(20) for sample in range(2)]
        running = [asyncio.ensure_future(engine.submit(one)) for one in asked]
        await asyncio.sleep(0)
        assert engine.room == 0
        found = await asyncio.gather(*running)
        assert engine.room == 6
        alone = [await engine.submit(one) for one in asked[:5]]
        assert [each.token_ids for each in found[:5]] == [each.token_ids for each in alone]
        assert [each.logprobs for each in found[:5]] == [each.logprobs for each in alone]

    play(scene)


@pytest.mark.parametrize("on_swap", OnSwap)
def test_weights_change_while_completions_are_under_way(on_swap: OnSwap) -> None:
    async def scene(engine: TorchEngine) -> None:
        model = endless()
        before, after = state_of(model), nudged(state_of(model))
        running = [asyncio.ensure_future(engine.submit(long_request(sample))) for sample in range(9)]
        async with held(engine):
            swapping = asyncio.ensure_future(engine.swap(changed(before, after), Policy(0, 1), on_swap))
        report = await swapping
        assert 0 < report.write_s <= report.pause_s
        late = await engine.submit(long_request(50))
        found = await asyncio.gather(*running)
        assert [each.policy for each in late.runs] == [Policy(0, 1)]
        assert await engine.digest() == state_digest(after)
        spanning = [each for each in found if len(each.runs) == 2]
        if on_swap is OnSwap.DRAIN:
            assert not spanning
        else:
            # Those that had a slot at the swap have two runs; those that waited for one have the new weights' alone.
            assert len(spanning) == 6
            for each in spanning:
                assert [part.policy for part in each.runs] == [Policy(0, 0), Policy(0, 1)]
                assert [part.kept_kv for part in each.runs] == [False, on_swap is OnSwap.KEEP_KV]
                assert sum(part.num_tokens for part in each.runs) == LONG
                assert each.longest_gap_s >= report.write_s

    play(scene, endless(), LONG)


def long_request(sample: int) -> SampleRequest:
    return request(4, sample, max_new_tokens=LONG)


def test_changed_elements_and_a_whole_state_leave_the_same_weights() -> None:
    async def scene(engine: TorchEngine) -> None:
        before = state_of(qwen3())
        middle = nudged(before, seed=1)
        after = nudged(middle, seed=2)
        both = ChangedElements(staged=(*changed(before, middle).staged, *changed(middle, after).staged))
        await engine.swap(both, Policy(0, 2), OnSwap.KEEP_KV)
        by_changes = await engine.submit(request(3))
        assert await engine.digest() == state_digest(after)
        await engine.swap(WholeState(layout=layout_of(after), state=after), Policy(0, 2), OnSwap.KEEP_KV)
        assert await engine.digest() == state_digest(after)
        assert (await engine.submit(request(3))).logprobs == by_changes.logprobs

    play(scene)


def test_weights_of_another_model_are_refused_and_nothing_changes() -> None:
    async def scene(engine: TorchEngine) -> None:
        other = whole(qwen3(hidden_size=32))
        before = await engine.digest()
        with pytest.raises(WrongBase, match="do not fit"):
            await engine.swap(other, Policy(0, 1), OnSwap.KEEP_KV)
        assert await engine.digest() == before
        assert [part.policy for part in (await engine.submit(request(1))).runs] == [Policy(0, 0)]

    play(scene)


@pytest.mark.parametrize("on_swap", rest_is_slow(OnSwap))
def test_a_write_that_fails_reaches_the_caller_and_nothing_is_sampled_until_a_whole_state_mends_it(
    on_swap: OnSwap,
) -> None:
    class Torn(ChangedElements):
        def updates(self) -> Iterator[Any]:
            yield next(super().updates())
            raise MemoryError("no room on the device")

    async def scene(engine: TorchEngine) -> None:
        before = state_of(endless())
        after = nudged(before)
        running = [asyncio.ensure_future(engine.submit(long_request(sample))) for sample in range(8)]
        async with held(engine):
            torn = Torn(staged=changed(before, after).staged)
            swapping = asyncio.ensure_future(engine.swap(torn, Policy(0, 1), on_swap))
        with pytest.raises(MemoryError):
            await swapping
        assert await engine.digest() not in (state_digest(before), state_digest(after))
        late = asyncio.ensure_future(engine.submit(long_request(20)))
        # Not a token is sampled with weights that are no version.
        done = sum(each.done() for each in (*running, late))
        assert done < 9
        await asyncio.sleep(0.1)
        assert sum(each.done() for each in (*running, late)) == done
        await engine.swap(WholeState(layout=layout_of(after), state=after), Policy(0, 1), on_swap)
        assert await engine.digest() == state_digest(after)
        for completion in await asyncio.gather(*running, late):
            assert completion.end is CompletionEnd.LENGTH
            # A completion that is of one version only is what that version's weights say.
            if len(completion.runs) == 1:
                version = completion.runs[0].policy.version
                expected = fresh[version][completion.token_ids]
                np.testing.assert_array_equal(completion.logprobs, expected)

    fresh = [tokens_of(0), tokens_of(1)]
    play(scene, endless(), LONG)


@functools.cache
def tokens_of(version: int) -> dict[tuple[int, ...], tuple[float, ...]]:
    """Return what a version samples for the long requests of the test above: log-probabilities by tokens."""
    found: list[Completion] = []
    state = state_of(endless()) if version == 0 else nudged(state_of(endless()))

    async def scene(engine: TorchEngine) -> None:
        await engine.swap(WholeState(layout=layout_of(state), state=state), Policy(0, version), OnSwap.KEEP_KV)
        found.extend(await asyncio.gather(*(engine.submit(long_request(sample)) for sample in (*range(8), 20))))

    play(scene, endless(), LONG)
    return {each.token_ids: each.logprobs for each in found}


def test_a_cancelled_request_leaves_nothing_to_the_next_one_of_its_id() -> None:
    async def scene(engine: TorchEngine) -> None:
        first = long_request(3)
        expected = await engine.submit(first)
        for has_begun in (False, True):
            running = asyncio.ensure_future(engine.submit(first))
            async with held(engine) if has_begun else nullcontext():
                await asyncio.sleep(0)
                running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            again = await engine.submit(replace(first, sample=4))
            assert again.end is CompletionEnd.LENGTH
            assert again.token_ids != expected.token_ids
        assert (await engine.submit(first)).logprobs == expected.logprobs

    play(scene, endless(), LONG)


def test_a_swap_whose_caller_was_cancelled_is_followed_by_the_next_one() -> None:
    async def scene(engine: TorchEngine) -> None:
        before = state_of(endless())
        after = nudged(before)
        running = [asyncio.ensure_future(engine.submit(long_request(sample))) for sample in range(6)]
        async with held(engine):
            draining = asyncio.ensure_future(engine.swap(changed(before, after), Policy(0, 1), OnSwap.DRAIN))
        async with held(engine):
            draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        last = nudged(after, seed=1)
        await engine.swap(WholeState(layout=layout_of(last), state=last), Policy(0, 2), OnSwap.KEEP_KV)
        assert await engine.digest() == state_digest(last)
        assert {run.policy.version for each in await asyncio.gather(*running) for run in each.runs} == {0}

    play(scene, endless(), LONG)


def test_the_digest_finds_an_element_that_no_publication_can_have_written() -> None:
    model = qwen3()

    async def scene(engine: TorchEngine) -> None:
        model.model.norm.weight[0] = 1.0 + 2.0**-20
        with pytest.raises(CorruptFrame, match="norm"):
            await engine.digest()

    play(scene, model)


def test_the_probe_is_computed_with_the_present_weights_while_requests_go_on() -> None:
    async def scene(engine: TorchEngine) -> None:
        ids = np.random.default_rng(0).integers(0, VOCAB, (4, 16))
        running = asyncio.ensure_future(engine.submit(long_request(1)))
        first = await engine.logprobs(ids)
        await engine.swap(whole(endless(1)), Policy(0, 1), OnSwap.KEEP_KV)
        second = await engine.logprobs(ids)
        await running
        for found, model in ((first, endless(0)), (second, endless(1))):
            with torch.no_grad():
                expected = torch.log_softmax(model(torch.from_numpy(ids)).logits[:, :-1], -1)
            picked = expected.gather(2, torch.from_numpy(ids)[:, 1:, None])[..., 0].numpy()
            np.testing.assert_allclose(found, picked, atol=1e-4)
            assert found.dtype == np.float32

    play(scene, endless(), LONG)


def test_an_aborted_request_returns_its_tokens_so_far_and_a_cancelled_one_frees_its_slot() -> None:
    async def scene(engine: TorchEngine) -> None:
        running = [asyncio.ensure_future(engine.submit(long_request(sample))) for sample in range(6)]
        async with held(engine):
            aborting = asyncio.ensure_future(engine.abort([long_request(2).request_id, "no such"]))
        await aborting
        aborted = await running[2]
        assert aborted.end is CompletionEnd.ABORTED
        assert 0 < len(aborted.token_ids) < LONG
        async with held(engine):
            running[4].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running[4]
        assert engine.room == 2
        rest = await asyncio.gather(*(running[index] for index in (0, 1, 3, 5)))
        assert all(each.end is CompletionEnd.LENGTH for each in rest)

    play(scene, endless(), LONG)


def test_drain_returns_when_nothing_is_under_way() -> None:
    async def scene(engine: TorchEngine) -> None:
        await engine.drain()
        running = [asyncio.ensure_future(engine.submit(request(group))) for group in range(12)]
        await asyncio.sleep(0)
        await engine.drain()
        assert all(each.done() for each in running) or await asyncio.gather(*running)
        assert engine.room == 6

    play(scene)


BAD = {
    "prompt_tokens": request(0, length=WIDTH + 1),
    "temperature": request(0, temperature=0.0),
    "max_new_tokens": request(0, max_new_tokens=0),
    f"takes 1 to {MOST_NEW}": request(0, max_new_tokens=MOST_NEW + 1),
    "vocabulary": SampleRequest(
        request_id="x", prompt_ids=(VOCAB,), seed=0, group=0, sample=0, temperature=1, max_new_tokens=1, greedy=False
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_a_request_that_cannot_be_served_is_refused_and_the_others_go_on(words: str) -> None:
    async def scene(engine: TorchEngine) -> None:
        running = asyncio.ensure_future(engine.submit(request(1)))
        with pytest.raises(RequestFailed, match=words):
            await engine.submit(BAD[words])
        assert isinstance(await running, Completion)

    play(scene)


def test_a_request_id_that_is_under_way_is_refused() -> None:
    async def scene(engine: TorchEngine) -> None:
        running = asyncio.ensure_future(engine.submit(request(1)))
        await asyncio.sleep(0)
        with pytest.raises(RequestFailed, match="unique"):
            await engine.submit(request(1))
        await running

    play(scene)


def test_a_closed_engine_fails_what_is_under_way_and_all_that_comes() -> None:
    async def scene(engine: TorchEngine) -> None:
        running = asyncio.ensure_future(engine.submit(long_request(0)))
        draining = asyncio.ensure_future(engine.drain())
        async with held(engine):
            closing = asyncio.ensure_future(engine.close())
        await closing
        for call in (running, draining, engine.submit(request(1)), engine.digest(), engine.abort(["x"])):
            with pytest.raises(EngineDied):
                await call

    play(scene, endless(), LONG)


def test_if_the_thread_dies_nobody_waits_for_it() -> None:
    async def scene(engine: TorchEngine) -> None:
        running = asyncio.ensure_future(engine.submit(long_request(0)))

        def broken(*, may_begin: bool) -> Any:
            raise SystemError("a bug of ours")

        async with held(engine):
            engine._decoder.step = broken  # type: ignore[method-assign]
        with pytest.raises(EngineDied, match="a bug of ours"):
            await running
        with pytest.raises(EngineDied):
            await engine.submit(request(1))

    play(scene, endless(), LONG)


def test_in_bfloat16_weights_are_the_published_bits_and_logprobs_are_near() -> None:
    model = qwen3().to(torch.bfloat16)

    async def scene(engine: TorchEngine) -> None:
        assert engine.computes_in_bfloat16
        after = nudged(state_of(qwen3()))
        await engine.swap(changed(state_of(qwen3()), after), Policy(0, 1), OnSwap.REPREFILL)
        assert await engine.digest() == state_digest(after)
        found = await engine.submit(request(5, max_new_tokens=MOST_NEW))
        reference = qwen3()
        TorchEngineMemory(reference).write(after)
        ids = torch.tensor([(*request(5).prompt_ids, *found.token_ids)])
        with torch.no_grad():
            logits_TV = reference(ids).logits[0, len(request(5).prompt_ids) - 1 : -1]
        expected = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
        assert float((torch.tensor(found.logprobs) - expected).abs().mean()) < 0.05

    play(scene, model)


class TorchEngineMemory:
    """Writes a state into a plain model."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def write(self, state: WeightState) -> None:
        for name, parameter in self._model.named_parameters():
            bits = torch.from_numpy(state[name].data.view(np.int16).copy()).view(torch.bfloat16)
            parameter.copy_(bits.reshape(parameter.shape))
