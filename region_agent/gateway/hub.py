"""Hub of one job in one gateway: the queues between workers, remote gateways and the trainer, and what they share.

Gateways form a tree. Its root is the *home* gateway, in the trainer's region; each remote gateway is connected to it. A
hub has rollout streams *below* it: one of each local worker and, in the home gateway, one of each remote gateway, which
carries all of that region's workers. *Up* leads to the trainer in the home region, and to the home gateway elsewhere.

The hub is the shell around three parts that decide:

    routes             which worker is reached over which stream, and what a message from below leads to
    trainer_slot       which trainer the home gateway follows
    publication_feed   what publications from above lead to, and who is woken

It owns the queues. They are bounded, and bounds are back-pressure: who puts into a full queue waits, and then gRPC
stops reading from the peer that caused it. There is one queue upwards (outgoing.py) and one queue downwards per stream
(rollout_stream.py). A stream below whose queue stays full for `DOWN_STALL_S` is ended.

A frame of a local worker is taken into the spool (frames.py), acknowledged to the worker, sent up, and kept until the
trainer says that its ledger has it. Frames from other regions are only passed on, because their own gateways keep them.
So a frame always has exactly one owner that keeps it, and everybody else may die. Invariants:

- When the connection up is lost, or a trainer follows another or connects again, all streams below end too. Then
  workers say hello again, remote gateways send uncommitted frames again, and nothing counts as delivered that was not.
- A new connection up begins with every frame of the spool.
- What waits for a stream is written before the stream ends.
- Messages go up in the order in which the routes forwarded them, also where they had to wait for room.
"""

import asyncio
import logging
from typing import assert_never

from periplus.process.telemetry import event
from periplus.values.transport_keys import FrameKey, KeyedFrame
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.messages import (
    AnchorRequest,
    FromAbove,
    FromBelow,
    LocalCommit,
    RelayedCommit,
    RelayedDown,
    ToAbove,
    ToBelow,
)
from region_agent.gateway.outgoing import Outgoing
from region_agent.gateway.publication_feed import PublicationFeed
from region_agent.gateway.rollout_stream import RolloutStream
from region_agent.gateway.routes import EndStream, ForwardUp, Routes, SpoolFrame, StreamId
from region_agent.gateway.trainer_slot import FollowedTrainer, TrainerSlot
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)

DOWN_STALL_S = 20.0
"""Seconds that a full queue may hold up the messages of all other workers; then its stream is ended.

It is longer than a slow link between two regions needs for the queue's 64 small messages. Chosen by hand.
"""


class JobHub:
    """State of one job in one gateway, shared by the RPC handlers and the upstream connection."""

    def __init__(self, job_id: str, region: str, frames: FrameSpool, weight_cache: WeightCache, *, secret: str) -> None:
        self.job_id = job_id
        self.secret = secret
        self.region = region
        self.frames = frames
        self.weight_cache = weight_cache
        self.up: Outgoing[ToAbove] = Outgoing()
        self.trainer_slot = TrainerSlot(job_id)
        self.feed = PublicationFeed(weight_cache, self._send_anchor_request)
        self._routes = Routes()
        self._streams: dict[StreamId, RolloutStream] = {}
        self._job_is_done = False
        self._is_ending = False

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, whose certificates are accepted here."""
        return self.weight_cache.authority_key

    @property
    def job_is_done(self) -> bool:
        """Whether the trainer has told a worker that the job is done."""
        return self._job_is_done

    # ---- rollout streams ------------------------------------------------------------------------------------------

    def open_stream(self, peer_region: str) -> RolloutStream:
        """Register a new stream from below. `peer_region` is empty for a local worker."""
        stream = RolloutStream(self._routes.open(peer_region))
        self._streams[stream.stream_id] = stream
        return stream

    async def take_up(self, stream: RolloutStream, message: FromBelow) -> None:
        """Handle a message from below: update routes, spool a local worker's frame, or pass the message on.

        Raises: WireError for an invalid worker id, StorageError.
        """
        for effect in self._routes.take(stream.stream_id, message):
            match effect:
                case ForwardUp(forwarded):
                    await self.up.put(forwarded)
                case SpoolFrame(kept):
                    await self._spool(stream, kept)
                case EndStream(ended, worker_id):
                    event(log, logging.WARNING, "worker_on_two_streams", job=self.job_id, worker=worker_id[:80])
                    self._streams[ended].end()
                case _:
                    assert_never(effect)

    async def _spool(self, stream: RolloutStream, kept: KeyedFrame) -> None:
        if await self.frames.take(kept.key, kept.frame):
            self.up.put_frame(kept.key)
        await stream.took(kept.key)

    def end(self) -> None:
        """Note that the agent ends."""
        self._is_ending = True

    async def close_stream(self, stream: RolloutStream, reason: str) -> None:
        """Remove a stream that has ended, and report its workers gone until they say hello again.

        After `end` nothing is reported: the streams end with the agent, and their workers may be well.
        """
        lost = () if self._is_ending else self._routes.close(stream.stream_id, reason)
        del self._streams[stream.stream_id]
        stream.discard()
        for report in lost:
            if self._routes.stream_of(report.worker_id) is None:  # else a new hello has voided its old leases meanwhile
                await self.up.put(report)

    async def send_down(self, message: FromAbove) -> bool:
        """Send a message to its worker. Return False if the worker is unknown here; then it was already reported gone.

        A message about committed frames goes to the gateway that keeps them instead, whether or not the worker is
        there.
        """
        match message:
            case LocalCommit(keys):
                self.frames.commit(keys)
                return True
            case RelayedCommit(region=region):
                stream_ids = self._routes.streams_to(region)
                # A list, so that every stream of the region gets it, not only the first that takes it: an old one may
                # not have ended yet.
                return any([await self._put_down(stream_id, message) for stream_id in stream_ids])
            case RelayedDown(worker_id=worker_id, is_finish=is_finish):
                # Noted even if the worker is unknown here: the job's files may be removed then.
                self._job_is_done = self._job_is_done or is_finish
                stream_id = self._routes.stream_of(worker_id)
                return stream_id is not None and await self._put_down(stream_id, message)
            case _:
                assert_never(message)

    async def _put_down(self, stream_id: StreamId, message: ToBelow) -> bool:
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended:
            return False
        try:
            # A stream whose queue stays full would hold up the messages to all others.
            async with asyncio.timeout(DOWN_STALL_S):
                await stream.put(message)
        except TimeoutError:
            num_workers = self._routes.num_workers(stream_id)
            event(log, logging.WARNING, "stream_stalled", workers=num_workers, waited_s=DOWN_STALL_S)
            stream.end()
            return False
        return True

    # ---- the connection up ----------------------------------------------------------------------------------------

    def resend_uncommitted(self) -> None:
        """Queue all uncommitted frames again, because there is a new connection up or a new trainer."""
        self.up.send_again(self.frames.pending)

    async def next_up(self) -> ToAbove:
        """Wait for the next message to send up, and return it."""
        while True:
            item = await self.up.get()
            if not isinstance(item, FrameKey):
                return item
            # The frame may have been committed since its key was queued.
            if (frame := self.frames.read(item)) is not None:
                return frame

    def end_streams(self) -> None:
        """End every stream below and clear the queue up, because the connection up was lost or replaced.

        The spool keeps its frames.
        """
        # Routes first: what still comes over a stream that ends is dropped, and no worker is reported as lost.
        self._routes.forget_workers()
        for stream in self._streams.values():
            stream.end()
        self.up.clear()
        self.feed.connection_lost()

    def drop(self) -> None:
        """End every stream below and every subscription, because the job has no task here any more."""
        self.feed.close()
        self.end_streams()

    def _send_anchor_request(self) -> None:
        self.up.put_request(AnchorRequest())

    # ---- the trainer ----------------------------------------------------------------------------------------------

    def claim_trainer(self, fork: int, peer: str) -> FollowedTrainer:
        """Follow a trainer on the connection `peer`: a new one, or one that connects again.

        All streams below end if there was a trainer before, so that this one hears a hello of every worker.
        Raises: Conflict if a trainer of the same fork is already followed, Fenced if one of a newer fork is.
        """
        trainer = self.trainer_slot.claim(fork, peer)
        # A new trainer knows no worker, and must not hear of one before its hello.
        if not trainer.is_first:
            self.end_streams()
        self.resend_uncommitted()
        return trainer
