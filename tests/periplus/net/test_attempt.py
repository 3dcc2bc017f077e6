import asyncio
from collections.abc import Callable, Coroutine

import pytest

from periplus.errors import ConfigError, PeriplusError, Unreachable
from periplus.net.attempt import failure_of


async def fails(*errors: BaseException) -> None:
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup("several", errors)


async def cancels_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("attempt", "kind"),
    [
        (lambda: fails(ConfigError("wrong")), ConfigError),
        (lambda: fails(Unreachable("gone"), ConfigError("wrong")), Unreachable),
        (cancels_itself, Unreachable),
    ],
)
def test_the_error_of_an_attempt_is_returned(attempt: Callable[[], Coroutine[None, None, None]], kind: type) -> None:
    async def scene() -> PeriplusError:
        return await failure_of(attempt())

    assert type(asyncio.run(scene())) is kind


def test_an_error_that_is_not_ours_is_raised() -> None:
    async def scene() -> None:
        await failure_of(fails(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scene())


def test_a_cancellation_is_passed_on_though_a_child_of_the_attempt_fails_at_the_same_moment() -> None:
    """A TaskGroup that raises the error of a child loses a cancellation that arrives while it waits for the others."""

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(10):
                await asyncio.sleep(0)

    async def attempt() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slow_to_end())
            await asyncio.sleep(0)
            raise Unreachable("the stream ended")

    async def scene() -> bool:
        loop = asyncio.ensure_future(failure_of(attempt()))
        for _ in range(5):
            await asyncio.sleep(0)
        loop.cancel()
        await asyncio.wait({loop}, timeout=10)
        return loop.cancelled()

    assert asyncio.run(scene())
