"""Subscriptions as a script says, without a socket: every request is kept, and the script serves each of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from periplus.errors import Unreachable
from periplus.publication import Publication
from rollout_worker.weights.incoming import ReceivedRecord
from rollout_worker.weights.subscription import SubscriptionRequest

DEADLINE_S = 200.0

Served = Iterable[Publication | ReceivedRecord | None]
"""None ends the subscription."""


@dataclass
class ScriptedGateway:
    """`script` gives what a request is answered with; `publish` adds to the present subscription.

    `served` are the records that were handed out, of all subscriptions.
    """

    script: Callable[[SubscriptionRequest], Served]
    requests: list[SubscriptionRequest] = field(default_factory=list)
    served: list[ReceivedRecord] = field(default_factory=list)

    @asynccontextmanager
    async def subscribed(
        self, request: SubscriptionRequest, again: asyncio.Event
    ) -> AsyncIterator[AsyncIterator[ReceivedRecord]]:
        self._more: asyncio.Queue[Publication] = asyncio.Queue()
        self.requests.append(request)
        yield self._records(self.script(request), self._more, again)

    async def _records(
        self, script: Served, more: "asyncio.Queue[Publication]", again: asyncio.Event
    ) -> AsyncIterator[ReceivedRecord]:
        for each in script:
            if each is None:
                raise Unreachable("the script ends the subscription")
            for record in records_of(each):
                await asyncio.sleep(0)
                if again.is_set():
                    raise Unreachable("the reader subscribes again")
                self.served.append(record)
                yield record
        while True:
            for record in (await self._next(more, again)).records():
                self.served.append(record)
                yield record

    async def _next(self, more: "asyncio.Queue[Publication]", again: asyncio.Event) -> Publication:
        getting, cut = asyncio.ensure_future(more.get()), asyncio.ensure_future(again.wait())
        try:
            await asyncio.wait({getting, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                raise Unreachable("the reader subscribes again")
            return getting.result()
        finally:
            getting.cancel()
            cut.cancel()

    def publish(self, *publications: Publication) -> None:
        for each in publications:
            self._more.put_nowait(each)


def records_of(served: Publication | ReceivedRecord) -> Iterable[ReceivedRecord]:
    return served.records() if isinstance(served, Publication) else (served,)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    """For what happens in other tasks of this loop and cannot be awaited."""
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.002)
