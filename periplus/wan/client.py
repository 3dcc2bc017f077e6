"""Client of the emulator for Periplus processes: it tells a process which address to dial.

A process states its region once. It attaches each address that it serves, and asks for the route to each address that
it dials. Without an emulator (`control` is None) every route is the address itself, so callers have one code path for
real networks too.
"""

from types import TracebackType
from typing import Self

import grpc.aio

from periplus.net import rpc
from periplus.pb.v1 import wan_pb2, wan_pb2_grpc
from periplus.wan.service import link_count_from_wire, set_link_request
from periplus.wan.shaping import LinkCount, LinkProperty

__all__ = ["LinkCount", "LinkProperty", "WanControl", "WanRouter"]


class WanControl:
    """The emulator's control interface at `address`, as an async context manager.

    Every method raises Unreachable or TimedOut if the emulator does not answer, NotFound for an unknown region or
    address, and ConfigError for a bad value.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        self._channel = rpc.channel(self._address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._channel is not None
        await self._channel.close()
        self._channel = None

    def _stub(self) -> "wan_pb2_grpc.WanEmulatorAsyncStub":
        assert self._channel is not None, "use WanControl as an async context"
        return wan_pb2_grpc.WanEmulatorStub(self._channel)

    async def attach(self, region: str, address: str) -> None:
        """Declare that `address` is served in `region`."""
        with rpc.remote_errors(self._address):
            await self._stub().Attach(
                wan_pb2.AttachRequest(region=region, address=address), timeout=rpc.CALL_DEADLINE_S
            )

    async def route(self, src_region: str, address: str) -> str:
        """Return the address that a process in `src_region` dials to reach `address`."""
        request = wan_pb2.RouteRequest(src_region=src_region, address=address)
        with rpc.remote_errors(self._address):
            return (await self._stub().Route(request, timeout=rpc.CALL_DEADLINE_S)).address

    async def set_link(self, src_region: str, dst_region: str, property_: LinkProperty, value: float) -> None:
        """Set one property of a directed link.

        The value is a rate in bits per second (infinity: unlimited), an rtt in seconds, or drop (1 or 0).
        """
        with rpc.remote_errors(self._address):
            await self._stub().SetLink(
                set_link_request(src_region, dst_region, property_, value), timeout=rpc.CALL_DEADLINE_S
            )

    async def counters(self) -> tuple[LinkCount, ...]:
        """Return the current counters and settings of every directed link."""
        return (await self.counters_and_factor())[0]

    async def counters_and_factor(self) -> tuple[tuple[LinkCount, ...], float]:
        """Return the counters of every directed link, and the factor by which measured rates were multiplied."""
        with rpc.remote_errors(self._address):
            response = await self._stub().Counters(wan_pb2.CountersRequest(), timeout=rpc.CALL_DEADLINE_S)
        return tuple(link_count_from_wire(link) for link in response.links), response.scale


class WanRouter:
    """Routes of a process in `region`, as an async context manager.

    `control` is the emulator's control address, or None on a real network. Raises what WanControl raises.
    """

    def __init__(self, region: str, control: str | None) -> None:
        self._region = region
        self._control = None if control is None else WanControl(control)

    async def __aenter__(self) -> Self:
        if self._control is not None:
            await self._control.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._control is not None:
            await self._control.__aexit__(kind, error, trace)

    async def attach(self, address: str) -> None:
        """Declare that this process serves `address` (spelled as others dial it) in its region."""
        if self._control is not None:
            await self._control.attach(self._region, address)

    async def route(self, address: str) -> str:
        """Return the address to dial in order to reach `address`: itself inside the region, else a relay."""
        return address if self._control is None else await self._control.route(self._region, address)

    async def counters(self) -> tuple[LinkCount, ...]:
        """Return the counters of every directed link of the emulated network; empty without an emulator."""
        return () if self._control is None else await self._control.counters()
