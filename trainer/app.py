"""Composition root of the trainer: it runs one job in one fork, from an empty process to the exported model.

The gateway's streams open first. The model is prepared in a thread (setup.py) while they are served; then the parts are
built (assembly.py) and the training loop runs beside the streams, all in one TaskGroup.

- **Signing key.** The trainer makes a key at its start, and the key ends with the process. The coordinator certifies
  it for this fork only, over the gateway's stream, while the model is prepared.
- **Lost gateway.** The link dials the gateway again (intake/gateway.py). Meanwhile the training loop goes on with the
  samples that it has, and then waits. If the gateway is not found in time, the trainer stops as if it had been asked
  to: between two steps, with a checkpoint saved. Then it fails with the reason why the gateway was lost.
- **Several ranks.** Other processes may share the training steps (trainer/distributed). If one of them ends, the
  trainer fails at once. The run goes on from its last checkpoint when it is resumed.
- **Trackers.** Processes beside the trainer get its records (trainer/tracking). They may finish after everything else,
  within seconds, whatever the end.
- **Full disk.** Every write waits for room (disk_wait.py). A trainer that is asked to stop while it waits ends as
  stopped, with the checkpoints that it has; what could not be written was not acted on.
"""

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from periplus import clock
from periplus.audit import records as audit
from periplus.errors import (
    Denied,
    DiskFull,
    NonFiniteLoss,
    RankLost,
    StorageError,
    TimedOut,
    TrainingError,
    Unreachable,
    UnsoundEngine,
    WrongRewards,
    explained_error,
)
from periplus.job.run_directory import RunDirectory, read_lines, write_atomically
from periplus.net.rpc import own_gateway
from periplus.process.telemetry import event
from periplus.publication import PublisherKey
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import TaskState
from periplus.view.summary import summary_from, summary_json
from trainer.assembly import Running, assembled, config_text
from trainer.checkpointing import checkpoint
from trainer.checkpointing.replicas import fetch
from trainer.config import TrainerConfig
from trainer.disk_wait import DiskWait
from trainer.distributed.leader import Leader
from trainer.distributed.position import own_address
from trainer.intake.gateway import GatewayLink
from trainer.intake.messages import UpMessage
from trainer.learning.forward.compiled import keep_compiled_code
from trainer.publishing import publish
from trainer.setup import Prepared, prepare
from trainer.tracking.feeds import Trackers, tracking
from trainer.tracking.opening import TrackerOpening, flat_configuration, tracker_folder

log = logging.getLogger(__name__)

CLOSE_DEADLINE_S = 10.0
"""Seconds that the gateway gets to read what is left at the end. Chosen by hand: it is on the same machine and takes
milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    """What all stages of one trainer share: preparing, training, exporting and closing."""

    config: TrainerConfig
    run_directory: RunDirectory
    link: GatewayLink
    key: PublisherKey
    disk: DiskWait
    leader: Leader
    trackers: Trackers
    stop: asyncio.Event
    ready: "asyncio.Future[Running]"
    """Set once the trainer can handle messages of its gateway; they wait for it."""
    started_s: float
    """Start of the process on the monotonic clock; the times of all records are relative to it."""


async def run(config: TrainerConfig, stop: asyncio.Event) -> TaskState:
    """Train one job in one fork and return how it ended.

    Set `stop` to end it early, with a checkpoint. Raises: ConfigError, NotFound, Unreachable, NonFiniteLoss,
    UnsoundEngine, WrongRewards, RankLost, Denied, TimedOut.
    """
    if config.replica:
        await asyncio.to_thread(fetch, config.replica, RunDirectory(Path(config.task.run_dir)))
    async with tracking(_openings(config), os.environ, stop) as trackers:
        return await _run(config, stop, trackers)


def _openings(config: TrainerConfig) -> tuple[TrackerOpening, ...]:
    """Return what each tracker of the job is told first."""
    job, run_directory, resumed = config.job, RunDirectory(Path(config.task.run_dir)), None
    if not job.output.trackers:
        return ()
    if config.resume_from is not None:
        resumed = checkpoint.newest(config.resume_from / "checkpoints").policy.version
    return tuple(
        TrackerOpening(
            tracker=tracker,
            folder=tracker_folder(run_directory.trackers, tracker),
            name=job.name,
            job_id=config.task.job_id,
            first_row=len(read_lines(run_directory.metrics)) if run_directory.metrics.exists() else 0,
            resumed_version=resumed,
            configuration=flat_configuration(job.model_dump(mode="json")),
        )
        for tracker in job.output.trackers
    )


async def _run(config: TrainerConfig, stop: asyncio.Event, trackers: Trackers) -> TaskState:
    started_s = clock.monotonic_s()
    torch.set_num_threads(config.task.num_threads)
    if config.job.train.compile:
        keep_compiled_code(config.cache_dir / "compiled")
    key = PublisherKey.generate()
    task = config.task
    secured = partial(own_gateway, task.identity, task.region)
    link = GatewayLink(task.gateway, task.job_id, task.fork, key.public_key, task.job_secret, secured)
    address = own_address(task.gateway) if task.machines else ""
    ready: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    lost: list[Unreachable | Denied] = []

    def say(phase: str) -> None:
        time_s = clock.monotonic_s() - started_s
        # Shown to watchers only: on a full disk it could not be written.
        link.record(Record(kind=RecordKind.PHASE, policy=Policy(config.task.fork, 0), time_s=time_s, text=phase))

    trainer = _Trainer(
        config=config,
        run_directory=RunDirectory(Path(config.task.run_dir)),
        link=link,
        key=key,
        disk=DiskWait(stop, say),
        leader=Leader(config.job.train.devices, task.num_threads, task.machines, address),
        trackers=trackers,
        stop=stop,
        ready=ready,
        started_s=started_s,
    )

    async def deliver(message: UpMessage) -> None:
        running = await asyncio.shield(ready)  # workers of an earlier trainer may send messages while this one prepares
        await running.on_message(message)

    async def serve() -> None:
        try:
            await link.run(deliver)
        except (Unreachable, Denied) as error:  # Denied: a gateway that was dialled again refuses the key
            event(log, logging.ERROR, "gateway_given_up", job=config.task.job_id, why=error)
            if not stop.is_set():  # a trainer that was asked to stop before has not failed
                lost.append(error)
            stop.set()

    async with asyncio.TaskGroup() as tasks:
        streams = tasks.create_task(serve())
        tasks.create_task(asyncio.to_thread(publish.compile_codec))  # beside the warm-up
        try:
            state = await _unless_full(_work(trainer), stop)
            await trackers.finish(stop, say)  # here, so that watchers see what is waited for
            # If the parts were never built, the link has queued nothing that must still be sent.
            if ready.done():
                await _close(link, config.task.job_id)
        finally:
            streams.cancel()
            await asyncio.to_thread(trainer.leader.close)
    if lost and state is not TaskState.SUCCEEDED:
        raise lost[0]
    return state


async def _unless_full(work: Coroutine[Any, Any, TaskState], stop: asyncio.Event) -> TaskState:
    """Return how `work` ended: as stopped if it was asked to stop while it waited for a full disk."""
    try:
        return await work
    except* DiskFull as group:
        if not stop.is_set():
            raise
        event(log, logging.WARNING, "stopped_on_full_disk", why=explained_error(group))
    return TaskState.STOPPED


async def _work(trainer: _Trainer) -> TaskState:
    await trainer.disk.write(lambda: _begin(trainer))
    prepared = await _prepare(trainer)
    return TaskState.STOPPED if prepared is None else await _train(trainer, prepared)


def _begin(trainer: _Trainer) -> None:
    config, run_directory = trainer.config, trainer.run_directory
    run_directory.create()
    write_atomically(run_directory.config, config_text(config.job))
    write_atomically(run_directory.plan, config.task.plan_json or "{}")


async def _train(trainer: _Trainer, prepared: Prepared) -> TaskState:
    """Build the parts, train to the end, export the model, and close the audit."""
    with ExitStack() as opened:
        running = await trainer.disk.write(lambda: opened.enter_context(_assembled(trainer, prepared)))
        try:
            state = await _serve(trainer, running)
        except* RankLost:
            # The version under way may never be complete, so nothing is waited for.
            await running.ledger_service.close(audit.EndEntry(how="failed"))
            raise
        # No lease or result may change the ledger any more, whatever workers still send.
        running.ledger_service.refuse_messages()
        exported = await _export(trainer, prepared, running) if state is TaskState.SUCCEEDED else None
        await running.ledger_service.close(audit.EndEntry(how=state), exported)
    return state


async def _serve(trainer: _Trainer, running: Running) -> TaskState:
    """Run the training loop, and beside it what serves workers and publishes, until the loop ends or a rank is lost."""
    async with asyncio.TaskGroup() as tasks:
        serving = [
            tasks.create_task(running.ledger_service.run()),
            tasks.create_task(running.publisher.run()),
            tasks.create_task(_watch_ranks(trainer.leader)),
        ]
        if running.replicator is not None:
            serving.append(tasks.create_task(running.replicator.run()))
        # Messages of the gateway have waited for this; the ledger has replayed earlier forks by now.
        trainer.ready.set_result(running)
        try:
            return await running.loop.run(trainer.stop)
        except (NonFiniteLoss, UnsoundEngine, WrongRewards, Denied, TimedOut):
            # Finish the version under way, whose line may be in the audit already, before the audit's last line.
            await running.publisher.drained()
            await running.ledger_service.close(audit.EndEntry(how="failed"))
            raise
        finally:
            await running.loop.close()
            for task in serving:
                task.cancel()


async def _watch_ranks(leader: Leader) -> None:
    """Wait for the loss of another rank. Raises: RankLost."""
    # Without other ranks no thread is needed that would wait for one.
    if leader.process_ids and (lost := await asyncio.to_thread(leader.wait_for_loss)) is not None:
        raise lost


def _assembled(trainer: _Trainer, prepared: Prepared) -> AbstractContextManager[Running]:
    return assembled(
        trainer.config,
        prepared,
        trainer.link,
        trainer.key,
        trainer.run_directory,
        trainer.disk,
        trainer.trackers,
        clock.monotonic_s,
        trainer.started_s,
    )


async def _export(trainer: _Trainer, prepared: Prepared, running: Running) -> audit.ExportEntry | None:
    """Write the trained model and the summary; only with both on disk has the run succeeded.

    Return the line of the audit that the export needs, if what was exported is not what was published.
    """
    digest, final, disk = running.publisher.digest, trainer.run_directory.final, trainer.disk
    try:
        written = await disk.write_in_thread(lambda: prepared.leader.export(prepared.model_files, final, digest))
    except (TrainingError, StorageError) as error:
        if not isinstance(error, DiskFull):
            await running.ledger_service.close(audit.EndEntry(how="failed"))
        raise
    later = sorted(running.loop.regions)
    await disk.write_in_thread(lambda: _write_summary(trainer.config, trainer.run_directory, later))
    return None if written == digest else audit.ExportEntry(policy=running.publisher.newest, digest=written)


async def _close(link: GatewayLink, job_id: str) -> None:
    try:
        await asyncio.wait_for(link.close(), CLOSE_DEADLINE_S)
    except TimeoutError:  # what the job did is done and on disk; watchers may have missed its last records
        event(log, logging.WARNING, "gateway_slow_to_close", job=job_id, deadline_s=CLOSE_DEADLINE_S)


def _write_summary(config: TrainerConfig, run_directory: RunDirectory, later: Sequence[str]) -> None:
    """Write the run's summary from the last SUMMARY record, the regions of the plan, and those that came later.

    A process that also measured the network may replace it by a fuller one.
    """
    records = run_directory.records()
    summary = next(record.values for record in reversed(records) if record.kind is RecordKind.SUMMARY)
    plan = json.loads(config.task.plan_json or "{}")
    planned = [assignment["region"] for assignment in plan.get("assignments", ())]
    regions = list(dict.fromkeys([*planned, *later]))
    write_atomically(run_directory.summary, summary_json(summary_from(summary, regions)) + "\n")


async def _prepare(trainer: _Trainer) -> Prepared | None:
    """Prepare model, data and learner in a thread; return None if asked to stop first, when nothing needs saving."""
    config, run_directory = trainer.config, trainer.run_directory
    event_loop = asyncio.get_running_loop()

    def say(kind: RecordKind, text: str, values: dict[str, float]) -> None:
        if trainer.stop.is_set():
            # A thread cannot be cancelled, so it leaves at its next report.
            raise _Stopped
        record = Record(
            kind=kind,
            policy=Policy(config.task.fork, 0),
            time_s=clock.monotonic_s() - trainer.started_s,
            values=values,
            text=text,
        )
        # Link, trackers and disk wait belong to the event loop. The thread blocks until the record is written.
        event_loop.call_soon_threadsafe(trainer.link.record, record)
        event_loop.call_soon_threadsafe(trainer.trackers.record, record)
        writing = trainer.disk.write(lambda: run_directory.append(record))
        asyncio.run_coroutine_threadsafe(writing, event_loop).result()
        if text:
            event(log, logging.INFO, "phase", text=text)

    try:
        return await asyncio.to_thread(prepare, config, say, clock.monotonic_s, trainer.leader)
    except _Stopped:
        return None


class _Stopped(Exception):
    """Raised in the preparing thread to leave it when the trainer is asked to stop."""
