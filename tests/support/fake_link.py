"""A gateway with workers behind it, in the trainer's own process: leases are answered by a real engine."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.codec.registry import files_decoder
from periplus.convert import trajectory_frame_to_pb
from periplus.digest import payload_digest
from periplus.job import JobFile
from periplus.pb.v1 import gateway_pb2
from periplus.publication import Publication, PublicationKind
from periplus.record import Record
from rollout_worker.convert import lease_from_pb
from rollout_worker.episode import EpisodeSettings, sample_batch
from rollout_worker.model import load_bundle
from rollout_worker.queue import LeaseQueue
from rollout_worker.weights import EngineWeights
from trainer.gateway import GatewayLink


class FakeLink(GatewayLink):
    """Workers w0, w1, ... that share one engine; `seed` decides who answers when, each result twice."""

    def __init__(self, job: JobFile, folder: Path, num_workers: int, seed: int) -> None:
        self._job, self._folder, self._random = job, folder, random.Random(seed)
        self._queues = {f"w{number}": LeaseQueue() for number in range(num_workers)}
        self.on_message: Callable[[gateway_pb2.TrainerDown], Awaitable[None]]
        self._delivering: set[asyncio.Future[None]] = set()
        self._num_frames = 0
        self.acknowledged: list[int] = []
        self.before_each: Callable[[], object] = lambda: None
        self.on_record: Callable[[Record], None] = lambda _: None

    def send(self, message: gateway_pb2.RolloutDown) -> None:
        self.before_each()
        self.acknowledged += message.committed.sequences
        for lease in message.leases.leases:
            self._queues[message.worker_id].add(lease_from_pb(lease))
        asyncio.get_running_loop().call_soon(self._answer)

    def record(self, record: Record) -> None:
        self.before_each()
        self.on_record(record)

    async def publish(self, publication: Publication) -> None:
        self.before_each()
        if publication.opening.kind is PublicationKind.BUNDLE:
            files = files_decoder(publication.opening.codec)(publication.payload, max_content_bytes=1 << 30)
            self._loaded = load_bundle(files, self._folder, self._job, batch_rows=8)
            self.weights = EngineWeights(self._loaded.engine.tensors())
            hello = gateway_pb2.WorkerHello(region="far", bundle_digest=payload_digest(publication.payload))
            for worker_id in self._queues:
                self.up(worker_id=worker_id, hello=hello)
                self.up(worker_id=worker_id, capacity=gateway_pb2.Capacity(num_samples=16))
        elif self.weights.policy is None or publication.opening.policy > self.weights.policy:
            self.weights.apply(publication, 1 << 30)
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        policy = self.weights.policy
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
        asyncio.get_running_loop().call_soon(self._answer)

    def up(self, **message: Any) -> None:
        """Deliver a message as the gateway's stream does: in order, one after the other."""
        delivering = asyncio.ensure_future(
            _deliver(self.on_message(gateway_pb2.TrainerDown(up=gateway_pb2.RolloutUp(**message))))
        )
        self._delivering.add(delivering)
        delivering.add_done_callback(self._delivering.discard)


async def _deliver(delivery: Awaitable[None]) -> None:
    await delivery
