"""Gateways that relay, the ends of connections at them, and regions with certificates of one fleet."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from periplus import clock
from periplus.net import parties, rpc
from periplus.net.certificates import FleetAuthority, Identity
from periplus.net.parties import Party
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from region_agent.gateway.service import REGION_KEY
from tests.support.gateway.loopback import Gateway, gateway

FLEET = FleetAuthority.generate("fleet", clock.unix_s())


def identity(party: Party) -> Identity:
    return FLEET.identity(party, clock.unix_s())


def secured(region: str) -> Callable[[Party], rpc.Secured]:
    """How a region calls others."""
    own = identity(parties.region(region))
    return lambda peer: rpc.Secured(identity=own, peer=peer)


def secured_gateway(region: str, *, relays: bool = False, address: str = "127.0.0.1:0") -> Any:
    """A gateway whose callers have certificates."""
    refusal = (lambda: "") if relays else None
    return gateway(region, address, identity=identity(parties.region(region)), relay_refusal=refusal)


@asynccontextmanager
async def relaying(refusal: Callable[[], str] = lambda: "") -> AsyncIterator[tuple[Gateway, "Caller"]]:
    """A gateway without identities that relays, and calls of it."""
    async with gateway("hub", relay_refusal=refusal) as hub, rpc.channel(hub.address) as channel:
        yield hub, Caller(channel)


class Caller:
    """Calls of a relay, made by hand. `region` is what the caller says that it is; its certificate decides."""

    def __init__(self, channel: Any) -> None:
        self._stub: Any = gateway_pb2_grpc.GatewayStub(channel)

    async def listens(self, region: str) -> Any:
        """A call of a region that listens."""
        call = self._stub.Listen(gateway_pb2.ListenRequest(), metadata=_said(region))
        assert not (await call.read()).connection_id
        return call

    async def end(self, caller: str, /, **first: Any) -> Any:
        """An end that names the other one."""
        call = self._stub.Relay(metadata=_said(caller))
        with suppress(grpc.aio.AioRpcError):  # the relay has refused already, which a read tells
            await call.write(gateway_pb2.RelayChunk(**first))
        return call

    async def joined(self, src: str = "us", dst: str = "eu") -> tuple[Any, Any]:
        """Both ends of a connection."""
        listening = await self.listens(dst)
        near = await self.end(src, region=dst)
        far = await self.end(dst, connection_id=(await listening.read()).connection_id)
        for each in (near, far):
            assert not (await each.read()).WhichOneof("body")
        return near, far


def _said(region: str) -> tuple[tuple[str, str], ...]:
    return ((REGION_KEY, region),) if region else ()


def data(content: bytes) -> gateway_pb2.RelayChunk:
    return gateway_pb2.RelayChunk(data=content)


END = gateway_pb2.RelayChunk(is_end=True)
