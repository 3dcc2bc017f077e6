"""Connects a remote region's gateway to the job's home gateway: one rollout stream and one subscription.

Both go over the WAN. Towards the home gateway this end behaves like a worker. When either stream breaks, both are given
up, and the streams below are ended, so that their workers say hello again. After a random pause the gateway is dialled
again.

**Rollout stream.** A worker's messages are passed on only after its hello went over the present connection. Frames need
no hello, because the spool keeps them: all uncommitted ones are sent again over each new connection.

**Subscription.** It starts from the state to which the copy here and its chain of deltas lead, and the gateway above
chooses what is cheapest to send from there. If there is no copy and a reader below needs one, this end subscribes again
as one that has nothing. If a derived publication did not lead to the signed state, it subscribes again and accepts only
what the trainer signed. A refused record ends only the subscription. It is requested again with growing pauses,
while frames and leases go on.
"""

import asyncio
import logging
from collections.abc import Callable

import grpc.aio

from periplus import clock
from periplus.errors import Fenced, StorageError, Unreachable, WireError
from periplus.net import rpc
from periplus.net.attempt import failure_of
from periplus.net.convert import publication_record_from_pb
from periplus.net.resolver import AddressResolver
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.backoff import Attempts, Backoff
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from region_agent.gateway import convert
from region_agent.gateway.hub import JobHub
from region_agent.gateway.messages import AnchorRequest
from region_agent.gateway.routes import GreetedWorkers
from region_agent.gateway.service import REGION_KEY
from region_agent.gateway.traffic import Traffic

log = logging.getLogger(__name__)

RolloutCall = grpc.aio.StreamStreamCall[gateway_pb2.RolloutUp, gateway_pb2.RolloutDown]

RECONNECT = Backoff(first_s=0.2, longest_s=5.0)
"""Upper limits of the pauses between attempts to connect; each pause is random below its limit. A healed link is used
again soon, and attempts on a dead one cost little. Chosen by hand.
"""

SUBSCRIBE_AGAIN = Backoff(first_s=1.0, longest_s=60.0, free_attempts=3, reset_after_s=300.0)
"""Pauses before a refused subscription is requested again. Chosen by hand.

Three requests are free for three ordinary causes: a gateway that died during a transfer, one that needs a copy of the
weights first, and a trainer that has to publish a full state first. Later ones wait, because each may transfer a full
state over the WAN.
"""


class Upstream:
    """One job's connection to its home gateway, for as long as `run` runs."""

    def __init__(
        self,
        hub: JobHub,
        *,
        region: str,
        home_region: str,
        home_gateway: str,
        resolver: AddressResolver,
        traffic: Traffic,
        secured: Callable[[], rpc.Secured | None] = lambda: None,
    ) -> None:
        self._secured = secured
        self._hub = hub
        self._region = region
        self._metadata = ((REGION_KEY, region), *metadata_of_job(hub.secret))
        self._home_region = home_region
        self._home_gateway = home_gateway
        self._resolver = resolver
        self._traffic = traffic
        # Set to open the subscription again. Of the present connection: whether anything came from above, and whether
        # the rollout stream was opened.
        self._again = asyncio.Event()
        self._requests = Attempts(SUBSCRIBE_AGAIN)
        self._heard = False
        self._opened = False

    async def run(self, jitter: Callable[[], float]) -> None:
        """Keep the connection open until cancelled. `jitter()` is uniform in [0, 1)."""
        failures = 0
        while True:
            self._heard = self._opened = False
            try:
                why = await failure_of(self._connection())
            finally:
                if self._opened:  # else nothing was sent over this connection, and streams below may go on
                    self._hub.end_streams()
            # A connection over which something came was a good one: begin again with the shortest pause.
            failures = 0 if self._heard else failures + 1
            event(log, logging.WARNING, "upstream_lost", job=self._hub.job_id, home=self._home_region, why=why)
            await asyncio.sleep(jitter() * RECONNECT.pause_s(failures))

    async def _connection(self) -> None:
        address = await self._resolver.resolve(self._home_gateway)
        async with rpc.channel(address, self._secured()) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            # If one of the two ends, the group ends the other.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rollout(stub, address))
                tasks.create_task(self._subscription(stub, address))

    async def _rollout(self, stub: "gateway_pb2_grpc.GatewayAsyncStub", address: str) -> None:
        with rpc.remote_errors(address):
            call = stub.Rollout(metadata=self._metadata)
            opening = gateway_pb2.RolloutUp(gateway=gateway_pb2.GatewayHello(job_id=self._hub.job_id))
            await call.write(opening)
            self._traffic.sent(self._home_region, opening.ByteSize(), self._hub.job_id)
            # From here on the gateway above knows this stream, and streams below must end with it.
            self._opened = True
            self._hub.resend_uncommitted()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_up(call))
                async for message in call:
                    self._heard = True
                    await self._hub.send_down(convert.from_above(message, region=self._region))
                raise Unreachable(f"the gateway at {address} ended the stream")

    async def _write_up(self, call: RolloutCall) -> None:
        greeted = GreetedWorkers()
        while True:
            item = await self._hub.next_up()
            if isinstance(item, AnchorRequest):
                # No message goes up for it here: the subscription is opened again, and then says what is needed.
                self._again.set()
            elif greeted.lets_pass(item):
                message = convert.to_above(item, region=self._region)
                await call.write(message)
                self._traffic.sent(self._home_region, message.ByteSize(), self._hub.job_id)

    async def _subscription(self, stub: "gateway_pb2_grpc.GatewayAsyncStub", address: str) -> None:
        have = self._hub.weight_cache.have
        while True:
            self._again.clear()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read_subscription(stub, address, have))
                # It is set when a record was refused, or when a full state is needed. The present subscription, if it
                # still runs, goes on during the pause.
                await self._again.wait()
                await asyncio.sleep(self._requests.pause_s(clock.monotonic_s()))
                reading.cancel()
            have = None if self._hub.feed.anchor_requested else self._hub.weight_cache.have

    async def _read_subscription(
        self, stub: "gateway_pb2_grpc.GatewayAsyncStub", address: str, have: Policy | None
    ) -> None:
        distrust = self._hub.feed.wants_signed
        if distrust:  # only an anchor that is not older than the log is of use
            have = self._hub.feed.log.newest
        request = gateway_pb2.SubscribeRequest(
            job_id=self._hub.job_id,
            reader_id=self._region,
            has_state=have is not None,
            have=None if have is None else common_pb2.Policy(fork=have.fork, version=have.version),
            has_bundle=self._hub.feed.log.has_bundle,
            distrust_copies=distrust,
        )
        with rpc.remote_errors(address):
            call = stub.Subscribe(request, metadata=self._metadata)
            async for record in call:
                # A record that is refused also shows that the link works.
                self._heard = True
                try:
                    await self._hub.feed.append_from_above(publication_record_from_pb(record))
                except (WireError, Fenced, StorageError) as error:
                    event(
                        log,
                        logging.WARNING,
                        "subscription_refused",
                        job=self._hub.job_id,
                        home=self._home_region,
                        have=have or "none",
                        distrust=distrust,
                        why=error,
                    )
                    call.cancel()
                    self._again.set()
                    return
        raise Unreachable(f"the gateway at {address} ended the subscription")
