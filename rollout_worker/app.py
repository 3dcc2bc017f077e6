"""Composition root of a rollout worker: a subscription to weights, a lease stream, and one loop that generates.

The loop alternates between two steps that never overlap: bring the engine to the newest proven version
(weights/reader.py), then generate one batch of leases that may start. So weights change only between batches, every
token of a batch is of one policy, and the weights that were proven are those that served. Both steps run in a thread,
and the streams go on meanwhile.

The worker talks only to its region's gateway. When a stream ends it connects and says hello again, for up to
`GATEWAY_TIMEOUT_S`, and sends again what the gateway had not spooled (outbox.py). A sample that the environment or the
engine cannot produce is reported as failed, without loss of the others in its batch (episodes/per_sample_fallback.py).
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc.aio
import torch

from periplus import clock
from periplus.codec import trajectory as trajectory_codec
from periplus.codec.frame import CodecId, Frame
from periplus.codec.registry import files_decoder
from periplus.errors import PeriplusError, Unreachable
from periplus.net import rpc
from periplus.net.attempt import failure_of
from periplus.net.convert import keyed_frame_to_pb, policy_to_pb
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from periplus.values.digest import payload_digest
from periplus.values.trajectory import Trajectory, TrajectoryLimits
from periplus.values.transport_keys import KeyedFrame
from rollout_worker.config import WorkerConfig
from rollout_worker.engines.model import LoadedBundle, load_bundle
from rollout_worker.episodes.episode import EpisodeSettings, sample_batch
from rollout_worker.episodes.per_sample_fallback import FailedLease, only_valid, sample_with_fallback
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.outbox import Outbox
from rollout_worker.weights.compile import compile_decoder
from rollout_worker.weights.convert import VersionReport, lease_from_pb, proof_to_pb
from rollout_worker.weights.engine_writer import EngineWeights
from rollout_worker.weights.incoming import ReceivedBundle
from rollout_worker.weights.reader import ReaderSettings, WeightReader

log = logging.getLogger(__name__)

GATEWAY_TIMEOUT_S = 60.0
"""Seconds that a worker keeps trying to reach its gateway. An agent's restart takes less; a person would not wait
longer. Chosen by hand.
"""

RETRY_S = 0.5
"""Seconds before a lost stream is opened again. Chosen by hand."""

STARTED_DEADLINE_S = 5.0
"""Seconds that generation waits until the message that names its samples is written to the gateway.

A sample may kill this process, and its death counts as an attempt at the samples that are known to have started.
Writing takes about a millisecond, unless the gateway is away. Chosen by hand.
"""

FRAME_TOKENS = 200_000
"""Largest number of tokens in one frame, unless a single result has more.

A completion token takes 9 bytes and a prompt token 4, so a frame stays below half of rpc.MAX_MESSAGE_BYTES. So does the
longest single result that a job may ask for.
"""

MAX_EMPTY_BATCHES = 3
"""Number of batches in a row without any sample after which the process ends: then not the problems but the process is
at fault. Chosen by hand.
"""


class Worker:
    """State of one worker process. `epoch` tells this start of the process from earlier ones."""

    def __init__(self, config: WorkerConfig, epoch: int) -> None:
        self._config = config
        self._job = config.job
        self._worker_id = config.task.task_id
        self._epoch = epoch
        self._queue = LeaseQueue()
        self._out: Outbox[gateway_pb2.RolloutUp] = Outbox(self._worker_id, epoch)
        self._num_empty_batches = 0
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._bundle_ready = asyncio.Event()
        self._loaded: LoadedBundle | None = None
        self._bundle_digest = b""
        settings = ReaderSettings(
            job_id=self._job_id,
            reader_id=self._worker_id,
            gateway=config.task.gateway,
            authority_key=config.authority_key,
            check_every_versions=self._job.network.check_engine_every_versions,
        )
        self._reader = WeightReader(settings, self._report_proof, self._wake.set)

    async def run(self) -> None:
        """Work until the trainer says that the job is done.

        Raises: Unreachable when the gateway stays away; PeriplusError when the engine or the weights are broken for
        good.
        """
        with tempfile.TemporaryDirectory(prefix="periplus-bundle-") as scratch:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(compile_decoder))  # while the bundle is on its way
                running = [
                    tasks.create_task(self._keep(self._reader.subscription)),
                    tasks.create_task(self._keep(self._leases)),
                    tasks.create_task(self._work(Path(scratch))),
                ]
                await self._finished.wait()
                for task in running:
                    task.cancel()

    # ---- streams --------------------------------------------------------------------------------------------------

    async def _keep(self, stream: Callable[[], Coroutine[None, None, None]]) -> None:
        lost_since_s: float | None = None
        while True:
            started_s = clock.monotonic_s()
            why = await failure_of(stream())
            now_s = clock.monotonic_s()
            # A stream that lasted for more than 5 s was not part of the outage before it.
            lost_since_s = now_s if lost_since_s is None or now_s - started_s > 5.0 else lost_since_s
            if now_s - lost_since_s > GATEWAY_TIMEOUT_S:
                raise why
            event(log, logging.WARNING, "gateway_stream_lost", worker=self._worker_id, why=why)
            await asyncio.sleep(RETRY_S)

    async def _leases(self) -> None:
        await self._bundle_ready.wait()  # without the bundle no lease can be worked on
        gateway = self._config.task.gateway
        self._queue.clear()
        async with rpc.channel(gateway) as channel:
            with rpc.remote_errors(gateway):
                call = gateway_pb2_grpc.GatewayStub(channel).Rollout()
                hello = gateway_pb2.WorkerHello(
                    job_id=self._job_id,
                    region=self._config.task.region,
                    bundle_digest=self._bundle_digest,
                    epoch=self._epoch,
                )
                capacity = gateway_pb2.Capacity(num_samples=self._config.capacity)
                await call.write(gateway_pb2.RolloutUp(worker_id=self._worker_id, hello=hello))
                await call.write(gateway_pb2.RolloutUp(worker_id=self._worker_id, capacity=capacity))
                self._out.begin()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._write_out(call))
                    async for message in call:
                        self._take_down(message)
                    raise Unreachable(f"the gateway at {gateway} ended the lease stream")

    async def _write_out(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        while True:
            item = await self._out.next()
            await call.write(keyed_frame_to_pb(item.key, item.frame, "") if isinstance(item, KeyedFrame) else item)

    def _take_down(self, message: gateway_pb2.RolloutDown) -> None:
        if message.HasField("finish"):
            event(log, logging.INFO, "finished", why=message.finish.reason)
            self._finished.set()
        elif message.HasField("spooled"):
            self._out.acknowledge(message.spooled.epoch, message.spooled.sequences)
        elif message.HasField("revoked"):
            self._queue.revoke(frozenset(message.revoked.lease_ids))
        for lease in message.leases.leases:
            self._queue.add(lease_from_pb(lease))
        self._wake.set()

    # ---- work -----------------------------------------------------------------------------------------------------

    async def _work(self, scratch: Path) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._loaded is None and self._reader.bundle is not None:
                await self._load(self._reader.bundle, scratch)
            await self._reader.swap()
            if self._queue.has_startable(self._reader.policy):
                await self._sample()
                self._wake.set()

    async def _load(self, bundle: ReceivedBundle, scratch: Path) -> None:
        payload = b"".join(bundle.parts)
        files = files_decoder(bundle.opening.codec)(payload, max_content_bytes=bundle.opening.content_bytes)
        self._loaded = await asyncio.to_thread(load_bundle, files, scratch, self._job, self._config.batch_rows)
        self._reader.attach(EngineWeights(self._loaded.engine, self._job.seed))
        self._bundle_digest = payload_digest(payload)
        self._bundle_ready.set()
        event(log, logging.INFO, "bundle_loaded", files=len(files))

    async def _report_proof(self, proof: VersionReport) -> None:
        await self._out.put(gateway_pb2.RolloutUp(worker_id=self._worker_id, proof=proof_to_pb(proof)))

    async def _sample(self) -> None:
        loaded, policy = self._loaded, self._reader.policy
        assert loaded is not None
        assert policy is not None
        leases = self._queue.take(policy, self._config.batch_rows)
        settings = EpisodeSettings(
            seed=self._job.seed,
            temperature=self._job.sampling.temperature,
            max_new_tokens=self._job.sampling.max_new_tokens,
            worker_id=self._worker_id,
        )

        def sample(some: Sequence[QueuedLease]) -> Sequence[Trajectory]:
            return sample_batch(some, loaded.engine, loaded.tokenizer, loaded.environment, policy, settings)

        # Tell the gateway which samples start, before one of them can kill this process.
        started = gateway_pb2.LeasesStarted(lease_ids=[lease.lease_id for lease in leases], policy=policy_to_pb(policy))
        await self._out.put(gateway_pb2.RolloutUp(worker_id=self._worker_id, started=started))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STARTED_DEADLINE_S):
                await self._out.written()
        started_s = clock.monotonic_s()
        sampled, failed = await asyncio.to_thread(sample_with_fallback, leases, sample)
        generation_s = clock.monotonic_s() - started_s
        timed = [replace(trajectory, generation_s=generation_s) for trajectory in sampled]
        # Send the valid results in frames, and report the other leases.
        valid, invalid = only_valid(leases, timed, self._limits(loaded))
        failed = (*failed, *invalid)
        for part in in_frames(valid, FRAME_TOKENS):
            payload = trajectory_codec.encode(part, level=self._job.network.zstd_level)
            await self._out.put_frame(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload))
        await self._report(failed)
        self._num_empty_batches = 0 if valid else self._num_empty_batches + 1
        if self._num_empty_batches >= MAX_EMPTY_BATCHES:
            raise PeriplusError(
                f"{self._num_empty_batches} batches in a row yielded no sample (the last failure: {failed[-1].why}); "
                "the engine or the environment of this worker is broken; see its log"
            )

    def _limits(self, loaded: LoadedBundle) -> TrajectoryLimits:
        sampling = self._job.sampling
        return TrajectoryLimits(
            vocab_size=loaded.engine.vocab_size,
            max_prompt_tokens=sampling.prompt_tokens,
            max_completion_tokens=sampling.max_new_tokens,
        )

    async def _report(self, failed: Sequence[FailedLease]) -> None:
        for each in failed:
            event(log, logging.ERROR, "sample_failed", lease=each.lease.lease_id, item=each.lease.item, why=each.why)
            message = gateway_pb2.SampleFailed(
                lease_id=each.lease.lease_id, why=each.why, group=each.lease.group, sample=each.lease.sample
            )
            await self._out.put(gateway_pb2.RolloutUp(worker_id=self._worker_id, failed=message))

    @property
    def _job_id(self) -> str:
        return self._config.task.job_id


def in_frames(trajectories: Sequence[Trajectory], max_tokens: int) -> Iterator[Sequence[Trajectory]]:
    """Yield the results in order, in parts of at most `max_tokens` tokens.

    A result with more tokens is a part of its own.
    """
    part: list[Trajectory] = []
    num_tokens = 0
    for trajectory in trajectories:
        size = len(trajectory.prompt_ids) + len(trajectory.completion_ids)
        if part and num_tokens + size > max_tokens:
            yield part
            part, num_tokens = [], 0
        part.append(trajectory)
        num_tokens += size
    if part:
        yield part


async def run(config: WorkerConfig) -> None:
    """Serve one task until its job is done. Raises: see `Worker.run`."""
    torch.set_num_threads(config.task.num_threads)
    await Worker(config, epoch=int(clock.unix_s() * 1e6)).run()
