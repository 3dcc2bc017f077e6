"""Composition root of the trainer: prepare in a thread, then the gateway's streams and the training loop in one
TaskGroup.

The trainer makes its signing key at its start, and it dies with the process: the coordinator certifies it for this fork
alone, over the gateway's stream, while the model is prepared.

A trainer that loses its gateway stops as if it had been asked to, between two steps and with a checkpoint saved, and
then fails with what happened to the gateway."""

import asyncio
import json
import logging
from pathlib import Path

import torch

from periplus import clock
from periplus.audit import records as audit
from periplus.errors import Denied, NonFiniteLoss, TimedOut, Unreachable
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
from trainer.assembly import Running, assembled, config_text
from trainer.config import TrainerConfig
from trainer.gateway import GatewayLink
from trainer.setup import Prepared, prepare

log = logging.getLogger(__name__)

CLOSE_DEADLINE_S = 10.0
"""For a gateway on the same machine to read what is left; it takes milliseconds."""


async def run(config: TrainerConfig, stop: asyncio.Event) -> TaskState:
    """Train one job in one fork. Raises: ConfigError, Unreachable, NonFiniteLoss, Denied, TimedOut."""
    torch.set_num_threads(config.task.num_threads)
    run_directory = RunDirectory(Path(config.task.run_dir))
    run_directory.create()
    write_atomically(run_directory.config, config_text(config.job))
    write_atomically(run_directory.plan, config.task.plan_json or "{}")
    key = PublisherKey.generate()
    link = GatewayLink(config.task.gateway, config.task.job_id, config.task.fork, key.public_key)
    ready: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    lost: list[Unreachable] = []

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
            state = TaskState.STOPPED
            prepared = await _prepare(config, run_directory, link, stop)
            if prepared is not None:
                state = await _train(config, prepared, link, key, run_directory, stop, ready)
                await _close(link, config.task.job_id)
        finally:
            streams.cancel()
    if lost and state is not TaskState.SUCCEEDED:
        raise lost[0]
    return state


async def _train(
    config: TrainerConfig, prepared: Prepared, link: GatewayLink, key: PublisherKey, run_directory: RunDirectory,
    stop: asyncio.Event, ready: "asyncio.Future[Running]",
) -> TaskState:  # fmt: skip
    """Everything from the first lease to the exported model."""
    with assembled(config, prepared, link, key, run_directory, clock.monotonic_s) as running:
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(running.desk.run()), tasks.create_task(running.publisher.run())]
            ready.set_result(running)
            try:
                state = await running.loop.run(stop)
            except (NonFiniteLoss, Denied, TimedOut):
                await running.publisher.drained()
                running.desk.close(audit.End(how="failed"))
                raise
            finally:
                for task in serving:
                    task.cancel()
        running.desk.close(audit.End(how=state))
        if state is TaskState.SUCCEEDED:
            digest = running.publisher.digest
            await asyncio.to_thread(export.final_model, prepared.model, prepared.tokenizer, run_directory.final, digest)
            _write_report(config, run_directory)
    return state


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
    config: TrainerConfig, run_directory: RunDirectory, link: GatewayLink, stop: asyncio.Event
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
        run_directory.append(record)
        event_loop.call_soon_threadsafe(link.record, record)
        if text:
            event(log, logging.INFO, "phase", text=text)

    try:
        return await asyncio.to_thread(prepare, config, say, clock.monotonic_s)
    except _Stopped:
        return None


class _Stopped(Exception):
    """Leaves the preparing thread."""
