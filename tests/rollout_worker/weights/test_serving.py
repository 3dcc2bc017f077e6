"""What the engine may serve as, and which results wait."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.weights.serving import Serving

V0, V1 = Policy(0, 0), Policy(0, 1)
OLD, NEW = (PolicyRun(V0, 3),), (PolicyRun(V1, 2),)
BOTH = (PolicyRun(V0, 3), PolicyRun(V1, 2, kept_kv=True))


def play(scene: Callable[[Serving], Awaitable[None]]) -> None:
    async def run() -> None:
        serving = Serving()
        serving.sound(V0)
        async with asyncio.timeout(60):
            await scene(serving)

    asyncio.run(run())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_without_a_proven_version_nothing_may_begin() -> None:
    assert Serving().policy is None


def test_a_result_that_is_not_in_doubt_is_used_at_once() -> None:
    async def scene(serving: Serving) -> None:
        with serving.request("a", 0) as request:
            assert await serving.verdict(request, OLD)

    play(scene)


def test_results_wait_while_weights_are_written_and_those_of_the_checked_version_until_its_verdict() -> None:
    async def scene(serving: Serving) -> None:
        with serving.request("a", 0) as a, serving.request("b", 0) as b, serving.request("c", 0) as c:
            serving.writing()
            old, new, both = (asyncio.ensure_future(serving.verdict(*each)) for each in ((a, OLD), (b, NEW), (c, BOTH)))
            await settled()
            assert not any(each.done() for each in (old, new, both))
            serving.written(V1, may_serve=True, in_doubt=True)
            await settled()
            assert [each.done() for each in (old, new, both)] == [True, False, False]
            assert serving.policy == V1, "requests begin while the version is checked"
            serving.sound(V1)
            assert all(await asyncio.gather(old, new, both))

    play(scene)


@pytest.mark.parametrize("in_doubt", [True, False])
def test_what_is_condemned_is_never_used_and_what_begins_later_is(in_doubt: bool) -> None:
    async def scene(serving: Serving) -> None:
        with serving.request("a", 0) as waiting, serving.request("b", 0) as running:
            serving.writing()
            if in_doubt:
                serving.written(V1, may_serve=True, in_doubt=True)
            verdict = asyncio.ensure_future(serving.verdict(waiting, BOTH))
            await settled()
            assert set(serving.condemn()) == {"a", "b"}
            assert serving.policy is None
            assert not await verdict
            serving.sound(V1)
            assert not await serving.verdict(running, OLD), "it was under way"
        with serving.request("b", 0) as again:
            assert await serving.verdict(again, NEW)

    play(scene)


def test_a_new_fork_ends_the_requests_of_the_old_one_and_lets_nothing_begin() -> None:
    async def scene(serving: Serving) -> None:
        with serving.request("a", 0) as old, serving.request("b", 1):
            assert serving.leave_fork(1) == ("a",)
            assert serving.policy is None
            assert await serving.verdict(old, OLD), "what it had finished was of a proven version"

    play(scene)


def test_an_unproven_engine_does_not_serve_while_it_is_checked() -> None:
    async def scene(serving: Serving) -> None:
        serving.condemn()
        serving.writing()
        serving.written(V1, may_serve=False, in_doubt=True)
        assert serving.policy is None
        serving.sound(V1)
        assert serving.policy == V1

    play(scene)
