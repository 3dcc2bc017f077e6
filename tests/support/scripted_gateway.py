"""A gateway of which only Subscribe answers, as a script says: every request is kept, each is served by the script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from periplus.net import rpc
from periplus.net.convert import publication_record_to_pb
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.publication import Publication, PublicationRecord

DEADLINE_S = 20.0

Served = Iterable[Publication | PublicationRecord | None]
"""None ends the call."""


@dataclass
class ScriptedGateway(gateway_pb2_grpc.GatewayServicer):
    """`script` gives what a request is answered with; `publish` adds to the present subscription."""

    script: Callable[[gateway_pb2.SubscribeRequest], Served]
    requests: list[gateway_pb2.SubscribeRequest] = field(default_factory=list)
    address: str = ""

    async def Subscribe(
        self, request: gateway_pb2.SubscribeRequest, context: object
    ) -> AsyncIterator[gateway_pb2.PublicationRecord]:
        self._more: asyncio.Queue[Publication] = asyncio.Queue()
        more = self._more
        self.requests.append(request)
        for each in self.script(request):
            if each is None:
                return
            for record in each.records() if isinstance(each, Publication) else (each,):
                yield publication_record_to_pb(record)
        while True:
            for record in (await more.get()).records():
                yield publication_record_to_pb(record)

    def publish(self, *publications: Publication) -> None:
        for each in publications:
            self._more.put_nowait(each)


@asynccontextmanager
async def scripted_gateway(script: Callable[[gateway_pb2.SubscribeRequest], Served]) -> AsyncIterator[ScriptedGateway]:
    it, server = ScriptedGateway(script), rpc.server()  # type: ignore[abstract]  # the other methods are the base's: unimplemented
    it.address = rpc.bind(server, "127.0.0.1:0")
    gateway_pb2_grpc.add_GatewayServicer_to_server(it, server)  # type: ignore[no-untyped-call,unused-ignore]
    await server.start()
    try:
        yield it
    finally:
        await server.stop(None)


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
