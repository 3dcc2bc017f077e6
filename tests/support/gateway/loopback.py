"""Gateways on loopback ports, and what is around one: a trainer, workers and readers, each under a test's control."""

import asyncio
import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, Self

import grpc.aio
import numpy as np

from periplus.codec.frame import CodecId, Frame
from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.net import rpc
from periplus.net.certificates import Identity
from periplus.net.convert import (
    certificate_to_pb,
    keyed_frame_from_pb,
    keyed_frame_to_pb,
    policy_to_pb,
    publication_record_from_pb,
    publication_record_to_pb,
)
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.publication import (
    Assembler,
    Chunk,
    Publication,
    PublicationKind,
    PublicationRecord,
    PublisherKey,
    Trust,
    bundle_parts,
    signed_publication,
)
from periplus.spool.format import Durability
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.transport_keys import FrameKey
from periplus.values.weight_state import Tensor, WeightState
from periplus.wan.client import address_resolver
from region_agent.gateway.admission import GatewayAdmission
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.hub import JobHub
from region_agent.gateway.hubs import Hubs
from region_agent.gateway.messages import RelayedUp, UpKind
from region_agent.gateway.publication_feed import PublicationFeed
from region_agent.gateway.service import REGION_KEY, Certify, GatewayService
from region_agent.gateway.traffic import Traffic
from region_agent.gateway.upstream import Upstream
from region_agent.relay.switchboard import Switchboard
from region_agent.weights.disk.files import WeightFiles
from region_agent.weights.weight_cache import WeightCache
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.messages import committed_to_pb
from tests.support.gateway.spool_disk import SpoolDisk
from tests.support.keys import AUTHORITY, JOB_SECRET
from tests.support.publication.signed import payload_parts

P = ParamSpec("P")

JOB = "job-1"
DEADLINE_S = 200.0
"""Seconds within which everything must have happened: kernels may compile first, on a busy machine."""
CHUNK_BYTES = 1 << 10


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(run())


def played(scene: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make a test of an asynchronous function, which runs in a loop of its own."""

    @functools.wraps(scene)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        play(lambda: scene(*args, **kwargs))

    return test


async def until(true: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
    """Wait for what happens in other tasks of this loop and cannot be awaited."""
    async with asyncio.timeout(deadline_s):
        while not true():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.002)


# ---- publications ----------------------------------------------------------------------------------------------------


def state_of(version: int, fork: int = 0, num_bytes: int = 300) -> WeightState:
    """Return noise that differs by version, so that a delta costs what a full state does."""
    noise = np.random.default_rng([fork, version]).integers(0, 1 << 16, num_bytes // 2, dtype=np.uint16)
    return {"w": Tensor("BF16", (num_bytes // 2,), noise)}


def bundle(fork: int = 0, *, chunk_bytes: int = CHUNK_BYTES) -> Publication:
    payload = b"t" * 100
    return _signed(
        fork,
        kind=PublicationKind.BUNDLE,
        policy=Policy(fork, 0),
        codec=CodecId.FILES_ZSTD,
        content_bytes=len(payload),
        parts=bundle_parts(payload, chunk_bytes),
    )


def anchor(version: int, fork: int = 0, num_bytes: int = 300, *, chunk_bytes: int = CHUNK_BYTES) -> Publication:
    state = state_of(version, fork, num_bytes)
    return _signed(
        fork,
        kind=PublicationKind.ANCHOR,
        policy=Policy(fork, version),
        codec=CodecId.WEIGHTS,
        content_bytes=num_bytes,
        parts=encode(None, state, span_bytes=chunk_bytes),
        state_digest=state_digest(state),
    )


def delta(
    base: int, version: int, fork: int = 0, num_bytes: int = 300, *, chunk_bytes: int = CHUNK_BYTES
) -> Publication:
    """Return the delta between two states of `num_bytes` each."""
    old, state = state_of(base, fork, num_bytes), state_of(version, fork, num_bytes)
    return _signed(
        fork,
        kind=PublicationKind.DELTA,
        policy=Policy(fork, version),
        base=Policy(fork, base),
        base_digest=state_digest(old),
        codec=CodecId.WEIGHTS,
        content_bytes=num_bytes,
        parts=encode(old, state, span_bytes=chunk_bytes),
        state_digest=state_digest(state),
    )


def _signed(fork: int, **fields: Any) -> Publication:
    key = PublisherKey.from_private_bytes(bytes([fork + 1]) * 32)
    return signed_publication(key, AUTHORITY.certify(JOB, fork, key.public_key), job_id=JOB, **fields)


def name(publication_: Publication) -> str:
    """Return a publication's name, such as `anchor 0.3` or `delta 0.4`."""
    return f"{publication_.opening.kind.value} {publication_.opening.policy}"


# ---- gateways --------------------------------------------------------------------------------------------------------


@dataclass
class Gateway:
    region: str
    address: str
    hubs: Hubs
    traffic: Traffic
    server: grpc.aio.Server
    frames: FrameSpool
    records: list[control_pb2.StepRecord] = field(default_factory=list)

    @property
    def hub(self) -> JobHub:
        return self.hubs.get(JOB)

    async def die(self) -> None:
        """Stop the gateway at once, with all its connections; its spool is what it was, as after kill -9."""
        await self.server.stop(None)


def frame_spool(
    disk: SpoolDisk | None = None,
    *,
    durability: Durability = Durability.PROCESS,
    max_bytes: int = 64 << 20,
) -> FrameSpool:
    """In a folder of its own, unless `disk` says where."""
    disk = disk or SpoolDisk()
    frames = FrameSpool.open(disk.folder, durability=durability, max_bytes=max_bytes)
    disk.watch(frames._spool)
    return frames


def relayed(worker_id: str, kind: UpKind = UpKind.OTHER) -> RelayedUp:
    """What a worker says, as a hub sees it; the payload is a string that tells it from others."""
    return RelayedUp(worker_id=worker_id, kind=kind, payload=f"{worker_id} {kind}")


async def certified(job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
    """Answer as a coordinator does that certifies every trainer."""
    certificate = certificate_to_pb(AUTHORITY.certify(job_id, fork, public_key))
    return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, certificate=certificate)


def weight_cache(disk: WeightFiles | None = None, *, chain_versions: int = 8, fork: int = 0) -> WeightCache:
    """In memory, unless `disk` says where."""
    disk = disk or FaultyWeightFiles()
    folder = Path("/weights")
    return WeightCache.open(JOB, AUTHORITY.public_key, folder, chain_versions=chain_versions, fork=fork, layer=disk)


@asynccontextmanager
async def saving(feed: PublicationFeed) -> AsyncIterator[None]:
    """The task that the agent runs beside a feed."""
    running = asyncio.create_task(feed.weight_cache.run(feed.settled))
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def gateway(
    region: str = "home",
    address: str = "127.0.0.1:0",
    frames: FrameSpool | None = None,
    weights: WeightCache | None = None,
    *,
    secret: str = JOB_SECRET,
    certify: Certify | None = None,
    identity: Identity | None = None,
    relay_refusal: Callable[[], str] | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway with the hub of a job, whose secret the clients of this module show.

    With an `identity` it serves callers with certificates; with a `relay_refusal` it relays.
    """
    hubs, traffic = Hubs(region), Traffic()
    server = rpc.server(GatewayAdmission(region).admit if identity else None)
    bound = rpc.bind(server, address, rpc.ServerIdentity(current=lambda: identity) if identity else None)
    relay = Switchboard(region, traffic, relay_refusal) if relay_refusal else None
    it = Gateway(region, bound, hubs, traffic, server, frames or frame_spool())
    hub = hubs.open(JOB, it.frames, weights or weight_cache(), secret=secret)
    service = GatewayService(hubs, traffic, it.records.append, certify or certified, relay)
    gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)
    await server.start()
    async with saving(hub.feed):
        try:
            yield it
        finally:
            await server.stop(None)


@asynccontextmanager
async def remote_gateway(
    home_address: str,
    region: str = "far",
    control: str | None = None,
    *,
    address: str = "127.0.0.1:0",
    frames: FrameSpool | None = None,
    weights: WeightCache | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway with an upstream to the one at `home_address`."""
    async with gateway(region, address, frames, weights) as it, address_resolver(region, control) as resolver:
        upstream = Upstream(
            it.hub, region=region, home_region="home", home_gateway=home_address, resolver=resolver, traffic=it.traffic
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(upstream.run(lambda: 0.05))
            yield it
            running.cancel()


# ---- around a gateway ------------------------------------------------------------------------------------------------


class _Client(ABC):
    """A channel, and a task that gathers what comes until the call ends with `error`. It shows the job's `secret`."""

    def __init__(self, address: str, secret: str = JOB_SECRET) -> None:
        self.address = address
        self.secret = metadata_of_job(secret)
        self.error: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._channel = rpc.channel(self.address)
        self.stub = gateway_pb2_grpc.GatewayStub(self._channel)
        self._gathering = asyncio.create_task(self._gather())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gathering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._gathering
        await self._channel.close()

    async def _gather(self) -> None:
        try:
            with rpc.remote_errors(self.address):
                await self._read()
        except Exception as error:
            self.error = error

    @abstractmethod
    async def _read(self) -> None:
        """Gather what comes until the call ends."""

    async def ended(self) -> BaseException:
        """Return the error that the call ended with."""
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.shield(self._gathering)
        assert self.error is not None
        return self.error


class Worker(_Client):
    """One rollout stream; `region` makes it a remote gateway's."""

    def __init__(
        self, address: str, worker_id: str, *, region: str = "", hello: bool = True, secret: str = JOB_SECRET
    ) -> None:
        super().__init__(address, secret)
        self.worker_id, self._region, self._hello = worker_id, region, hello
        self.got: list[gateway_pb2.RolloutDown] = []
        self.sequence = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        metadata = ((REGION_KEY, self._region),) if self._region else ()
        self.call: Any = self.stub.Rollout(metadata=(*metadata, *self.secret))
        if self._hello:
            await self.hello(self.worker_id)
        return self

    async def _read(self) -> None:
        await asyncio.sleep(0)
        async for message in self.call:
            self.got.append(message)

    async def hello(self, worker_id: str) -> None:
        hello = gateway_pb2.WorkerHello(job_id=JOB, region=self._region)
        await self.call.write(gateway_pb2.RolloutUp(worker_id=worker_id, hello=hello))

    async def frame(self, payload: bytes, worker_id: str = "", *, epoch: int = 1, sequence: int | None = None) -> None:
        """Send a frame, by default with the next number of this stream."""
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + 1
        key = FrameKey(worker_id=worker_id or self.worker_id, epoch=epoch, sequence=sequence)
        frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)
        await self.call.write(keyed_frame_to_pb(key, frame, self._region))

    def spooled(self) -> list[tuple[int, int]]:
        """Return (epoch, sequence) of the frames that the gateway answers for."""
        return [(down.spooled.epoch, number) for down in self.got for number in down.spooled.sequences]

    async def gone(self) -> None:
        await self.call.write(gateway_pb2.RolloutUp(worker_id=self.worker_id, gone=gateway_pb2.WorkerGone()))

    def leases(self) -> list[int]:
        return [lease.lease_id for message in self.got for lease in message.leases.leases]


class Trainer(_Client):
    """The job's trainer. `came` lists the messages to it in order, as `worker kind`."""

    def __init__(self, address: str, fork: int = 0, secret: str = JOB_SECRET) -> None:
        super().__init__(address, secret)
        self.fork = fork
        self.came: list[str] = []
        self.frames: list[bytes] = []
        self.keys: list[FrameKey] = []
        self.regions: list[str] = []
        self._records: asyncio.Queue[PublicationRecord] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.call: Any = self.stub.Train(metadata=self.secret)
        hello = gateway_pb2.TrainerHello(job_id=JOB, fork=self.fork, public_key=AUTHORITY.public_key)
        await self.call.write(gateway_pb2.TrainerUp(hello=hello))
        self.publishing: Any = self.stub.Publish(self._published(), metadata=self.secret)
        return self

    async def _published(self) -> AsyncIterator[gateway_pb2.PublicationRecord]:
        while True:
            yield publication_record_to_pb(await self._records.get())

    async def _read(self) -> None:
        await asyncio.sleep(0)
        async for message in self.call:
            if message.HasField("certificate"):
                continue
            up = message.up
            self.came.append("anchor?" if message.HasField("anchor") else f"{up.worker_id} {up.WhichOneof('body')}")
            if up.HasField("frame"):
                self.frames.append(up.frame.payload)
                self.keys.append(keyed_frame_from_pb(up)[0])
                self.regions.append(up.frame.region)

    async def lease(self, worker_id: str, lease_id: int) -> None:
        batch = gateway_pb2.LeaseBatch(leases=[gateway_pb2.Lease(lease_id=lease_id)])
        await self.send(gateway_pb2.RolloutDown(worker_id=worker_id, leases=batch))

    async def send(self, message: gateway_pb2.RolloutDown) -> None:
        await self.call.write(gateway_pb2.TrainerUp(down=message))

    async def commit(self, *indices: int, region: str = "") -> None:
        """Commit frames by their indices in `frames`, by default all."""
        for index in indices or range(len(self.keys)):
            for message in committed_to_pb(region or self.regions[index], [self.keys[index]]):
                await self.send(message)

    def publish(self, *publications: Publication) -> None:
        for each in publications:
            for record in each.records():
                self.publish_record(record)

    def publish_record(self, record: PublicationRecord) -> None:
        self._records.put_nowait(record)


@asynccontextmanager
async def home_region() -> AsyncIterator[tuple[Gateway, Trainer]]:
    """The trainer's region: its gateway, and the trainer."""
    async with gateway() as home, Trainer(home.address) as trainer:
        yield home, trainer


@asynccontextmanager
async def two_regions() -> AsyncIterator[tuple[Gateway, Trainer, Gateway]]:
    """The trainer's region, and the gateway of another one that is connected to it."""
    async with home_region() as (home, trainer), remote_gateway(home.address) as far:
        yield home, trainer, far


class Reader(_Client):
    """One subscription, and the publications that it completed."""

    def __init__(
        self,
        address: str,
        *,
        have: Policy | None = None,
        has_bundle: bool = False,
        region: str = "",
        job_id: str = JOB,
        distrust_copies: bool = False,
    ) -> None:
        super().__init__(address)
        self._metadata = ((REGION_KEY, region),) if region else ()
        self._request = gateway_pb2.SubscribeRequest(
            job_id=job_id,
            reader_id="r",
            has_state=have is not None,
            has_bundle=has_bundle,
            have=None if have is None else policy_to_pb(have),
            distrust_copies=distrust_copies,
        )
        self._assembler = Assembler(Trust(AUTHORITY.public_key, job_id), max_content_bytes=1 << 30)
        self.got: list[Publication] = []
        self.num_chunks = 0
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def _read(self) -> None:
        async for message in self.stub.Subscribe(self._request, metadata=(*self._metadata, *self.secret)):
            await self.may_read.wait()
            record = publication_record_from_pb(message)
            self.num_chunks += isinstance(record, Chunk)
            done = self._assembler.feed(record)
            if done is not None:
                self.got.append(done)

    def names(self) -> list[str]:
        return [name(each) for each in self.got]

    def state(self) -> WeightState:
        """Return the state that the publications lead to, each proven by its digest."""
        state: WeightState | None = None
        for each in self.got:
            if each.opening.kind is not PublicationKind.BUNDLE:
                is_delta = each.opening.kind is PublicationKind.DELTA
                state = decode(state if is_delta else None, payload_parts(each), max_content_bytes=1 << 30)
                assert state_digest(state) == each.closing.state_digest, f"{each.opening} leads elsewhere"
        assert state is not None
        return state

    @property
    def policy(self) -> Policy | None:
        """Return the policy of the newest state that the reader got."""
        return self.got[-1].opening.policy if self.got else None
