"""A gateway with workers behind it, in the trainer's own process: leases are answered by a real engine."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.codec.registry import files_decoder
from periplus.codec.weights.decoder import decode
from periplus.environment.job_environment import prompt_encoder, worker_environment
from periplus.job.job_file import JobFile
from periplus.job.reward_functions import label_of
from periplus.net.convert import keyed_frame_to_pb
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
from periplus.values.probe_prompts import PROBE_LIMITS_FLOAT32, probe_difference, probe_prompts
from periplus.values.record import Record
from periplus.values.trajectory import Trajectory, TrajectoryLimits
from periplus.values.transport_keys import FrameKey
from periplus.values.weight_state import WeightState
from rollout_worker.convert import lease_from_pb
from rollout_worker.engines.engine import SampleRequest
from rollout_worker.episodes.episode import DrawSettings, EpisodeDesk, EpisodeSettings, FinishedEpisode
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.episodes.scoring import SampleScore
from tests.support.engines.direct import DirectEngine
from tests.support.keys import AUTHORITY
from tests.support.publication.signed import payload_parts
from trainer.intake.convert import message_from_pb, message_to_pb
from trainer.intake.gateway import GatewayLink
from trainer.intake.messages import DownMessage, UpMessage
from trainer.publishing import reference_logprobs

JOB = "job-1"
MAX_BYTES = 1 << 30


class FakeLink(GatewayLink):
    """Workers w0, w1, ... that share one engine and send each result twice; `seed` decides who answers when.

    The trainer that signs with `key` is certified.
    """

    def __init__(self, job: JobFile, folder: Path, num_workers: int, seed: int, fork: int = 0) -> None:
        self._job, self._folder, self._random = job, folder, random.Random(seed)
        self._fork, self.key = fork, PublisherKey.generate()
        self._model: Any = None
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
        opening, parts = publication.opening, payload_parts(publication)
        if opening.kind is PublicationKind.BUNDLE:
            payload = b"".join(parts)
            files = files_decoder(opening.codec)(payload, max_content_bytes=MAX_BYTES)
            self._load(files)
            hello = gateway_pb2.WorkerHello(region="far", bundle_digest=payload_digest(payload))
            for worker_id in self._queues:
                self.up(worker_id=worker_id, hello=hello)
                self.up(worker_id=worker_id, capacity=gateway_pb2.Capacity(num_samples=16))
        elif self.policy is None or opening.policy > self.policy:
            assert opening.base is None or opening.base == self.policy
            base = None if opening.base is None else self._state
            self._state = decode(base, parts, max_content_bytes=opening.content_bytes)
            assert state_digest(self._state) == publication.closing.state_digest
            self._engine.write(self._state, opening.policy)
            assert self._engine.digest() == publication.closing.state_digest
            found = reference_logprobs.logprobs(self._model, probe_prompts(self._job.seed, self._engine.vocab_size))
            difference = probe_difference(publication.closing.probe_logprobs, found.reshape(-1).tolist())
            assert not publication.closing.probe_logprobs or difference.mean <= PROBE_LIMITS_FLOAT32.first_nats
            self.policy = opening.policy
            asyncio.get_running_loop().call_soon(self._reply)

    def _reply(self) -> None:
        policy = self.policy
        able = [name for name, queue in self._queues.items() if policy is not None and queue.has_startable(policy)]
        if not able or policy is None:
            return
        worker_id = self._random.choice(able)
        leases = self._queues[worker_id].take(policy, self._random.randint(1, 8), is_idle=True)
        sampled = self._sample(worker_id, leases)
        for result in self._random.sample([*sampled, *sampled], k=2 * len(sampled)):
            frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, trajectory_codec.encode([result]))
            key = FrameKey(worker_id=worker_id, epoch=1, sequence=self._num_frames)
            self._num_frames += 1
            self.up(worker_id=worker_id, frame=keyed_frame_to_pb(key, frame, "").frame)
        asyncio.get_running_loop().call_soon(self._reply)

    def _load(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            (self._folder / name).write_bytes(content)
        self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        config = AutoConfig.from_pretrained(self._folder, local_files_only=True)
        self._environment = worker_environment(self._job, self._folder)
        self._model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
        self._engine = DirectEngine(
            self._model,
            end_ids=(self._tokenizer.eos_token_id,),
            pad_id=self._tokenizer.pad_token_id,
            prompt_tokens=self._job.sampling.prompt_tokens,
            max_new_tokens=1,
        )

    def _sample(self, worker_id: str, leases: Sequence[QueuedLease]) -> tuple[Trajectory, ...]:
        sampling = self._job.sampling
        limits = TrajectoryLimits(
            vocab_size=self._engine.vocab_size, max_prompt_tokens=sampling.prompt_tokens, max_completion_tokens=1
        )
        settings = EpisodeSettings(
            seed=self._job.seed,
            training=DrawSettings(temperature=1.0, max_new_tokens=1),
            evaluation=DrawSettings(temperature=0.0, max_new_tokens=1),
            worker_id=worker_id,
            limits=limits,
        )
        desk = EpisodeDesk(prompt_encoder(self._job, self._tokenizer, None), self._environment, settings)
        requests = [each for each in desk.requests(leases) if isinstance(each, SampleRequest)]
        assert len(requests) == len(leases)
        finished = [
            FinishedEpisode(lease=lease, prompt_ids=request.prompt_ids, completion=completion, generation_s=0.0)
            for lease, request, completion in zip(leases, requests, self._engine.generate(requests), strict=True)
        ]
        texts = [desk.answer(each).text for each in finished]
        label = label_of(self._job.reward.entries[0])
        values = [float(not text.strip()) for text in texts]  # as the reward functions of tiny jobs say
        scores = [SampleScore(reward=value, parts={label: value}) for value in values]
        sampled = tuple(desk.trajectory(each, score) for each, score in zip(finished, scores, strict=True))
        for lease in leases:
            self._queues[worker_id].end(lease)
        return sampled

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
