"""Composition root of a rollout worker: a subscription to weights, a lease stream, and one loop that generates.

The loop alternates between two steps that never overlap: bring the engine to the newest proven version
(weights/engine_updater.py), then generate one batch of leases that may start. So weights change only between batches,
every token of a batch is of one policy, and the weights that were proven are those that served. Both steps run in a
thread, and the streams go on meanwhile.

The worker talks only to its region's gateway (gateway.py). When a stream ends it connects and says hello again, for a
while (reconnection.py), and sends again what the gateway had not spooled (outbox.py). A sample that the environment or
the engine cannot produce is reported as failed, without loss of the others in its batch
(episodes/per_sample_fallback.py).
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import torch

from periplus import clock
from periplus.codec.registry import files_decoder
from periplus.errors import PeriplusError
from periplus.net.attempt import failure_of
from periplus.process.telemetry import event
from periplus.publication import Trust
from periplus.values.digest import payload_digest
from periplus.values.policy import Policy
from periplus.values.trajectory import Trajectory, TrajectoryLimits
from rollout_worker.config import WorkerConfig
from rollout_worker.engines.bundle import LoadedBundle, load_bundle
from rollout_worker.episodes.episode import EpisodeSettings, sample_batch
from rollout_worker.episodes.framing import frames_of
from rollout_worker.episodes.per_sample_fallback import FailedLease, only_valid, sample_with_fallback
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.gateway import WorkerHello, exchange_leases, subscribed
from rollout_worker.messages import (
    FinishReceived,
    FramesSpooled,
    GatewayMessage,
    LeasesReceived,
    LeasesRevoked,
    SamplingStarted,
    WorkerMessage,
)
from rollout_worker.outbox import Outbox
from rollout_worker.reconnection import RETRY_S, Outage
from rollout_worker.weights.compile import compile_decoder
from rollout_worker.weights.engine_updater import EngineUpdater
from rollout_worker.weights.engine_writer import EngineWeights
from rollout_worker.weights.incoming import ReceivedBundle
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.reader import WeightReader

log = logging.getLogger(__name__)

STARTED_DEADLINE_S = 5.0
"""Seconds that generation waits until the message that names its samples is written to the gateway.

A sample may kill this process, and its death counts as an attempt at the samples that are known to have started.
Writing takes about a millisecond, unless the gateway is away. Chosen by hand.
"""

MAX_EMPTY_BATCHES = 3
"""Number of batches in a row without any sample after which the process ends: then not the problems but the process is
at fault. Chosen by hand.
"""


@dataclass(frozen=True, slots=True)
class _Serving:
    """What a worker serves with once the job's bundle has come: the engine, its updater, tokenizer and environment."""

    loaded: LoadedBundle
    updater: EngineUpdater


class Worker:
    """State of one worker process. `epoch` tells this start of the process from earlier ones."""

    def __init__(self, config: WorkerConfig, epoch: int) -> None:
        self._config = config
        self._job = config.job
        self._worker_id = config.task.task_id
        self._epoch = epoch
        self._queue = LeaseQueue()
        self._out = Outbox[WorkerMessage](self._worker_id, epoch)
        self._num_empty_batches = 0
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._bundle_ready = asyncio.Event()
        self._bundle_digest = b""
        self._weights = ProvenWeights()
        trust = Trust(config.authority_key, self._job_id)
        subscribe = partial(subscribed, config.task.gateway, self._job_id, self._worker_id)
        self._reader = WeightReader(self._weights, trust, subscribe, self._out.put, self._wake.set)

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
        outage = Outage()
        while True:
            opened_s = clock.monotonic_s()
            why = await failure_of(stream())
            if outage.broke(opened_s=opened_s, now_s=clock.monotonic_s()):
                raise why
            event(log, logging.WARNING, "gateway_stream_lost", worker=self._worker_id, why=why)
            await asyncio.sleep(RETRY_S)

    async def _leases(self) -> None:
        await self._bundle_ready.wait()  # without the bundle no lease can be worked on
        # Leases end with the stream over which they came. The ledger grants new ones after this hello.
        self._queue.clear()
        hello = WorkerHello(
            job_id=self._job_id,
            worker_id=self._worker_id,
            region=self._config.task.region,
            epoch=self._epoch,
            bundle_digest=self._bundle_digest,
            num_samples=self._config.capacity,
        )
        await exchange_leases(self._config.task.gateway, hello, self._out, self._on_message)

    def _on_message(self, message: GatewayMessage) -> None:
        match message:
            case LeasesReceived(leases):
                for lease in leases:
                    self._queue.add(lease)
            case LeasesRevoked(lease_ids):
                self._queue.revoke(lease_ids)
            case FramesSpooled(epoch, sequences):
                self._out.acknowledge(epoch, sequences)
            case FinishReceived(why):
                event(log, logging.INFO, "finished", why=why)
                self._finished.set()
            case _:
                assert_never(message)
        self._wake.set()

    # ---- work -----------------------------------------------------------------------------------------------------

    async def _work(self, scratch: Path) -> None:
        serving: _Serving | None = None
        while True:
            await self._wake.wait()
            # Clear the event before looking, so that what comes during a long batch wakes the loop again.
            self._wake.clear()
            if serving is None and self._reader.bundle is not None:
                serving = await self._load(self._reader.bundle, scratch)
            if serving is None:
                self._weights.raise_if_hopeless()
                continue
            # Always bring the engine to the newest version first, so a batch is as fresh as it can be.
            await serving.updater.swap()
            policy = serving.updater.policy
            if policy is not None and self._queue.has_startable(policy):
                await self._sample(serving.loaded, policy)
                # More leases may wait than one batch takes, and no message need come to say so.
                self._wake.set()

    async def _load(self, bundle: ReceivedBundle, scratch: Path) -> _Serving:
        payload = b"".join(bundle.parts)
        files = files_decoder(bundle.opening.codec)(payload, max_content_bytes=bundle.opening.content_bytes)
        loaded = await asyncio.to_thread(load_bundle, files, scratch, self._job, self._config.batch_rows)
        # The hello carries the digest, so it is set before the event that lets the lease stream open.
        self._bundle_digest = payload_digest(payload)
        self._bundle_ready.set()
        event(log, logging.INFO, "bundle_loaded", files=len(files))
        updater = EngineUpdater(
            EngineWeights(loaded.engine, self._job.seed),
            self._weights,
            self._out.put,
            check_every_versions=self._job.network.check_engine_every_versions,
        )
        return _Serving(loaded, updater)

    async def _sample(self, loaded: LoadedBundle, policy: Policy) -> None:
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
        await self._out.put(SamplingStarted(tuple(lease.lease_id for lease in leases), policy))
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
        for frame in frames_of(valid, zstd_level=self._job.network.zstd_level):
            await self._out.put_frame(frame)
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
            await self._out.put(each)

    @property
    def _job_id(self) -> str:
        return self._config.task.job_id


async def run(config: WorkerConfig) -> None:
    """Serve one task until its job is done. Raises: see `Worker.run`."""
    torch.set_num_threads(config.task.num_threads)
    # Microseconds since 1970: each start of a worker has an epoch of its own, so its frames never share a key.
    await Worker(config, epoch=int(clock.unix_s() * 1e6)).run()
