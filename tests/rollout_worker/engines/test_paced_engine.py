"""Completions of a scripted engine, delivered at the pace of an emulated device, mostly on a clock that skips time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.machine import Pace
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, EngineDied, OnSwap, RequestFailed, SampleRequest
from rollout_worker.engines.paced_engine import PacedEngine
from tests.support.engines.models import qwen3, whole
from tests.support.engines.scripted import ScriptedEngine

PACE = Pace(prefill_s=0.5, decode_s=2.0, training_s=0.0)
SLOW = Pace(prefill_s=0.0, decode_s=1000.0, training_s=0.0)
FIRST = Policy(0, 0)


class SkippedTime:
    """A clock that a sleeper puts forward, after whatever else can run at the present time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    async def sleep(self, seconds: float) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        self.now_s += seconds


class Scene:
    """A paced engine over a scripted one, and when each request was delivered."""

    def __init__(self, pace: Pace, num_slots: int) -> None:
        self.time, self.scripted = SkippedTime(), ScriptedEngine(num_slots)
        self.engine = PacedEngine(self.scripted, pace, lambda: self.time.now_s, self.time.sleep)
        self.delivered_s: dict[str, float] = {}

    async def submit(self, *names: str, num_prompt: int = 4) -> dict[str, asyncio.Task[Completion]]:
        tasks = {name: asyncio.create_task(self._delivered(asked(name, num_prompt))) for name in names}
        await asyncio.sleep(0)
        return tasks

    async def _delivered(self, asked_for: SampleRequest) -> Completion:
        completion = await self.engine.submit(asked_for)
        self.delivered_s[asked_for.request_id] = self.time.now_s
        return completion

    def complete(self, name: str, num_tokens: int) -> None:
        self.scripted.complete(name, PolicyRun(FIRST, num_tokens))


def asked(name: str, num_prompt: int = 4) -> SampleRequest:
    return SampleRequest(
        request_id=name,
        prompt_ids=(5,) * num_prompt,
        seed=0,
        group=0,
        sample=0,
        temperature=1.0,
        max_new_tokens=100,
        greedy=False,
    )


def play(scene: Callable[[Scene], Awaitable[None]], pace: Pace = PACE, num_slots: int = 4) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scene(Scene(pace, num_slots))

    asyncio.run(run())


def test_a_batch_takes_the_time_of_all_its_tokens_and_no_more() -> None:
    async def scene(it: Scene) -> None:
        tasks = await it.submit("a", "b", "c")
        for name, num_tokens in (("b", 3), ("a", 5), ("c", 2)):
            it.complete(name, num_tokens)
        await asyncio.gather(*tasks.values())
        assert it.delivered_s == {"b": 100 + 8, "a": 100 + 8 + 12, "c": 100 + 8 + 12 + 6}

    play(scene)


def test_the_time_of_the_real_work_counts() -> None:
    async def scene(it: Scene) -> None:
        tasks = await it.submit("a", "b")
        it.time.now_s += 7
        it.complete("a", 3)
        await tasks["a"]
        assert it.delivered_s["a"] == 108, "8 seconds since it was submitted"
        it.time.now_s += 30
        it.complete("b", 3)
        await tasks["b"]
        assert it.delivered_s["b"] == 138, "its real work was slower than the pace"

    play(scene)


def test_a_long_completion_is_not_slowed_by_a_short_one_that_came_and_ended_meanwhile() -> None:
    async def scene(it: Scene) -> None:
        tasks = await it.submit("long")
        it.time.now_s += 50
        tasks |= await it.submit("short")
        it.time.now_s += 10
        it.complete("short", 4)
        await tasks["short"]
        it.time.now_s += 40
        it.complete("long", 44)
        await tasks["long"]
        assert it.delivered_s == {"short": 160, "long": 200}, "100 seconds of work since time 100"

    play(scene)


def test_idle_time_gives_no_credit() -> None:
    async def scene(it: Scene) -> None:
        it.time.now_s += 1000
        for began_s in (1100, 3108):
            (task,) = (await it.submit("a")).values()
            it.complete("a", 3)
            await task
            assert it.delivered_s["a"] == began_s + 8
            it.time.now_s += 2000

    play(scene)


WORK = st.tuples(st.integers(0, 90), st.integers(0, 60), st.integers(1, 9), st.integers(1, 9))
"""When a request is submitted, how long its real work takes, and its tokens of prompt and completion."""


@given(st.lists(WORK, min_size=1, max_size=10))
def test_no_stretch_of_time_delivers_more_than_the_pace_allows(plan: list[tuple[int, int, int, int]]) -> None:
    async def scene(it: Scene) -> None:
        submitted_s, cost_s = dict[str, float](), dict[str, float]()
        running = dict[str, asyncio.Task[Completion]]()
        begins = [(begin_s, 0, number) for number, (begin_s, *_) in enumerate(plan)]
        ends = [(begin_s + real_s, 1, number) for number, (begin_s, real_s, *_) in enumerate(plan)]
        for at_s, is_end, number in sorted(begins + ends):
            for _ in range(30):  # whoever is held may put the clock forward
                await asyncio.sleep(0)
            it.time.now_s = max(it.time.now_s, 100.0 + at_s)
            name, (_, _, num_prompt, num_tokens) = str(number), plan[number]
            if is_end:
                it.complete(name, num_tokens)
            else:
                submitted_s[name], cost_s[name] = it.time.now_s, 0.5 * num_prompt + 2.0 * num_tokens
                running |= await it.submit(name, num_prompt=num_prompt)
        await asyncio.gather(*running.values())
        for began_s in submitted_s.values():
            for ended_s in it.delivered_s.values():
                within = [n for n, at_s in submitted_s.items() if at_s >= began_s and it.delivered_s[n] <= ended_s]
                assert sum(cost_s[name] for name in within) <= max(0, ended_s - began_s) + 1e-9

    play(scene, num_slots=20)


def test_a_held_completion_keeps_its_slot_and_its_id_and_weights_change_meanwhile() -> None:
    async def scene(it: Scene) -> None:
        engine = PacedEngine(it.scripted, SLOW)
        held = asyncio.create_task(engine.submit(asked("a")))
        await asyncio.sleep(0)
        assert engine.room == 3
        it.complete("a", 1)
        await asyncio.sleep(0.01)
        assert (it.scripted.room, engine.room, held.done()) == (4, 3, False)
        with pytest.raises(RequestFailed, match="under way"):
            await engine.submit(asked("a"))
        draining = asyncio.create_task(engine.drain())
        await engine.swap(whole(qwen3()), FIRST, OnSwap.KEEP_KV)
        assert not draining.done()
        held.cancel()
        await draining
        assert engine.room == 4

    play(scene)


def test_an_abort_ends_a_held_completion_at_once_and_frees_the_device_for_the_next() -> None:
    async def scene(it: Scene) -> None:
        engine = PacedEngine(it.scripted, SLOW)
        held = [asyncio.create_task(engine.submit(asked(name))) for name in "abc"]
        await asyncio.sleep(0)
        for name, num_tokens in (("a", 1), ("b", 1), ("c", 0)):
            it.complete(name, num_tokens)
        await asyncio.sleep(0.01)
        await engine.abort(["a", "b", "nobody"])
        ends = [(await each).end for each in held]
        assert ends == [CompletionEnd.ABORTED, CompletionEnd.ABORTED, CompletionEnd.EOS]
        assert it.scripted.aborted == ["a", "b", "nobody"]
        assert engine.room == 4

    play(scene)


def test_an_abort_between_the_end_of_a_request_and_its_holding_is_not_lost() -> None:
    async def scene(it: Scene) -> None:
        engine = PacedEngine(it.scripted, SLOW)
        held = asyncio.create_task(engine.submit(asked("a")))
        await asyncio.sleep(0)
        it.complete("a", 1)
        await engine.abort(["a"])
        assert (await held).end is CompletionEnd.ABORTED

    play(scene)


def test_held_completions_fail_when_the_engine_closes() -> None:
    async def scene(it: Scene) -> None:
        engine = PacedEngine(it.scripted, SLOW)
        held = [asyncio.create_task(engine.submit(asked(name))) for name in "ab"]
        await asyncio.sleep(0)
        it.complete("a", 1)
        await asyncio.sleep(0.01)
        it.complete("b", 1)
        await engine.close()
        for each in held:
            with pytest.raises(EngineDied):
                await each

    play(scene)


def test_a_pace_of_zero_delays_nothing_and_changes_nothing() -> None:
    async def scene(it: Scene) -> None:
        tasks = await it.submit(*"abcd")
        for name in "abcd":
            it.complete(name, 50)
        found = await asyncio.gather(*tasks.values())
        assert set(it.delivered_s.values()) == {100.0}
        assert {(each.end, len(each.token_ids)) for each in found} == {(CompletionEnd.EOS, 50)}

    play(scene, Pace(prefill_s=0.0, decode_s=0.0, training_s=0.0))


def test_a_suspended_device_does_no_work() -> None:
    async def scene(it: Scene) -> None:
        tasks = await it.submit("a", "b")
        it.time.now_s += 3
        await it.engine.suspend()
        it.time.now_s += 1000
        await it.engine.resume()
        it.complete("a", 3)
        await tasks["a"]
        assert it.delivered_s["a"] == 1108, "8 seconds of work, and 1000 without"
        it.complete("b", 3)
        await asyncio.sleep(0)
        await it.engine.suspend()
        await it.time.sleep(500.0)
        await asyncio.sleep(0.01)
        assert not tasks["b"].done(), "a completion is held as long"
        await it.engine.resume()
        await tasks["b"]
        assert it.delivered_s["b"] >= 1108 + 500 + 6

    play(scene)
