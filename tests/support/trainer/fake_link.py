"""A gateway with workers behind it, in the trainer's own process: leases are answered by a real engine."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.codec.registry import files_decoder
from periplus.codec.weights.decoder import decode
from periplus.job.job_file import JobFile
from periplus.net.convert import trajectory_frame_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.publication import (
    Assembler,
    Certificate,
    Publication,
    PublicationKind,
    PublicationRecord,
    PublisherKey,
    Trust,
)
from periplus.values.digest import payload_digest, state_digest
from periplus.values.policy import Policy
from periplus.values.record import Record
from periplus.values.weight_state import WeightState
from rollout_worker.convert import lease_from_pb
from rollout_worker.engines.bundle import load_bundle
from rollout_worker.episodes.episode import EpisodeSettings, sample_batch
from rollout_worker.episodes.queue import LeaseQueue
from rollout_worker.weights.engine_writer import EngineWeights
from tests.support.keys import AUTHORITY
from trainer.intake.convert import message_from_pb, message_to_pb
from trainer.intake.gateway import GatewayLink
from trainer.intake.messages import DownMessage, UpMessage

JOB = "job-1"
MAX_BYTES = 1 << 30


class FakeLink(GatewayLink):
    """Workers w0, w1, ... that share one engine and send each result twice; `seed` decides who answers when.

    The trainer that signs with `key` is certified.
    """

    def __init__(self, job: JobFile, folder: Path, num_workers: int, seed: int, fork: int = 0) -> None:
        self._job, self._folder, self._random = job, folder, random.Random(seed)
        self._fork, self.key = fork, PublisherKey.generate()
        self._assembler = Assembler(Trust(AUTHORITY.public_key, JOB), max_content_bytes=MAX_BYTES)
        self._state: WeightState | None = None
        self.policy: Policy | None = None
        self.published: list[Publication] = []
        self._queues = {f"w{number}": LeaseQueue() for number in range(num_workers)}
        self.on_message: Callable[[UpMessage], Awaitable[None]]
        self._delivering: set[asyncio.Future[None]] = set()
        self._num_frames = 0
        self.wan_bytes_counted: int | None = None
        self.acknowledged: list[int] = []
        self.before_each: Callable[[], object] = lambda: None
        self.on_record: Callable[[Record], None] = lambda _: None

    def send(self, message: DownMessage) -> None:
        self.before_each()
        down = message_to_pb(message)
        self.acknowledged += down.committed.sequences
        for lease in down.leases.leases:
            self._queues[down.worker_id].add(lease_from_pb(lease))
        asyncio.get_running_loop().call_soon(self._reply)

    def record(self, record: Record) -> None:
        self.before_each()
        self.on_record(record)

    async def certificate(self, stop: asyncio.Event) -> Certificate | None:
        return AUTHORITY.certify(JOB, self._fork, self.key.public_key)

    async def wan_bytes(self) -> int | None:
        return self.wan_bytes_counted

    async def publish(self, record: PublicationRecord) -> None:
        self.before_each()
        publication = self._assembler.feed(record)
        if publication is not None:
            self.published.append(publication)
            self._take(publication)

    def _take(self, publication: Publication) -> None:
        opening, parts = publication.opening, publication.payload_parts
        if opening.kind is PublicationKind.BUNDLE:
            payload = b"".join(parts)
            files = files_decoder(opening.codec)(payload, max_content_bytes=MAX_BYTES)
            self._loaded = load_bundle(files, self._folder, self._job, batch_rows=8)
            self._weights = EngineWeights(self._loaded.engine, self._job.seed)
            hello = gateway_pb2.WorkerHello(region="far", bundle_digest=payload_digest(payload))
            for worker_id in self._queues:
                self.up(worker_id=worker_id, hello=hello)
                self.up(worker_id=worker_id, capacity=gateway_pb2.Capacity(num_samples=16))
        elif self.policy is None or opening.policy > self.policy:
            assert opening.base is None or opening.base == self.policy
            base = None if opening.base is None else self._state
            self._state = decode(base, parts, max_content_bytes=opening.content_bytes)
            assert state_digest(self._state) == publication.closing.state_digest
            self._weights.write_all(self._state)
            finding = self._weights.check(publication.closing.state_digest, publication.closing.probe_logprobs)
            assert finding.is_sound, finding.why
            self.policy = opening.policy
            asyncio.get_running_loop().call_soon(self._reply)

    def _reply(self) -> None:
        policy = self.policy
        able = [name for name, queue in self._queues.items() if policy is not None and queue.has_startable(policy)]
        if not able or policy is None:
            return
        worker_id, loaded = self._random.choice(able), self._loaded
        settings = EpisodeSettings(seed=self._job.seed, temperature=1.0, max_new_tokens=1, worker_id=worker_id)
        leases = self._queues[worker_id].take(policy, self._random.randint(1, 8))
        sampled = sample_batch(leases, loaded.engine, loaded.tokenizer, loaded.environment, policy, settings)
        for result in self._random.sample([*sampled, *sampled], k=2 * len(sampled)):
            frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode([result]))
            message = trajectory_frame_to_pb(frame)
            message.epoch, message.sequence = 1, self._num_frames
            self._num_frames += 1
            self.up(worker_id=worker_id, frame=message)
        asyncio.get_running_loop().call_soon(self._reply)

    def up(self, **message: Any) -> None:
        """Deliver a message as the gateway's stream does: in order, one after the other."""
        delivering = asyncio.ensure_future(self.brings(gateway_pb2.RolloutUp(**message)))
        self._delivering.add(delivering)
        delivering.add_done_callback(self._delivering.discard)

    async def brings(self, up: gateway_pb2.RolloutUp) -> None:
        """A message of a worker as it comes off the wire."""
        message = message_from_pb(gateway_pb2.TrainerDown(up=up))
        if message is not None:
            await self.on_message(message)
