"""The paths of an agent over relays: to regions that cannot be dialled, and to its own gateway if that cannot be.

`resolve` gives whoever dials a relayed address one on this machine: what connects there is carried to the other
region's gateway, whose certificate the dialler checks as always. It first tries whether the path leads there, since an
error of the relay would otherwise be that of a connection which just ends. `listen_at` is what the coordinator says.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial

from periplus.errors import PeriplusError, Unreachable
from periplus.net import parties, rpc
from periplus.net.attempt import failure_of
from periplus.net.parties import Party
from periplus.net.resolver import AddressResolver
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from periplus.values.relayed_address import RelayedAddress
from region_agent.gateway.service import REGION_KEY
from region_agent.gateway.upstream import RECONNECT
from region_agent.relay.pipe import RelayedEnd, pipe, relayed_end

log = logging.getLogger(__name__)


class RelayedPaths:
    """The AddressResolver of a region, around `resolver`. `gateway` is where its own gateway listens.

    Its tasks are those of `tasks`; `close` ends them. `jitter()` is uniform in [0, 1).
    """

    def __init__(
        self,
        region: str,
        gateway: str,
        resolver: AddressResolver,
        secured: Callable[[Party], rpc.Secured | None],
        tasks: asyncio.TaskGroup,
        jitter: Callable[[], float],
    ) -> None:
        self._region, self._gateway, self._resolver, self._secured = region, gateway, resolver, secured
        self._tasks, self._jitter = tasks, jitter
        self._running: set[asyncio.Task[None]] = set()
        self._doors: dict[str, asyncio.Server] = {}  # by relayed address
        self._opening = asyncio.Lock()
        self._place = ("", "")
        self._listening: asyncio.Task[None] | None = None

    async def announce(self, address: str) -> None:
        """Declare that this process serves `address`."""
        await self._resolver.announce(address)

    async def resolve(self, address: str) -> str:
        """Return the address to dial in order to reach `address`, which may be a relayed one.

        Raises: Unreachable if it is empty, as that of a region without a relay, or if the relay does not lead there.
        """
        if not address:
            raise Unreachable("its gateway cannot be dialled, and no region relays to it: give an agent --relay")
        if (to := RelayedAddress.of(address)) is None:
            return await self._resolver.resolve(address)
        async with await self._dialled(to):
            pass
        async with self._opening:
            if address not in self._doors:
                self._doors[address] = await asyncio.start_server(partial(self._come, to), "127.0.0.1", 0)
        host, port = self._doors[address].sockets[0].getsockname()
        return f"{host}:{port}"

    def listen_at(self, relay_region: str, relay_address: str) -> None:
        """Listen at the gateway of this region from now on; at none if it is empty. Open connections stay."""
        if self._place == (relay_region, relay_address):
            return
        self._place = (relay_region, relay_address)
        if self._listening is not None:
            self._listening.cancel()
        self._listening = self._spawn(self._keep_listening(relay_region, relay_address)) if relay_region else None

    def close(self) -> None:
        """End all connections and their tasks."""
        for door in self._doors.values():
            door.close()
        for task in self._running:
            task.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _dialled(self, to: RelayedAddress) -> AbstractAsyncContextManager[RelayedEnd]:
        # The own gateway is nearer than the address at which others reach it.
        is_own = to.relay_region == self._region
        address = self._gateway if is_own else await self._resolver.resolve(to.relay_address)
        secured = self._secured(parties.region(to.relay_region))
        return relayed_end(address, secured, self._region, gateway_pb2.RelayChunk(region=to.region))

    def _come(self, to: RelayedAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._carry_to(to, reader, writer))

    async def _carry_to(self, to: RelayedAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._dialled(to) as end:
                await pipe(end, reader, writer)
        except PeriplusError as error:
            event(log, logging.INFO, "relayed_connection_lost", to=to.region, relay=to.relay_region, why=error)
        finally:
            writer.transport.abort()

    async def _keep_listening(self, relay_region: str, relay_address: str) -> None:
        failures = 0
        while True:
            begun: list[bool] = []
            why = await failure_of(self._listen(relay_region, relay_address, begun))
            failures = 0 if begun else failures + 1
            event(log, logging.WARNING, "relay_lost", relay=relay_region, why=why)
            await asyncio.sleep(self._jitter() * RECONNECT.pause_s(failures))

    async def _listen(self, relay_region: str, relay_address: str, begun: list[bool]) -> None:
        address = await self._resolver.resolve(relay_address)
        secured = partial(self._secured, parties.region(relay_region))
        with rpc.remote_errors(address):
            async with rpc.channel(address, secured()) as channel:
                stub = gateway_pb2_grpc.GatewayStub(channel)
                async for told in stub.Listen(gateway_pb2.ListenRequest(), metadata=((REGION_KEY, self._region),)):
                    if told.connection_id:
                        self._spawn(self._take(relay_region, address, secured, told.connection_id))
                    else:
                        begun.append(True)
                        event(log, logging.INFO, "listens_at_relay", relay=relay_region, address=relay_address)
        raise Unreachable(f"the relay at {relay_address} ended the call")

    async def _take(
        self, relay_region: str, address: str, secured: Callable[[], rpc.Secured | None], number: int
    ) -> None:
        host, _, port = self._gateway.rpartition(":")
        try:
            first = gateway_pb2.RelayChunk(connection_id=number)
            async with relayed_end(address, secured(), self._region, first) as end:
                reader, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), port)
                await pipe(end, reader, writer)
        except PeriplusError as error:  # as of every trial, which just ends
            event(log, logging.DEBUG, "relayed_connection_lost", relay=relay_region, why=error)
        except OSError as error:
            event(log, logging.WARNING, "own_gateway_not_reached", address=self._gateway, why=error)
