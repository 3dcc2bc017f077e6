"""Composition root of a rollout worker: a subscription to weights, a lease stream, and one engine.

Four tasks run beside each other once the job's bundle has come. The reader (weights/reader.py) proves versions in host
memory. The updater (weights/engine_updater.py) brings the engine to the newest one while it samples. The sampler
(episodes/sampler.py) turns leases into trajectories, one request each. The lease stream (gateway.py) carries leases and
results. Updater and sampler share what the engine may serve as (weights/serving.py), and nothing else. A fifth task
runs the processes of the job's reward functions, if it has some (rewards/).

The worker talks only to its region's gateway. When a stream ends it connects and says hello again, for a while
(reconnection.py), and sends again what the gateway had not spooled (outbox.py). A lease that cannot be served is
reported as failed and costs no other one. An engine that died ends the process: its agent starts another one, and its
leases move because the stream ends.
"""

import asyncio
import dataclasses
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import assert_never

import torch

from periplus import clock
from periplus.codec.registry import files_decoder
from periplus.errors import Denied
from periplus.job.reward_code import CODE_FOLDER
from periplus.net.attempt import failure_of
from periplus.net.rpc import own_gateway
from periplus.process.device_turns import DeviceTurns
from periplus.process.telemetry import event
from periplus.publication import Trust
from periplus.values.digest import payload_digest
from periplus.values.trajectory import TrajectoryLimits
from rollout_worker.config import LEASES_PER_SLOT, WorkerConfig
from rollout_worker.engines.bundle import LoadedBundle, load_bundle
from rollout_worker.engines.engine import Engine, OnSwap
from rollout_worker.engines.paced_engine import PacedEngine
from rollout_worker.environments.building import build_source
from rollout_worker.environments.pool import EnvironmentPool
from rollout_worker.episodes.busy_engine import BusyEngine
from rollout_worker.episodes.draw_settings import evaluation_draws, training_draws
from rollout_worker.episodes.episode import EpisodeDesk, EpisodeSettings
from rollout_worker.episodes.queue import LeaseQueue
from rollout_worker.episodes.sampler import Sampler
from rollout_worker.episodes.sharing_engine import SharingEngine
from rollout_worker.episodes.turns import TurnDriver
from rollout_worker.gateway import WorkerHello, exchange_leases, subscribed
from rollout_worker.messages import (
    DoubtReceived,
    FinishReceived,
    FramesSpooled,
    GatewayMessage,
    LeasesReceived,
    LeasesRevoked,
    WorkerMessage,
)
from rollout_worker.outbox import Outbox
from rollout_worker.reconnection import RETRY_S, Outage
from rollout_worker.rewards.building import RewardPlace, build_scorer
from rollout_worker.rewards.scorer import MAX_FAILURES_IN_A_ROW, RewardScorer
from rollout_worker.weights.compile import compile_decoder
from rollout_worker.weights.engine_updater import EngineUpdater, SwapSettings
from rollout_worker.weights.incoming import ReceivedBundle, ReceivedRecord
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.reader import WeightReader
from rollout_worker.weights.serving import Serving
from rollout_worker.weights.subscription import SubscriptionRequest
from rollout_worker.weights.version_report import VersionReport

log = logging.getLogger(__name__)


class Worker:
    """State of one worker process. `epoch` tells this start of the process from earlier ones."""

    def __init__(self, config: WorkerConfig, epoch: int) -> None:
        self._config = config
        self._job = config.job
        self._worker_id = config.task.task_id
        self._epoch = epoch
        self._queue = LeaseQueue()
        self._out = Outbox[WorkerMessage](self._worker_id, epoch)
        self._news = asyncio.Event()
        self._finished = asyncio.Event()
        self._loaded = asyncio.Event()
        self._bundle_digest = b""
        self._num_slots = 0
        self._sampler: Sampler | None = None
        self._updater: EngineUpdater | None = None
        self._weights = ProvenWeights()
        trust = Trust(config.authority_key, self._job_id)
        self._reader = WeightReader(self._weights, trust, self._subscribe, self._out.put, self._on_news)

    async def run(self) -> None:
        """Work until the trainer says that the job is done.

        Raises: Denied if the region does not run the job's own code; FunctionRefused if a reward function cannot be
        loaded, or has only ever failed; Unreachable when the gateway stays away; EngineDied; PeriplusError when the
        engine or the weights are broken for good.
        """
        if (pace := self._config.task.pace) is not None:
            event(log, logging.INFO, "emulated_device", **dataclasses.asdict(pace))
        with tempfile.TemporaryDirectory(prefix="periplus-bundle-") as scratch:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(compile_decoder))  # while the bundle is on its way
                running = [
                    tasks.create_task(self._keep(self._reader.subscription)),
                    tasks.create_task(self._keep(self._leases)),
                    tasks.create_task(self._serve(Path(scratch))),
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
        await self._loaded.wait()  # without the bundle no lease can be worked on
        # Leases end with the stream over which they came. The ledger grants new ones after this hello.
        self._queue.clear()
        hello = WorkerHello(
            job_id=self._job_id,
            worker_id=self._worker_id,
            region=self._config.task.region,
            epoch=self._epoch,
            bundle_digest=self._bundle_digest,
            num_samples=LEASES_PER_SLOT * self._num_slots,
        )
        task = self._config.task
        secured = own_gateway(task.identity, task.region)  # read anew: the agent renews it
        await exchange_leases(task.gateway, task.job_secret, hello, self._out, self._on_message, secured)

    def _subscribe(
        self, request: SubscriptionRequest, again: asyncio.Event
    ) -> AbstractAsyncContextManager[AsyncIterator[ReceivedRecord]]:
        task = self._config.task
        secured = own_gateway(task.identity, task.region)
        return subscribed(task.gateway, task.job_secret, self._job_id, self._worker_id, request, again, secured)

    async def _on_message(self, message: GatewayMessage) -> None:
        assert self._sampler is not None, "the stream opens only when the bundle is loaded"
        match message:
            case LeasesReceived(leases):
                for lease in leases:
                    self._queue.add(lease)
                self._sampler.wake()
            case LeasesRevoked(lease_ids, still_wanted):
                await self._sampler.revoke(lease_ids, still_wanted=still_wanted)
            case FramesSpooled(epoch, sequences):
                self._out.acknowledge(epoch, sequences)
            case FinishReceived(why):
                event(log, logging.INFO, "finished", why=why)
                self._finished.set()
            case DoubtReceived(why, starts_anew):
                if self._updater is not None:
                    self._updater.doubt(why, starts_anew=starts_anew)
            case _:
                assert_never(message)

    def _on_news(self) -> None:
        self._news.set()
        if self._updater is not None:
            self._updater.wake()

    def _check_policy(self) -> None:
        task = self._config.task
        if self._job.has_own_code and not task.allows_own_code:
            raise Denied(
                f"the job has code of its user's own, and region {task.region} runs none; its operator "
                "allows it by starting the agent with --allow-code (docs/rewards.md)"
            )

    # ---- work -----------------------------------------------------------------------------------------------------

    async def _serve(self, scratch: Path) -> None:
        self._check_policy()
        loaded = await self._load(await self._bundle(), scratch)
        engine, busy = self._engine(loaded)
        try:
            desk = EpisodeDesk(loaded.encoder, loaded.environment, self._episode_settings(loaded))
            serving, environment_lock = Serving(), asyncio.Lock()
            place = RewardPlace(
                code_folder=scratch / CODE_FOLDER,
                num_threads=self._config.task.num_threads,
                may_run_unsandboxed=self._config.task.allows_unsandboxed,
                most_first_failures=min(MAX_FAILURES_IN_A_ROW, self._config.step_share),
            )
            scorer = build_scorer(self._job.reward, loaded.environment, environment_lock, place)
            section = self._job.environment
            source = build_source(
                section, loaded.environment, scratch / CODE_FOLDER, may_stay=self._config.task.allows_unsandboxed
            )
            turns = None
            if section is not None and source is not None:
                turns = TurnDriver(
                    engine,
                    serving,
                    source,
                    loaded.environment,
                    loaded.encoder,
                    environment_lock,
                    max_turns=section.max_turns,
                )
            sampler = Sampler(
                engine,
                desk,
                scorer,
                environment_lock,
                self._queue,
                serving,
                self._out,
                zstd_level=self._job.network.zstd_level,
                turns=turns,
            )
            updates = SwapSettings(
                on_swap=OnSwap(self._job.engine.on_swap),
                check_every_versions=self._job.network.check_engine_every_versions,
                probe_seed=self._job.seed,
                relative_rounding=loaded.relative_rounding,
            )

            async def report(found: VersionReport) -> None:
                await self._out.put(dataclasses.replace(found, generation_s=busy.busy_s))

            updater = EngineUpdater(engine, self._weights, serving, report, updates)
            self._sampler, self._updater = sampler, updater
            self._num_slots = loaded.engine.num_slots
            self._loaded.set()
            updater.wake()  # versions may have come with the bundle
            async with asyncio.TaskGroup() as tasks:
                if isinstance(engine, SharingEngine):
                    tasks.create_task(engine.run())
                tasks.create_task(updater.run())
                tasks.create_task(sampler.run())
                if isinstance(scorer, RewardScorer):
                    tasks.create_task(scorer.run())
                if isinstance(source, EnvironmentPool):
                    tasks.create_task(source.run())
        finally:
            await loaded.engine.close()

    def _engine(self, loaded: LoadedBundle) -> tuple[Engine, BusyEngine]:
        """Return the engine that all parts use, and what counts its work."""
        busy = BusyEngine(loaded.engine)
        if not self._config.task.by_turns:
            return busy, busy
        return SharingEngine(busy, DeviceTurns(Path(self._config.task.run_dir))), busy

    async def _bundle(self) -> ReceivedBundle:
        while self._reader.bundle is None:
            await self._news.wait()
            self._news.clear()
            self._weights.raise_if_hopeless()
        return self._reader.bundle

    async def _load(self, bundle: ReceivedBundle, scratch: Path) -> LoadedBundle:
        payload = b"".join(bundle.parts)
        files = files_decoder(bundle.opening.codec)(payload, max_content_bytes=bundle.opening.content_bytes)
        loaded = await load_bundle(files, scratch, self._job, by_turns=self._config.task.by_turns)
        if (pace := self._config.task.pace) is not None:
            loaded = dataclasses.replace(loaded, engine=PacedEngine(loaded.engine, pace))
        self._bundle_digest = payload_digest(payload)
        event(log, logging.INFO, "bundle_loaded", files=len(files))
        return loaded

    def _episode_settings(self, loaded: LoadedBundle) -> EpisodeSettings:
        sampling = self._job.sampling
        return EpisodeSettings(
            seed=self._job.seed,
            training=training_draws(sampling, loaded.encoder.decoder),
            evaluation=evaluation_draws(sampling, self._job.eval.sampling, loaded.encoder.decoder),
            worker_id=self._worker_id,
            limits=TrajectoryLimits(
                vocab_size=loaded.engine.vocab_size,
                max_prompt_tokens=sampling.prompt_tokens,
                max_completion_tokens=sampling.max_new_tokens,
            ),
            sets=tuple(
                evaluation_draws(sampling, each.sampling, loaded.encoder.decoder)
                for each in self._job.eval.sets.values()
            ),
        )

    @property
    def _job_id(self) -> str:
        return self._config.task.job_id


async def run(config: WorkerConfig) -> None:
    """Serve one task until its job is done. Raises: see `Worker.run`."""
    torch.set_num_threads(config.task.num_threads)
    # Microseconds since 1970: each start of a worker has an epoch of its own, so its frames never share a key.
    await Worker(config, epoch=int(clock.unix_s() * 1e6)).run()
