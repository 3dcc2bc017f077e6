"""Builds the parts of a running trainer and connects them.

The parts are the audit's journal, the store of frames, the ledger and its service, the run recorder, the publisher of
weights, the checkpointer and the training loop. Only the journal and the store are opened here.

A restored run is continued here too. The ledger gets the lineage of the new fork and the groups that were open. Frames
of earlier forks that were kept and not consumed are replayed into it before any worker's message is handled. A run that
goes on with other problems drops the open groups and replays nothing, since both are of the problems before.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import yaml
from blake3 import blake3

from periplus import clock
from periplus.audit import records as audit
from periplus.audit.journal import AuditJournal, read_lines
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.correctness import correctness_of
from periplus.job.samples.texts import TOKENIZER_FILE
from periplus.process.device_turns import DeviceTurns
from periplus.publication import PublisherKey
from periplus.spool.format import Durability, Position
from periplus.spool.spool import Spool
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.record import Record, RecordKind
from periplus.values.replica_url import NO_REPLICA
from periplus.values.trajectory import TrajectoryLimits
from periplus.view.terms import planned_metrics
from trainer.checkpointing import checkpoint
from trainer.checkpointing.checkpointer import Checkpointer, replayable
from trainer.checkpointing.replicas import Replicator
from trainer.checks.doubted_workers import DoubtedWorkers
from trainer.checks.rescoring import Rescorer
from trainer.checks.reward_checks import GuardedEnvironment, RewardChecks
from trainer.checks.sample_checks import SampleChecks, draw_seed
from trainer.checks.stopped_workers import StoppedWorkers
from trainer.config import TrainerConfig
from trainer.data.dataset import training_sources
from trainer.data.mixture import item_order
from trainer.data.problem_digests import digest_of_all
from trainer.disk_wait import DiskWait
from trainer.distributed.process_group import device_of_rank
from trainer.intake.committed import KeptTrajectory
from trainer.intake.frame_retention import Retention
from trainer.intake.frames import FrameIntake, SampleCheck
from trainer.intake.gateway import GatewayLink
from trainer.intake.leased_prompts import LeasedPrompts
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.ledger_service import LedgerService
from trainer.intake.messages import AnchorWanted, GatewayFound, HelloReceived, ProofReceived, UpMessage
from trainer.intake.reward_bounds import RewardBounds
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.ledger.machine import Ledger
from trainer.ledger.values import LedgerLimits
from trainer.loop import TrainingLoop
from trainer.publishing.publisher import Publisher
from trainer.recipe import adapter_settings
from trainer.reporting.evaluator import Evaluator
from trainer.reporting.run_recorder import RunRecorder
from trainer.reporting.sample_recorder import SampleRecorder
from trainer.reporting.silence import SilenceWatch
from trainer.setup import Prepared
from trainer.tracking.feeds import Trackers

STORE_BYTES = 1 << 50
"""Bound of the store of frames in bytes, so large that it never applies. Frames that no checkpoint covers must be kept,
and the others are bounded by intake/frame_retention.py."""

INTAKE_BATCHES = 2
"""Room for completion tokens of early leases, beside the groups that the staleness bound allows, in batches of the
largest size. Chosen by hand."""


class _Say(Protocol):
    """Sends a record to the job's watchers; it is about the present policy if none is given."""

    def __call__(self, kind: RecordKind, text: str, policy: Policy | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts of a trainer that its process runs: they handle messages, publish weights and train."""

    ledger_service: LedgerService
    publisher: Publisher
    loop: TrainingLoop
    checks: SampleChecks
    stopped: StoppedWorkers
    replicator: Replicator | None

    async def on_message(self, message: UpMessage) -> None:
        """Handle one message of the gateway. The ledger hears it first, then whoever else it concerns."""
        match await self.ledger_service.on_message(message):
            case AnchorWanted():
                self.publisher.want_anchor()
            case GatewayFound():
                self.publisher.begin_anew()
            case ProofReceived(worker_id, proof):
                # The fault that the trainer has found itself is none of the weights.
                if not self.checks.doubted.proven(worker_id, proof):
                    self.publisher.on_proof(worker_id, proof)
            case HelloReceived() as hello:
                self.checks.doubted.joined(hello.worker_id, hello.epoch)
                self.stopped.joined(hello.worker_id)
            case None:
                pass


@contextmanager
def assembled(
    config: TrainerConfig,
    prepared: Prepared,
    link: GatewayLink,
    key: PublisherKey,
    run: RunDirectory,
    disk: DiskWait,
    trackers: Trackers,
    now: Callable[[], float],
    started_s: float,
) -> Iterator[Running]:
    """Open the audit's journal and the store of frames, build all parts, and close both on leaving.

    `now` is a monotonic clock on which the trainer's process started at `started_s`.
    Raises: Conflict if another trainer writes the run; CorruptSpool, StorageError; on leaving also what closing the
    journal raises, such as DiskFull.
    """
    job, job_id, durability = config.job, config.task.job_id, Durability(config.job.network.durability)
    with ExitStack() as opened:
        audit_journal = opened.enter_context(AuditJournal.open(run.audit))
        checkpoint.sweep(run.checkpoints)  # safe, since the journal's lock shows that no other process writes here
        # The journal's lock comes first: no two trainers write into one store.
        store = Spool.open(run.trajectories, durability=durability, max_bytes=STORE_BYTES)
        opened.callback(store.close)
        limits = limits_of(job, prepared)
        # What comes in: frames to the store, results to the ledger, decisions to the journal.
        journal = WriteAheadJournal(audit_journal, link.send, disk, clock.unix_s)
        driver = _driver_of(config, prepared)
        checks_of_samples, reward_checks = _checks_of_rewards(job, prepared)
        intake = FrameIntake(store, limits, disk, checks_of_samples)
        counts, silence = prepared.counts.values(), SilenceWatch(job)
        aims: dict[str, Any] = {"num_steps": job.steps, "bound": job.staleness, "problems": counts, "silence": silence}
        aims["planned"] = planned_metrics(json.loads(config.task.plan_json or "{}"))
        recorder = RunRecorder(run, link, driver, disk, trackers, prepared.progress, now, started_s, **aims)
        stopped = StoppedWorkers(reward_checks, driver, journal, recorder, link.send)
        settings: dict[str, Any] = {"syncs": durability is Durability.MACHINE, "now": now, "unix_s": clock.unix_s}
        say = _says(link, driver, now, started_s)
        settings |= {"wrong_groups": stopped.wrong_groups, "say": partial(say, RecordKind.PHASE)}
        ledger_service = LedgerService(driver, intake, journal, link.send, **settings)
        # What goes out: records, publications and checkpoints.
        tokenizer = prepared.model_files.get(TOKENIZER_FILE)
        samples = SampleRecorder(run.samples, driver.regions, tokenizer, disk)
        checks = _sample_checks(config, prepared, link, now)
        publisher = Publisher(
            job_id,
            prepared.leader.weights,
            prepared.policy,
            key=key,
            link=link,
            journal=journal,
            recorder=recorder,
            prompts_RP=probe_prompts(job.seed, limits.vocab_size),
            num_threads=config.task.num_threads,
            now=now,
            keep=checks.published,
        )
        checkpointer = _checkpointer(config, prepared, run, (store, samples), journal, driver, disk, say)
        # The fork's first line precedes every line that the replay leads to.
        _begin(config, prepared, run, journal)
        ledger_service.replay(_frames_to_replay(store, limits, prepared))
        loop = TrainingLoop(
            config,
            prepared,
            link=link,
            driver=driver,
            ledger_service=ledger_service,
            journal=journal,
            checkpointer=checkpointer,
            publisher=publisher,
            recorder=recorder,
            evaluator=Evaluator(job, prepared.dataset, ledger_service, recorder, samples, now),
            samples=samples,
            checks=checks,
            reward_checks=reward_checks,
            stopped_workers=stopped,
            turns=DeviceTurns(run.root) if config.task.by_turns else None,
            now=now,
        )
        serving: dict[str, Any] = {"publisher": publisher, "replicator": checkpointer.replicator}
        yield Running(ledger_service=ledger_service, loop=loop, checks=checks, stopped=stopped, **serving)


def _says(link: GatewayLink, driver: LedgerDriver, now: Callable[[], float], started_s: float) -> "_Say":
    def say(kind: RecordKind, text: str, policy: Policy | None = None) -> None:
        link.record(Record(kind=kind, policy=policy or driver.policy, time_s=now() - started_s, text=text))

    return say


def _checkpointer(
    config: TrainerConfig,
    prepared: Prepared,
    run: RunDirectory,
    kept: tuple[Spool, SampleRecorder],
    journal: WriteAheadJournal,
    driver: LedgerDriver,
    disk: DiskWait,
    say: _Say,
) -> Checkpointer:
    job, job_id, (store, samples) = config.job, config.task.job_id, kept

    def tell(policy: Policy, url: str, why: str) -> None:
        if url:
            say(RecordKind.REPLICA, url, policy)
        else:
            say(RecordKind.NOTICE, f"checkpoint {policy} has no replica yet: {why}")

    base = job.checkpoint.replicate
    return Checkpointer(
        job_id,
        run,
        prepared,
        keep=job.checkpoint.keep,
        journal=journal,
        trims=(store.trim, samples.trim),
        driver=driver,
        disk=disk,
        replicator=None if base == NO_REPLICA else Replicator(base, job_id, run, store, tell),
    )


def _driver_of(config: TrainerConfig, prepared: Prepared) -> LedgerDriver:
    job = config.job
    compared = {"outcome_of": correctness_of(job).outcome} if job.train.filter_groups else {}
    return LedgerDriver(
        ledger_of(job, prepared),
        Retention(job.output.trajectories_mib << 20),
        bundle_digest=prepared.bundle.digest,
        home_region=config.task.region,
        **compared,
    )


def _checks_of_rewards(job: JobFile, prepared: Prepared) -> tuple[list[SampleCheck], RewardChecks]:
    """Return the checks of prompts and rewards in each sample, and those that compute some rewards again."""
    environment, checks = GuardedEnvironment(prepared.dataset.environment), list[SampleCheck]()
    # An environment of several turns opens its episodes and gives its rewards as it likes.
    if job.environment is None or not job.environment.has_turns:
        checks.append(LeasedPrompts(environment, prepared.encoder).check)
        if (bounds := job.reward.bounds) is not None:
            checks.append(RewardBounds(*bounds).check)
    return checks, RewardChecks(job, environment, prepared.encoder.decoder)


def _sample_checks(
    config: TrainerConfig, prepared: Prepared, link: GatewayLink, now: Callable[[], float]
) -> SampleChecks:
    job = config.job
    adapters = adapter_settings(job)
    device = device_of_rank(0, 1)
    rescorer = Rescorer(prepared.model.config, device, None if adapters is None else adapters.scale)
    seed = draw_seed(job, config.task.plan_json)
    return SampleChecks(rescorer, DoubtedWorkers(link.send), bound=job.staleness, now=now, draw_seed=seed)


def limits_of(job: JobFile, prepared: Prepared) -> TrajectoryLimits:
    """Return the largest sizes of a trajectory that a job and its model allow."""
    return TrajectoryLimits(
        vocab_size=prepared.model.config.vocab_size,
        max_prompt_tokens=job.sampling.prompt_tokens,
        max_completion_tokens=job.sampling.max_new_tokens,
    )


def config_text(job: JobFile) -> str:
    """Return the job as text of config.yaml, which is written at the start and whose hash the audit holds."""
    return str(yaml.safe_dump(json.loads(job.to_json()), sort_keys=False))


def ledger_of(job: JobFile, prepared: Prepared) -> Ledger:
    """Return the ledger of a job, at the job's start or where the restored checkpoint left it."""
    # Completion tokens of one batch if every sample has the largest size.
    batch_tokens = job.train.groups_per_step * job.algorithm.group_size * job.sampling.max_new_tokens
    limits = LedgerLimits(
        groups_per_step=job.train.groups_per_step,
        group_size=job.algorithm.group_size,
        bound=job.staleness,
        steps=job.steps,
        lease_timeout_s=job.failure.lease_timeout_s,
        max_hold_s=job.failure.max_hold_s if job.failure.on_overrun == "hold" else 0.0,
        max_attempts=job.failure.max_sample_attempts,
        max_sample_tokens=job.sampling.max_new_tokens,
        intake_tokens=batch_tokens * (job.staleness + 1 + INTAKE_BATCHES),
        depth=job.train.pipeline_depth,
        filter_uniform=job.train.filter_groups,
        hedge=job.failure.hedge,
    )
    restored = prepared.restored
    return Ledger(
        limits,
        prepared.lineage,
        prepared.policy,
        _no_items if job.evaluates_alone else item_order(training_sources(prepared.dataset, job), job.seed),
        next_group=restored.next_group if restored else 0,
        open_groups=restored.open_groups if restored and not prepared.has_other_problems else (),
    )


def _no_items(group: int) -> int:
    raise AssertionError(f"group {group} of a job that evaluates alone")


def _frames_to_replay(
    store: Spool, limits: TrajectoryLimits, prepared: Prepared
) -> Iterator[tuple[Position, int, Sequence[KeptTrajectory]]]:
    for position, num_bytes, kept in replayable(store, limits):
        yield position, num_bytes, () if prepared.has_other_problems else kept


def _begin(config: TrainerConfig, prepared: Prepared, run: RunDirectory, journal: WriteAheadJournal) -> None:
    """Write the audit's first line of this fork.

    If the trainer that saved the restored checkpoint died before it wrote the checkpoint's line, that line comes first.
    The training loop flushes both before it does anything else.
    """
    job, restored = config.job, prepared.restored
    known = (
        restored if run.audit.stat().st_size else None
    )  # an empty audit: the parent's history is in the directory of another run
    if known is not None and not any(known.digest.hex().encode() in line for line in read_lines(run.audit)):
        journal.write(audit.CheckpointEntry(policy=known.policy, manifest=known.digest, covers=known.audit_line))
    journal.write(
        audit.OpenEntry(
            job_id=config.task.job_id,
            fork=config.task.fork,
            parent=restored.policy if restored else None,
            manifest=known.digest if known else None,
            resumed_at=known.audit_line if known else None,
            bound=job.staleness,
            group_size=job.algorithm.group_size,
            groups_per_step=job.train.groups_per_step,
            seed=job.seed,
            algorithm=job.algorithm.name,
            settings=blake3(config_text(job).encode()).digest(),
            problems=digest_of_all(prepared.problems),
            other_problems=prepared.has_other_problems,
        )
    )
    if restored is not None and prepared.has_other_problems:
        for group in restored.open_groups:
            journal.write(audit.DropEntry(group=group, why="other_problems", samples=()))
