"""Composition root of the trainer: prepare in a thread, then the gateway's streams and the training loop in one
TaskGroup.

The trainer makes its signing key at its start, and it dies with the process: the coordinator certifies it for this fork
alone, over the gateway's stream, while the model is prepared.

A trainer that loses its gateway stops as if it had been asked to, between two steps and with a checkpoint saved, and
then fails with what happened to the gateway.

Whatever it writes waits for room on a full disk (disk_wait.py). Asked to stop while it waits, it ends as stopped with
the checkpoints that it has: what could not be written was not acted on."""

import asyncio
import json
import logging
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml

from periplus import clock, rpc
from periplus.audit import records as audit
from periplus.errors import Denied, DiskFull, NonFiniteLoss, StorageError, TimedOut, TrainingError, Unreachable
from periplus.pb.v1 import gateway_pb2
from periplus.policy import Policy
from periplus.publication import PublisherKey
from periplus.record import Record, RecordKind
from periplus.run_directory import RunDirectory, write_atomically
from periplus.task import TaskState
from periplus.telemetry import event
from periplus.view.report import render_report
from periplus.view.summary import summary_from, summary_json
from trainer import export, publish
from trainer.assembly import Running, assembled
from trainer.config import TrainerConfig
from trainer.disk_wait import DiskWait
from trainer.gateway import GatewayLink
from trainer.setup import Prepared, prepare

log = logging.getLogger(__name__)

CLOSE_DEADLINE_S = 10.0
"""For a gateway on the same machine to read what is left; it takes milliseconds."""


async def run(config: TrainerConfig, stop: asyncio.Event) -> TaskState:
    """Train one job in one fork. Raises: ConfigError, Unreachable, NonFiniteLoss, Denied, TimedOut."""
    torch.set_num_threads(config.task.num_threads)
    run_directory, started_s = RunDirectory(Path(config.task.run_dir)), clock.monotonic_s()
    key = PublisherKey.generate()
    link = GatewayLink(config.task.gateway, config.task.job_id, config.task.fork, key.public_key)
    ready: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    lost: list[Unreachable] = []

    def say(phase: str) -> None:
        time_s = clock.monotonic_s() - started_s
        link.record(Record(kind=RecordKind.PHASE, policy=Policy(config.task.fork, 0), time_s=time_s, text=phase))

    disk = DiskWait(stop, say)

    async def deliver(message: gateway_pb2.TrainerDown) -> None:
        running = await asyncio.shield(ready)  # workers that outlived an earlier trainer speak while this one prepares
        await running.desk.on_message(message)

    async def serve() -> None:
        try:
            await link.run(deliver)
        except Unreachable as error:
            event(log, logging.ERROR, "gateway_lost", job=config.task.job_id, why=error)
            if not stop.is_set():  # who was asked to stop before has stopped, whatever the gateway does
                lost.append(error)
            stop.set()

    async with asyncio.TaskGroup() as tasks:
        streams = tasks.create_task(serve())
        tasks.create_task(asyncio.to_thread(publish.compile_codec))  # beside the warm-up
        try:
            state = await _unless_full(_work(config, run_directory, link, key, disk, stop, ready), stop)
            if ready.done():
                await _close(link, config.task.job_id)
        finally:
            streams.cancel()
    if lost and state is not TaskState.SUCCEEDED:
        raise lost[0]
    return state


async def _unless_full(work: Coroutine[Any, Any, TaskState], stop: asyncio.Event) -> TaskState:
    """How `work` ended; as stopped if it gave up waiting for a full disk."""
    try:
        return await work
    except* DiskFull as group:
        if not stop.is_set():
            raise
        event(log, logging.WARNING, "stopped_on_full_disk", why=rpc.first_of(group))
    return TaskState.STOPPED


async def _work(
    config: TrainerConfig, run_directory: RunDirectory, link: GatewayLink, key: PublisherKey, disk: DiskWait,
    stop: asyncio.Event, ready: "asyncio.Future[Running]",
) -> TaskState:  # fmt: skip
    await disk.write(lambda: _begin(config, run_directory))
    prepared = await _prepare(config, run_directory, link, disk, stop)
    if prepared is None:
        return TaskState.STOPPED
    return await _train(config, prepared, link, key, run_directory, disk, stop, ready)


def _begin(config: TrainerConfig, run_directory: RunDirectory) -> None:
    run_directory.create()
    write_atomically(run_directory.config, yaml.safe_dump(json.loads(config.job.to_json()), sort_keys=False))
    write_atomically(run_directory.plan, config.task.plan_json or "{}")


async def _train(
    config: TrainerConfig, prepared: Prepared, link: GatewayLink, key: PublisherKey, run_directory: RunDirectory,
    disk: DiskWait, stop: asyncio.Event, ready: "asyncio.Future[Running]",
) -> TaskState:  # fmt: skip
    """Everything from the first lease to the exported model."""
    with ExitStack() as opened:
        now = clock.monotonic_s
        running = await disk.write(
            lambda: opened.enter_context(assembled(config, prepared, link, key, run_directory, disk, now))
        )
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(running.desk.run()), tasks.create_task(running.publisher.run())]
            ready.set_result(running)
            try:
                state = await running.loop.run(stop)
            except (NonFiniteLoss, Denied, TimedOut):
                await running.publisher.drained()
                await running.desk.close(audit.End(how="failed"))
                raise
            finally:
                for task in serving:
                    task.cancel()
        running.desk.refuse_messages()
        if state is TaskState.SUCCEEDED:
            await _export(config, prepared, run_directory, running, disk)
        await running.desk.close(audit.End(how=state))
    return state


async def _export(
    config: TrainerConfig, prepared: Prepared, run_directory: RunDirectory, running: Running, disk: DiskWait
) -> None:
    """The model and the report; the run has not succeeded before they are on disk."""
    digest, final = running.publisher.digest, run_directory.final
    try:
        await disk.write_in_thread(lambda: export.final_model(prepared.model, prepared.model_files, final, digest))
    except (TrainingError, StorageError) as error:
        if not isinstance(error, DiskFull):
            await running.desk.close(audit.End(how="failed"))
        raise
    await disk.write_in_thread(lambda: _write_report(config, run_directory))


async def _close(link: GatewayLink, job_id: str) -> None:
    try:
        await asyncio.wait_for(link.close(), CLOSE_DEADLINE_S)
    except TimeoutError:  # what the job did is done and on disk; watchers may have missed its last records
        event(log, logging.WARNING, "gateway_slow_to_close", job=job_id, deadline_s=CLOSE_DEADLINE_S)


def _write_report(config: TrainerConfig, run_directory: RunDirectory) -> None:
    """What this region knows of the run, for a person; who watched the network may write a fuller one."""
    records = run_directory.records()
    summary = next(record.values for record in reversed(records) if record.kind is RecordKind.SUMMARY)
    plan = json.loads(config.task.plan_json or "{}")
    regions = list(dict.fromkeys(assignment["region"] for assignment in plan.get("assignments", ())))
    text = summary_json(summary_from(summary, regions))
    write_atomically(run_directory.summary, text + "\n")
    job = json.loads(config.job.to_json())
    write_atomically(run_directory.report, render_report(job, plan, records, json.loads(text), ()))


async def _prepare(
    config: TrainerConfig, run_directory: RunDirectory, link: GatewayLink, disk: DiskWait, stop: asyncio.Event
) -> Prepared | None:
    """Everything before the first lease; None if asked to stop first (there is nothing to save yet)."""
    started_s = clock.monotonic_s()
    event_loop = asyncio.get_running_loop()

    def say(kind: RecordKind, text: str, values: dict[str, float]) -> None:
        if stop.is_set():
            raise _Stopped
        record = Record(
            kind=kind, policy=Policy(config.task.fork, 0), time_s=clock.monotonic_s() - started_s, values=values,
            text=text,
        )  # fmt: skip
        event_loop.call_soon_threadsafe(link.record, record)
        writing = disk.write(lambda: run_directory.append(record))
        asyncio.run_coroutine_threadsafe(writing, event_loop).result()
        if text:
            event(log, logging.INFO, "phase", text=text)

    try:
        return await asyncio.to_thread(prepare, config, say, clock.monotonic_s)
    except _Stopped:
        return None


class _Stopped(Exception):
    """Leaves the preparing thread."""
