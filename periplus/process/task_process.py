"""Runs the work of every trainer and rollout worker process: from a task file to a status file and an exit code.

The region's agent writes the task file and starts the process. The process writes its outcome into the status file
before it exits. Its output goes to its log file; when the disk is full, log lines are lost but the work goes on.

A process is asked to stop by SIGTERM from its agent, or by the end of its standard input if it is tied to the agent.
`work` gets an event that is set then; it decides how to stop, and returns the state in which it ended. What the process
has started ends with it, even when it is killed together with its agent (guard.py).
"""

import asyncio
import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

from periplus.errors import (
    ConfigError,
    Conflict,
    Denied,
    EngineRefused,
    FunctionRefused,
    NonFiniteLoss,
    NotFound,
    PeriplusError,
    RewardFailed,
    StateError,
    StorageError,
    UnsoundEngine,
    WrongRewards,
    explained_error,
    leaves,
)
from periplus.process import telemetry
from periplus.process.guard import guard_session
from periplus.process.lifecycle import wait_for_stop
from periplus.values.task import (
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    FailureCause,
    Role,
    TaskOutcome,
    TaskSpec,
    TaskState,
)

log = logging.getLogger(__name__)

Work = Callable[[asyncio.Event], Awaitable[TaskState]]
"""The work of a process: it gets the event that asks it to stop, and returns the state in which it ended."""

EXIT_CODE = {TaskState.SUCCEEDED: EXIT_SUCCEEDED, TaskState.STOPPED: EXIT_STOPPED, TaskState.FAILED: EXIT_FAILED}
"""The exit code for each final state."""


class Forgiving(io.TextIOBase):
    """A text stream that drops text which the stream behind it cannot write, as on a full disk.

    So neither the prints and progress bars of libraries nor the interpreter's last flush raise an error.
    """

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
    """Return the command line of a trainer or rollout worker: `--task-file FILE`."""

    @click.command()
    @click.option("--task-file", type=click.Path(path_type=Path), required=True, help="Written by the region's agent.")
    @click.option("--log-level", default="INFO", show_default=True)
    def main(task_file: Path, log_level: str) -> None:
        # The log may be on a full disk: its lines are then lost, and the work goes on.
        sys.stdout, sys.stderr = Forgiving(sys.stdout), Forgiving(sys.stderr)
        telemetry.configure(log_level, sys.stderr)
        try:
            spec = TaskSpec.load(task_file)
        except PeriplusError as error:
            click.echo(f"error: {explained_error(error)}", err=True)
            sys.exit(EXIT_FAILED)
        bind_to(spec.cores)
        try:
            guard_session()
        except OSError as error:  # without it, only kill -9 of task and agent together leaves something behind
            telemetry.event(log, logging.WARNING, "task_without_guard", task=spec.task_id, why=error)
        exit_code = run(spec, make_work)
        # Engines and trainers start processes of their own. Python would wait for those of multiprocessing.
        end_group()
        sys.exit(exit_code)

    return main


def bind_to(cores: Sequence[int]) -> None:
    """Let all threads of this process, and what they start, run on these logical CPUs; on any if there is none."""
    if cores and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), cores)


LASTING: Mapping[Role, tuple[type[PeriplusError], ...]] = {
    Role.ROLLOUT: (FunctionRefused,),
    Role.TRAINER: (
        ConfigError,
        NotFound,
        Denied,
        Conflict,
        StateError,
        StorageError,
        RewardFailed,
        NonFiniteLoss,
        UnsoundEngine,
        WrongRewards,
    ),
}
"""Errors with which a process of each role would end again if it were started again."""


SWITCH_INTERVAL_S = 0.0005
"""Seconds after which a thread that runs Python gives way to another that waits. Decoding and encoding weights leave
Python's lock a few hundred times a version, and wait to get it back each time. With Python's 5 ms, they took 6 to 19
times as long beside a busy thread as alone, with this 1.8 to 3.2 times (bench/results/2026-11-26-first-gpu.md).
"""


def run(spec: TaskSpec, make_work: Callable[[TaskSpec], Work]) -> int:
    """Run the work to its end, write its outcome into the status file, and return the exit code. Never raises."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    telemetry.event(log, logging.INFO, "task_started", task=spec.task_id, region=spec.region, threads=spec.num_threads)
    try:
        outcome = TaskOutcome(state=asyncio.run(_until_stopped(make_work(spec), spec.ends_with_agent)), message="")
    except Exception as error:  # the root of the process: the agent must learn of any error
        if not all(isinstance(leaf, PeriplusError) for leaf in leaves(error)):
            log.exception("task_crashed")
        outcome = TaskOutcome(
            state=TaskState.FAILED,
            message=explained_error(error),
            cause=_cause(spec.role, error),
        )
    try:
        Path(spec.status_file).write_text(outcome.to_json(), encoding="utf-8")
    except OSError as error:  # the exit code still tells the agent the state, though not the message
        telemetry.event(log, logging.ERROR, "outcome_not_written", path=spec.status_file, why=error)
    level = logging.ERROR if outcome.state is TaskState.FAILED else logging.INFO
    telemetry.event(log, level, "task_ended", task=spec.task_id, state=outcome.state, message=outcome.message)
    return EXIT_CODE[outcome.state]


def _cause(role: Role, error: BaseException) -> FailureCause:
    if any(isinstance(leaf, LASTING[role]) for leaf in leaves(error)):
        return FailureCause.LASTING
    refused = any(isinstance(leaf, EngineRefused) for leaf in leaves(error))
    return FailureCause.ENGINE if refused else FailureCause.PASSING


def end_group() -> None:
    """Kill the other processes of this process's group, if it leads the group. Never raises.

    An agent starts each task as the leader of a group of its own, so these are what the task has started.
    """
    own = os.getpid()
    if os.getpgrp() != own:
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain spaces; the third field after it is the process group.
            group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
            if group == own and int(folder.name) != own:
                os.kill(int(folder.name), signal.SIGKILL)


async def _until_stopped(work: Work, ends_with_agent: bool) -> TaskState:
    stop = asyncio.Event()
    listening = asyncio.Event()
    signals = asyncio.ensure_future(wait_for_stop(stop_on_stdin_eof=ends_with_agent, on_waiting=listening.set))
    signals.add_done_callback(lambda _: stop.set())
    try:
        await listening.wait()  # the signal handlers must be set before the work starts
        return await work(stop)
    finally:
        signals.cancel()
