"""Seconds in which an engine has a request under way, on a clock of the test."""

import asyncio

import pytest

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import SampleRequest
from rollout_worker.episodes.busy_engine import BusyEngine
from tests.support.engines.scripted import ScriptedEngine


class Scene:
    def __init__(self) -> None:
        self.now_s, self.scripted = 100.0, ScriptedEngine()
        self.engine = BusyEngine(self.scripted, lambda: self.now_s)
        self.tasks: dict[str, asyncio.Task[object]] = {}

    async def submits(self, name: str) -> None:
        request = SampleRequest(
            request_id=name,
            prompt_ids=(5,),
            seed=0,
            group=0,
            sample=0,
            temperature=1.0,
            max_new_tokens=100,
            greedy=False,
        )
        self.tasks[name] = asyncio.create_task(self.engine.submit(request))
        await asyncio.sleep(0)

    async def ends(self, name: str) -> None:
        self.scripted.complete(name, PolicyRun(Policy(0, 0), 1))
        await self.tasks[name]


def test_requests_that_overlap_count_once_and_idle_time_not_at_all() -> None:
    async def scene(it: Scene) -> None:
        assert it.engine.busy_s == 0.0
        await it.submits("a")
        it.now_s += 1
        await it.submits("b")
        it.now_s += 2
        await it.ends("a")
        it.now_s += 4
        assert it.engine.busy_s == 7.0, "a request that is under way counts until now"
        await it.ends("b")
        it.now_s += 8
        assert it.engine.busy_s == 7.0
        await it.submits("c")
        it.now_s += 16
        await it.ends("c")
        assert it.engine.busy_s == 23.0

    asyncio.run(scene(Scene()))


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_request_that_fails_or_is_cancelled_ends_as_any_other(is_cancelled: bool) -> None:
    async def scene(it: Scene) -> None:
        await it.submits("a")
        it.now_s += 3
        if is_cancelled:
            it.tasks["a"].cancel()
        else:
            it.scripted.fail(RuntimeError("broken"))
        await asyncio.wait([it.tasks["a"]])
        assert it.tasks["a"].cancelled() or it.tasks["a"].exception()
        it.now_s += 5
        assert it.engine.busy_s == 3.0

    asyncio.run(scene(Scene()))


def test_suspended_time_does_not_count() -> None:
    async def scene(it: Scene) -> None:
        await it.submits("a")
        it.now_s += 1
        await it.engine.suspend()
        it.now_s += 2
        await it.submits("b")
        assert it.engine.busy_s == 1.0
        await it.engine.resume()
        it.now_s += 4
        await it.ends("a")
        assert it.engine.busy_s == 5.0
        await it.ends("b")
        await it.engine.suspend()
        it.now_s += 8
        await it.engine.resume()
        assert it.engine.busy_s == 5.0

    asyncio.run(scene(Scene()))
