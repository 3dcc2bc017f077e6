"""One job's traffic inside one gateway: who is where, and what waits to be sent.

A hub has rollout workers below it (its own region's, or a remote region's by way of that region's gateway) and one way
up: to the job's trainer in the home region, to the home gateway elsewhere. What goes up is one bounded queue; what
goes down is one bounded queue a stream, found by worker id; publications are one log with a cursor a reader, and what
the log completes is the keeper's (weights/), which makes what readers need beyond it. Bounds are back-pressure: who
puts into a full queue waits, and gRPC stops reading from the peer that caused it. A stream below that takes nothing for
`DOWN_STALL_S` is ended.

Frames of its own region's workers go through the spool (frames.py): taken, acknowledged to the worker, sent up, and
kept until the trainer says that its ledger has them. Frames of other regions are passed on: their own gateways keep
them. So a frame has one keeper at a time, and whoever it waits for may die.

Invariants: a worker id has one route, the newest stream that said hello for it; when a stream ends, everyone routed
over it is reported gone, once; when the way up is lost, or another trainer takes over, all streams below end too, so
that workers say hello again, remote gateways send again what is not committed, and nothing is thought delivered that
was not; a way up begins with every frame of the spool. What waited for a stream is written before it ends: the last of
it may say that the job is done.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from periplus import clock
from periplus.errors import Fenced, PeriplusError, StorageError, WireError
from periplus.net.convert import keyed_frame_from_pb, keys_from_pb
from periplus.pb.v1 import gateway_pb2
from periplus.process.telemetry import event
from periplus.publication import Assembler, Closing, Opening, Publication, PublicationKind, PublicationRecord
from periplus.values.policy import Policy
from periplus.values.trajectory import MAX_WORKER_ID_BYTES
from periplus.values.transport_keys import FrameKey
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.outgoing import Outgoing
from region_agent.weights.disk.restore import MAX_CONTENT_BYTES
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)

DOWN_QUEUE_MESSAGES = 64
"""Lease batches waiting for one stream; the ledger grants no more than workers asked for, so this hardly fills."""

DOWN_STALL_S = 20.0
"""How long a full queue may keep the messages of all other workers waiting: beyond what a slow link between two regions
needs for so many small messages. Then its stream ends: a worker that hangs must not hold up those that do not."""

TAKEN_FRAMES = 1024
"""Frames of one stream that are taken and not acknowledged yet. An honest worker has 64 of them on the way at most; who
sends on without reading what it is told is not read any more."""


@dataclass(slots=True, eq=False)
class StreamRoute:
    """The way down to the workers that one stream carries."""

    peer_region: str
    queue: asyncio.Queue[gateway_pb2.RolloutDown] = field(default_factory=lambda: asyncio.Queue(DOWN_QUEUE_MESSAGES))
    workers: set[str] = field(default_factory=set)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[FrameKey] = field(default_factory=list)
    has_taken: asyncio.Event = field(default_factory=asyncio.Event)
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    async def took(self, key: FrameKey) -> None:
        """Its worker is to hear of it once the spool holds it for good. Waits while too many wait for that."""
        while len(self.taken) >= TAKEN_FRAMES:
            self.has_room.clear()
            await self.has_room.wait()
        self.taken.append(key)
        self.has_taken.set()

    async def next_taken(self) -> Sequence[FrameKey]:
        """All that was taken since the last call, one at least."""
        await self.has_taken.wait()
        self.has_taken.clear()
        keys, self.taken = self.taken, []
        self.has_room.set()
        return keys

    async def put(self, message: gateway_pb2.RolloutDown) -> bool:
        """Queue the message; False if the stream is over, which it is if its queue stays full."""
        if self.closed.is_set():
            return False
        try:
            async with asyncio.timeout(DOWN_STALL_S):
                await self.queue.put(message)
        except TimeoutError:
            event(log, logging.WARNING, "stream_stalled", workers=len(self.workers), waited_s=DOWN_STALL_S)
            self.closed.set()
            return False
        return True


@dataclass(slots=True, eq=False)
class Trainer:
    """The trainer that a job's home gateway follows."""

    fork: int
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


class JobHub:
    """State shared by the handlers and the upstream client of one job in one gateway."""

    def __init__(self, job_id: str, region: str, frames: FrameSpool, weight_cache: WeightCache) -> None:
        self.job_id = job_id
        self.region = region
        self.frames = frames
        self.weight_cache = weight_cache
        self.up = Outgoing()
        self.log = weight_cache.log
        self.trainer: Trainer | None = None
        self.dropped = False
        self.job_is_done = False
        self.num_changes = 0
        self._route_of: dict[str, StreamRoute] = {}
        self._routes: list[StreamRoute] = []
        self._had_trainer = False
        self._changed = asyncio.Event()
        self.wants_signed = False  # of the anchor that is asked for: the trainer's own
        self.num_refused: dict[str, int] = {}  # records, by the name of the error
        self.anchor_requested = False  # and has not come
        self._coming = ""  # what the next closing closes
        self._for_copy: Assembler | None = None

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority whose certificates are believed here."""
        return self.weight_cache.authority_key

    # ---- rollout streams ------------------------------------------------------------------------------------------

    def open_route(self, peer_region: str) -> StreamRoute:
        """A stream from below has opened."""
        route = StreamRoute(peer_region)
        self._routes.append(route)
        return route

    async def take_up(self, route: StreamRoute, message: gateway_pb2.RolloutUp) -> None:
        """A message came from below: learn the route, pass it on. Raises: WireError for an impossible worker id."""
        if message.HasField("hello"):
            _check_worker_id(message.worker_id)
            previous = self._route_of.get(message.worker_id)
            if previous is not None and previous is not route:
                previous.workers.discard(message.worker_id)
                event(log, logging.WARNING, "worker_on_two_streams", job=self.job_id, worker=message.worker_id[:80])
                previous.closed.set()  # a worker that still speaks there must say hello again, or it is never heard
            self._route_of[message.worker_id] = route
            route.workers.add(message.worker_id)
        elif message.HasField("gone"):
            if message.worker_id not in route.workers:
                return  # it has gone over to another stream
            route.workers.discard(message.worker_id)
            del self._route_of[message.worker_id]
        elif message.HasField("gateway"):
            return
        elif message.HasField("frame") and not route.peer_region:
            if message.worker_id in route.workers:  # else it sends again over its newest stream
                await self._spool(route, message)
            return
        elif message.worker_id not in route.workers and not message.HasField("frame"):
            return  # nobody speaks for a worker that did not say hello here; frames of those that have gone come late
        await self._put_up(message)

    async def _spool(self, route: StreamRoute, message: gateway_pb2.RolloutUp) -> None:
        key, frame = keyed_frame_from_pb(message)
        if await self.frames.take(key, frame):
            self.up.put_frame(key)
        await route.took(key)

    async def close_route(self, route: StreamRoute, reason: str) -> None:
        """The stream has ended: its workers are gone until they say hello again."""
        self._routes.remove(route)
        gone_ids = sorted(route.workers)
        route.workers.clear()
        for worker_id in gone_ids:
            del self._route_of[worker_id]
        while not route.queue.empty():  # whoever waits for room there
            route.queue.get_nowait()
        for worker_id in gone_ids:
            if worker_id in self._route_of:
                continue  # it has said hello again meanwhile, which voids what it held
            gone = gateway_pb2.WorkerGone(reason=reason, connection_lost=bool(route.peer_region))
            await self._put_up(gateway_pb2.RolloutUp(worker_id=worker_id, gone=gone))

    async def send_down(self, message: gateway_pb2.RolloutDown) -> bool:
        """Towards the worker named in the message; False if nobody here knows it (it has gone, and was reported).

        What is committed goes to the region that keeps it instead, whether or not the worker is there.
        """
        if message.HasField("committed"):
            return await self._commit(message)
        self.job_is_done = self.job_is_done or message.HasField("finish")
        route = self._route_of.get(message.worker_id)
        if route is None:
            return False
        return await route.put(message)

    async def _commit(self, message: gateway_pb2.RolloutDown) -> bool:
        committed = message.committed
        if committed.region == self.region:
            self.frames.commit(keys_from_pb(message.worker_id, committed.epoch, committed.sequences))
            return True
        routes = [route for route in self._routes if route.peer_region == committed.region]
        return any([await route.put(message) for route in routes])

    # ---- the way up -----------------------------------------------------------------------------------------------

    def resend_uncommitted(self) -> None:
        """A new connection, or a new trainer: everything that is not committed goes again."""
        self.up.send_again(self.frames.pending)

    async def next_up(self) -> gateway_pb2.TrainerDown:
        """What to send next."""
        while True:
            item = await self.up.get()
            if not isinstance(item, FrameKey):
                return item
            if (message := self.frames.message(item)) is not None:
                return gateway_pb2.TrainerDown(up=message)

    def end_streams(self) -> None:
        """The way up is another or lost: end every stream below, and forget what waited for it; frames are kept."""
        for route in self._routes:
            route.workers.clear()
            route.closed.set()
        self._route_of.clear()
        self.anchor_requested = False
        self.up.clear()
        self._wake()

    def drop(self) -> None:
        """The job has no task here any more: end every stream below and every subscription."""
        self.dropped = True
        self.weight_cache.stop()
        self.end_streams()

    async def _put_up(self, message: gateway_pb2.RolloutUp) -> None:
        await self.up.put(gateway_pb2.TrainerDown(up=message))

    # ---- the trainer ----------------------------------------------------------------------------------------------

    def claim_trainer(self, fork: int) -> Trainer | None:
        """A trainer has come; None if one of the same or a newer fork is here already. It hears of every worker."""
        if self.trainer is not None:
            if self.trainer.fork >= fork:
                return None
            self.trainer.replaced.set()
        if self._had_trainer:
            self.end_streams()
        self._had_trainer = True
        self.trainer = Trainer(fork)
        self.resend_uncommitted()
        return self.trainer

    def release_trainer(self, trainer: Trainer) -> None:
        """This trainer has left."""
        if self.trainer is trainer:
            self.trainer = None

    # ---- publications ---------------------------------------------------------------------------------------------

    async def changed(self, seen: int) -> None:
        """Wait until `num_changes` is not what the caller saw before it looked."""
        while self.num_changes == seen:
            await self._changed.wait()

    async def append(self, record: PublicationRecord) -> None:
        """One more signed record from the way up; readers are woken. Raises: WireError, Fenced; nothing has changed."""
        try:
            completed = self.log.append(record)
        except (WireError, Fenced) as error:
            self._refuse(error)
            raise
        self.weight_cache.take(completed)
        if isinstance(record, Opening):
            self._coming = record.kind.value
        elif isinstance(record, Closing) and self._coming == PublicationKind.ANCHOR.value:
            self.anchor_requested = self.wants_signed = False
        self._wake()

    async def append_from_above(self, record: PublicationRecord) -> None:
        """The same from a gateway, which may also send what it has derived: that is for the copy here, not for readers.

        So is what is older than readers' newest, as long as the copy is missing or behind.
        Raises: WireError, Fenced, StorageError; the next subscription then asks for what the trainer signed.
        """
        if isinstance(record, Opening):
            is_for_copy = record.is_derived or self._is_repair(record)
            self._for_copy = (
                Assembler(self.weight_cache.trust, max_content_bytes=MAX_CONTENT_BYTES) if is_for_copy else None
            )
        if self._for_copy is None:
            await self.append(record)
            return
        try:
            completed = self._for_copy.feed(record)
            if completed is not None:
                self._for_copy = None
                await self._become(completed)
        except (WireError, Fenced) as error:
            self._refuse(error)
            raise

    def _is_repair(self, opening: Opening) -> bool:
        newest, policy = self.log.newest, opening.policy
        if newest is None or newest.fork != policy.fork:
            return False
        match opening.kind:
            case PublicationKind.ANCHOR:
                is_needed = self.weight_cache.have is None or self.weight_cache.is_behind or self.anchor_requested
                return policy < newest and is_needed
            case PublicationKind.DELTA:
                return policy <= newest and self.weight_cache.is_behind
            case _:
                return False

    async def _become(self, publication: Publication) -> None:
        opening = publication.opening
        if opening.kind is PublicationKind.DELTA and not opening.is_derived:
            self.weight_cache.take(publication)
            return
        try:
            await self.weight_cache.become(publication)
        except (WireError, Fenced, StorageError):
            self.wants_signed = True
            raise
        self.anchor_requested = False
        self._wake()

    def request_anchor(self, why: str, *, signed: bool) -> None:
        """Ask above for a full state, once until one comes. `signed`: none that a gateway made."""
        self.wants_signed = self.wants_signed or signed
        if not self.anchor_requested:
            self.anchor_requested = True
            event(log, logging.INFO, "anchor_requested", job=self.job_id, why=why, signed=signed)
            self.up.put_request(gateway_pb2.TrainerDown(anchor=gateway_pb2.AnchorRequest()))

    async def settled(self) -> None:
        """The keeper has done what there was: readers may have a way now, or the copy is gone."""
        self._wake()
        if self.weight_cache.lacks_copy(clock.monotonic_s()):
            self.request_anchor("the copy was refused", signed=False)

    def _refuse(self, error: PeriplusError) -> None:
        name = type(error).__name__
        self.num_refused[name] = self.num_refused.get(name, 0) + 1
        event(
            log,
            logging.WARNING,
            "publication_refused",
            job=self.job_id,
            error=name,
            count=self.num_refused[name],
            why=error,
        )

    def _wake(self) -> None:
        self.num_changes += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _check_worker_id(worker_id: str) -> None:
    if not 0 < len(worker_id.encode()) <= MAX_WORKER_ID_BYTES:
        raise WireError(
            f"a worker says hello as {worker_id[:80]!r}, an id of {len(worker_id.encode())} bytes; an id has 1 to "
            f"{MAX_WORKER_ID_BYTES}"
        )


def policy_of(request: gateway_pb2.SubscribeRequest) -> Policy | None:
    """What the reader has."""
    return Policy(request.have.fork, request.have.version) if request.has_state else None
