"""Hub of one job in one gateway: it knows which worker is on which stream, and queues what waits to be sent.

Gateways form a tree. Its root is the *home* gateway, in the trainer's region; each remote gateway is connected to it. A
hub has rollout streams *below* it: one of each local worker and, in the home gateway, one of each remote gateway, which
carries all of that region's workers. *Up* leads to the trainer in the home region, and to the home gateway elsewhere.

Queues are bounded, and bounds are back-pressure: who puts into a full queue waits, and then gRPC stops reading from the
peer that caused it. There is one queue upwards (outgoing.py) and one queue downwards per stream. A stream below whose
queue stays full for `DOWN_STALL_S` is ended. Publications are one log with a cursor per reader. Completed ones go to
the weight cache (weights/), which derives what readers need beyond the log.

A frame of a local worker is taken into the spool (frames.py), acknowledged to the worker, sent up, and kept until the
trainer says that its ledger has it. Frames from other regions are only passed on, because their own gateways keep them.
So a frame always has exactly one owner that keeps it, and everybody else may die. Invariants:

- A worker id has one route: the newest stream that said hello for it.
- When a stream ends, each worker routed over it is reported gone, once.
- When the connection up is lost, or another trainer takes over, all streams below end too. Then workers say hello
  again, remote gateways send uncommitted frames again, and nothing counts as delivered that was not.
- A new connection up begins with every frame of the spool.
- What waits for a stream is written before the stream ends, because its last message may say that the job is done.
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
"""Messages that wait for one stream below. The ledger grants no more leases than workers asked for, so the queue hardly
ever fills. Chosen by hand.
"""

DOWN_STALL_S = 20.0
"""Seconds that a full queue may hold up the messages of all other workers; then its stream is ended.

It is longer than a slow link between two regions needs for `DOWN_QUEUE_MESSAGES` small messages. Chosen by hand.
"""

TAKEN_FRAMES = 1024
"""Limit of frames of one stream that are taken and not yet acknowledged. An honest worker has at most 64 unacknowledged
frames; a worker that keeps sending without reading its acknowledgements is no longer read. Chosen by hand.
"""


@dataclass(slots=True, eq=False)
class StreamRoute:
    """One stream below: its queue of messages, and the workers that are reached over it.

    `peer_region` is the remote gateway's region, empty for a local worker. `closed` is set when the stream must end.
    `taken` has the keys of frames that wait to be acknowledged.
    """

    peer_region: str
    queue: asyncio.Queue[gateway_pb2.RolloutDown] = field(default_factory=lambda: asyncio.Queue(DOWN_QUEUE_MESSAGES))
    workers: set[str] = field(default_factory=set)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[FrameKey] = field(default_factory=list)
    has_taken: asyncio.Event = field(default_factory=asyncio.Event)
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    async def took(self, key: FrameKey) -> None:
        """Note that a frame is to be acknowledged to its worker once it is durable.

        Wait while `TAKEN_FRAMES` of them are open.
        """
        while len(self.taken) >= TAKEN_FRAMES:
            self.has_room.clear()
            await self.has_room.wait()
        self.taken.append(key)
        self.has_taken.set()

    async def next_taken(self) -> Sequence[FrameKey]:
        """Return the keys of all frames taken since the last call, waiting for at least one."""
        await self.has_taken.wait()
        self.has_taken.clear()
        keys, self.taken = self.taken, []
        self.has_room.set()
        return keys

    async def put(self, message: gateway_pb2.RolloutDown) -> bool:
        """Queue a message. Return False if the stream is over, also because its queue stays full for `DOWN_STALL_S`."""
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
    """The trainer that a job's home gateway follows. `replaced` is set when one of a newer fork takes over."""

    fork: int
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


class JobHub:
    """State of one job in one gateway, shared by the RPC handlers and the upstream connection.

    `num_changes` grows with every change that may interest a reader of publications (see `changed`).
    """

    def __init__(self, job_id: str, region: str, frames: FrameSpool, weight_cache: WeightCache) -> None:
        self.job_id = job_id
        self.region = region
        self.frames = frames
        self.weight_cache = weight_cache
        self.up: Outgoing[gateway_pb2.TrainerDown] = Outgoing()
        self.log = weight_cache.log
        self.trainer: Trainer | None = None
        self.dropped = False
        self.job_is_done = False
        self.num_changes = 0
        self._route_of: dict[str, StreamRoute] = {}
        self._routes: list[StreamRoute] = []
        self._had_trainer = False
        self._changed = asyncio.Event()
        self.wants_signed = False  # the requested anchor must be the trainer's
        self.num_refused: dict[str, int] = {}  # refused records, by the name of the error
        self.anchor_requested = False  # True until the anchor has come
        self._coming = ""  # kind of the publication whose opening came last
        self._for_copy: Assembler | None = None  # collects a publication that goes only into the copy

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, whose certificates are accepted here."""
        return self.weight_cache.authority_key

    # ---- rollout streams ------------------------------------------------------------------------------------------

    def open_route(self, peer_region: str) -> StreamRoute:
        """Register a new stream from below. `peer_region` is empty for a local worker."""
        route = StreamRoute(peer_region)
        self._routes.append(route)
        return route

    async def take_up(self, route: StreamRoute, message: gateway_pb2.RolloutUp) -> None:
        """Handle a message from below: update routes, spool a local worker's frame, or pass the message on.

        A message of a worker that is not routed over this stream is dropped, except for frames of remote regions.
        Raises: WireError for an invalid worker id.
        """
        if message.HasField("hello"):
            _check_worker_id(message.worker_id)
            previous = self._route_of.get(message.worker_id)
            if previous is not None and previous is not route:
                previous.workers.discard(message.worker_id)
                event(log, logging.WARNING, "worker_on_two_streams", job=self.job_id, worker=message.worker_id[:80])
                previous.closed.set()  # a worker that still sends there must say hello again
            self._route_of[message.worker_id] = route
            route.workers.add(message.worker_id)
        elif message.HasField("gone"):
            if message.worker_id not in route.workers:
                return  # it has moved to another stream
            route.workers.discard(message.worker_id)
            del self._route_of[message.worker_id]
        elif message.HasField("gateway"):
            return
        elif message.HasField("frame") and not route.peer_region:
            if message.worker_id in route.workers:  # else it sends the frame again over its newest stream
                await self._spool(route, message)
            return
        elif message.worker_id not in route.workers and not message.HasField("frame"):
            return  # the worker did not say hello here; only frames may come after their worker has gone
        await self._put_up(message)

    async def _spool(self, route: StreamRoute, message: gateway_pb2.RolloutUp) -> None:
        key, frame = keyed_frame_from_pb(message)
        if await self.frames.take(key, frame):
            self.up.put_frame(key)
        await route.took(key)

    async def close_route(self, route: StreamRoute, reason: str) -> None:
        """Remove a stream that has ended, and report its workers gone until they say hello again."""
        self._routes.remove(route)
        gone_ids = sorted(route.workers)
        route.workers.clear()
        for worker_id in gone_ids:
            del self._route_of[worker_id]
        while not route.queue.empty():  # free those who wait for room in it
            route.queue.get_nowait()
        for worker_id in gone_ids:
            if worker_id in self._route_of:
                continue  # it has said hello again meanwhile, which voids its old leases
            gone = gateway_pb2.WorkerGone(reason=reason, connection_lost=bool(route.peer_region))
            await self._put_up(gateway_pb2.RolloutUp(worker_id=worker_id, gone=gone))

    async def send_down(self, message: gateway_pb2.RolloutDown) -> bool:
        """Send a message to its worker. Return False if the worker is unknown here; then it was already reported gone.

        A message about committed frames goes to the gateway that keeps them instead, whether or not the worker is
        there.
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

    # ---- the connection up ----------------------------------------------------------------------------------------

    def resend_uncommitted(self) -> None:
        """Queue all uncommitted frames again, because there is a new connection up or a new trainer."""
        self.up.send_again(self.frames.pending)

    async def next_up(self) -> gateway_pb2.TrainerDown:
        """Wait for the next message to send up, and return it."""
        while True:
            item = await self.up.get()
            if not isinstance(item, FrameKey):
                return item
            if (message := self.frames.message(item)) is not None:
                return gateway_pb2.TrainerDown(up=message)

    def end_streams(self) -> None:
        """End every stream below and clear the queue up, because the connection up was lost or replaced.

        The spool keeps its frames.
        """
        for route in self._routes:
            route.workers.clear()
            route.closed.set()
        self._route_of.clear()
        self.anchor_requested = False
        self.up.clear()
        self._wake()

    def drop(self) -> None:
        """End every stream below and every subscription, because the job has no task here any more."""
        self.dropped = True
        self.weight_cache.stop()
        self.end_streams()

    async def _put_up(self, message: gateway_pb2.RolloutUp) -> None:
        await self.up.put(gateway_pb2.TrainerDown(up=message))

    # ---- the trainer ----------------------------------------------------------------------------------------------

    def claim_trainer(self, fork: int) -> Trainer | None:
        """Follow a new trainer. Return None if one of the same or a newer fork is already followed.

        All streams below end if there was a trainer before, so that the new trainer hears a hello of every worker.
        """
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
        """Stop following this trainer, which has left."""
        if self.trainer is trainer:
            self.trainer = None

    # ---- publications ---------------------------------------------------------------------------------------------

    async def changed(self, seen: int) -> None:
        """Wait until `num_changes` differs from `seen`, the value that the caller read before it looked for records."""
        while self.num_changes == seen:
            await self._changed.wait()

    async def append(self, record: PublicationRecord) -> None:
        """Append a signed record from above to the log, and wake readers.

        Raises: WireError, Fenced; then nothing has changed.
        """
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
        """Take a record that the gateway above sends. Signed records go to the log and from there to readers.

        Two kinds of publications go only into the weight cache's copy: derived ones, and signed ones that repair a copy
        that is missing or behind while readers are newer already. If the copy cannot be brought to such a state, the
        next subscription asks for signed publications only. Raises: WireError, Fenced, StorageError.
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
        # Readers have `newest`. What is not newer can only help a copy that is missing or behind.
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
        """Request a full state from above, unless a request is open.

        With `signed`, accept only one that the trainer signed.
        """
        self.wants_signed = self.wants_signed or signed
        if not self.anchor_requested:
            self.anchor_requested = True
            event(log, logging.INFO, "anchor_requested", job=self.job_id, why=why, signed=signed)
            self.up.put_request(gateway_pb2.TrainerDown(anchor=gateway_pb2.AnchorRequest()))

    async def settled(self) -> None:
        """Wake readers when the weight cache has no work left, and request a full state if it lacks a copy."""
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
    """Return the policy whose weights the reader has, or None."""
    return Policy(request.have.fork, request.have.version) if request.has_state else None
