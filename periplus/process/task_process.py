"""The frame of every worker process: from a task file to an exit code, with the last word in the status file.

What a worker prints goes to its log file. A log that the disk has no room for loses lines and ends no work.

A worker is asked to stop by SIGTERM from its agent, or by the end of its standard input when the agent died. What that
means is the worker's own: `work` gets an event that is set then, and returns how it ended.
"""

import asyncio
import contextlib
import io
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TextIO

import click

from periplus.errors import PeriplusError, explained_error, leaves
from periplus.process import telemetry
from periplus.process.lifecycle import wait_for_stop
from periplus.values.task import EXIT_FAILED, EXIT_STOPPED, EXIT_SUCCEEDED, TaskOutcome, TaskSpec, TaskState

log = logging.getLogger(__name__)

Work = Callable[[asyncio.Event], Awaitable[TaskState]]

EXIT_CODE = {TaskState.SUCCEEDED: EXIT_SUCCEEDED, TaskState.STOPPED: EXIT_STOPPED, TaskState.FAILED: EXIT_FAILED}


class Forgiving(io.TextIOBase):
    """A text stream that drops what the stream behind it cannot take: progress bars and prints of libraries raise no
    error, and neither does the interpreter's last flush."""

    def __init__(self, behind: TextIO) -> None:
        self._behind = behind

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._behind.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._behind.flush()

    def fileno(self) -> int:
        return self._behind.fileno()

    def isatty(self) -> bool:
        return self._behind.isatty()


def command(make_work: Callable[[TaskSpec], Work]) -> click.Command:
    """The command line of a worker package: `--task-file FILE`."""

    @click.command()
    @click.option("--task-file", type=click.Path(path_type=Path), required=True, help="Written by the region's agent.")
    @click.option("--log-level", default="INFO", show_default=True)
    def main(task_file: Path, log_level: str) -> None:
        sys.stdout, sys.stderr = Forgiving(sys.stdout), Forgiving(sys.stderr)
        telemetry.configure(log_level, sys.stderr)
        try:
            spec = TaskSpec.load(task_file)
        except PeriplusError as error:
            click.echo(f"error: {explained_error(error)}", err=True)
            sys.exit(EXIT_FAILED)
        sys.exit(run(spec, make_work))

    return main


def run(spec: TaskSpec, make_work: Callable[[TaskSpec], Work]) -> int:
    """Run the work to its end and write its outcome."""
    telemetry.event(log, logging.INFO, "task_started", task=spec.task_id, region=spec.region, threads=spec.num_threads)
    try:
        outcome = TaskOutcome(state=asyncio.run(_until_stopped(make_work(spec))), message="")
    except Exception as error:  # the root of the process: whatever it is, the agent must hear of it
        if not all(isinstance(leaf, PeriplusError) for leaf in leaves(error)):
            log.exception("task_crashed")
        outcome = TaskOutcome(state=TaskState.FAILED, message=explained_error(error))
    try:
        Path(spec.status_file).write_text(outcome.to_json(), encoding="utf-8")
    except OSError as error:  # the exit code says how it ended, though not why
        telemetry.event(log, logging.ERROR, "outcome_not_written", path=spec.status_file, why=error)
    level = logging.ERROR if outcome.state is TaskState.FAILED else logging.INFO
    telemetry.event(log, level, "task_ended", task=spec.task_id, state=outcome.state, message=outcome.message)
    return EXIT_CODE[outcome.state]


async def _until_stopped(work: Work) -> TaskState:
    stop = asyncio.Event()
    listening = asyncio.Event()
    signals = asyncio.ensure_future(wait_for_stop(stop_on_stdin_eof=True, on_waiting=listening.set))
    signals.add_done_callback(lambda _: stop.set())
    try:
        await listening.wait()  # a worker that is at work can be stopped
        return await work(stop)
    finally:
        signals.cancel()
