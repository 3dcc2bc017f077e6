"""A coordinator of one servicer, played by a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from periplus.errors import Fenced, PeriplusError
from periplus.net import rpc
from periplus.pb.v1 import control_pb2, control_pb2_grpc

Servicer: Any = control_pb2_grpc.CoordinatorServicer
"""The base class without the stubs' demand for every method: what a test does not play is unimplemented."""


class FakeCoordinator(Servicer):  # type: ignore[misc]
    """Welcomes agents and keeps their messages. It sends what is put into `orders`; an error there ends the session."""

    def __init__(self, refusal: PeriplusError | None = None) -> None:
        self.refusal = refusal
        self.hellos: list[control_pb2.Hello] = []
        self.came: list[control_pb2.AgentMessage] = []
        self.orders: asyncio.Queue[control_pb2.CoordinatorMessage | PeriplusError] = asyncio.Queue()
        self.ended = 0

    async def Session(self, request_iterator: Any, context: Any) -> None:
        messages = aiter(request_iterator)
        self.hellos.append((await anext(messages)).hello)
        if self.refusal:
            raise self.refusal
        epoch = len(self.hellos)
        await context.write(control_pb2.CoordinatorMessage(epoch=epoch, welcome=control_pb2.Welcome(heartbeat_s=0.05)))
        reading = asyncio.create_task(self._read(messages))
        try:
            while not isinstance(order := await self.orders.get(), PeriplusError):
                await context.write(order)
            raise order
        finally:
            reading.cancel()

    async def _read(self, messages: Any) -> None:
        async for message in messages:
            self.came.append(message)
        self.ended += 1
        self.orders.put_nowait(Fenced("ended"))

    def steps(self) -> list[float]:
        return [message.step.time_s for message in self.came if message.HasField("step")]

    def asked(self) -> list[control_pb2.CertificateRequest]:
        return [message.certify for message in self.came if message.HasField("certify")]


@asynccontextmanager
async def served(fake: Any, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = rpc.server()
    control_pb2_grpc.add_CoordinatorServicer_to_server(fake, server)
    bound = rpc.bind(server, address)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)
