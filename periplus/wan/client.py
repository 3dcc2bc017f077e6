"""Client of the emulator for Periplus processes: it tells a process which address to dial.

`address_resolver` gives a process the resolver of its region: it announces each address that it serves, and resolves
each address that it dials. Without an emulator every address is dialled as it is, so callers have one code path for
real networks too.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

import grpc.aio

from periplus.errors import Unreachable
from periplus.net import rpc
from periplus.net.resolver import AddressResolver, DirectResolver
from periplus.net.tokens import metadata_of
from periplus.pb.v1 import wan_pb2, wan_pb2_grpc
from periplus.wan.service import link_count_from_wire, set_link_request
from periplus.wan.shaping import LinkCount, LinkProperty

__all__ = ["LinkCount", "LinkProperty", "WanControl", "address_resolver"]


class WanControl:
    """The emulator's control interface at `address`, as an async context manager. `token` is what it wants, if it does.

    Every method raises Unreachable, which says how to start an emulator, or TimedOut if none answers, NotFound for an
    unknown region or address, and ConfigError for a bad value.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._sent: dict[str, Any] = {"timeout": rpc.CALL_DEADLINE_S, "metadata": metadata_of(token)}
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
        with _emulator_errors(self._address):
            await self._stub().Attach(wan_pb2.AttachRequest(region=region, address=address), **self._sent)

    async def route(self, src_region: str, address: str) -> str:
        """Return the address that a process in `src_region` dials to reach `address`."""
        request = wan_pb2.RouteRequest(src_region=src_region, address=address)
        with _emulator_errors(self._address):
            return (await self._stub().Route(request, **self._sent)).address

    async def set_link(self, src_region: str, dst_region: str, property_: LinkProperty, value: float) -> None:
        """Set one property of a directed link.

        The value is a rate in bits per second (infinity: unlimited), an rtt in seconds, or drop (1 or 0).
        """
        with _emulator_errors(self._address):
            await self._stub().SetLink(set_link_request(src_region, dst_region, property_, value), **self._sent)

    async def counters(self) -> tuple[LinkCount, ...]:
        """Return the current counters and settings of every directed link."""
        return (await self.counters_and_factor())[0]

    async def counters_and_factor(self) -> tuple[tuple[LinkCount, ...], float]:
        """Return the counters of every directed link, and the factor by which measured rates were multiplied."""
        with _emulator_errors(self._address):
            response = await self._stub().Counters(wan_pb2.CountersRequest(), **self._sent)
        return tuple(link_count_from_wire(link) for link in response.links), response.scale


class EmulatedResolver:
    """The addresses of an emulated network as a process in `region` sees them; an AddressResolver.

    It raises what WanControl raises.
    """

    def __init__(self, region: str, control: WanControl) -> None:
        self._region = region
        self._control = control

    async def announce(self, address: str) -> None:
        """Declare that this process serves `address` (spelled as others dial it) in its region."""
        await self._control.attach(self._region, address)

    async def resolve(self, address: str) -> str:
        """Return the address to dial in order to reach `address`: itself inside the region, else a relay."""
        return await self._control.route(self._region, address)


@contextmanager
def _emulator_errors(address: str) -> Iterator[None]:
    try:
        with rpc.remote_errors(address):
            yield
    except Unreachable as error:
        raise Unreachable(
            f"no emulator answers at {address}; start one with `periplus wan run`, or give the address of another"
        ) from error


@asynccontextmanager
async def address_resolver(region: str, control: str | None, token: str = "") -> AsyncIterator[AddressResolver]:
    """Yield the resolver of a process in `region`.

    `control` is the emulator's address, or None on a real network; `token` is what the emulator wants.
    """
    # On a real network every address is dialled as it is.
    if control is None:
        yield DirectResolver()
        return
    async with WanControl(control, token) as emulator:
        yield EmulatedResolver(region, emulator)
