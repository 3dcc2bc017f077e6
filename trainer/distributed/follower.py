"""The process of a rank other than 0: `python -m trainer.distributed.follower`, which rank 0 starts.

It reads commands from its standard input and executes them one after another, together with the other ranks. What it
publishes goes to rank 0 from a thread beside them.

It leaves at once when its input ends, in the middle of whatever it does: rank 0 has closed it, or is dead, and keeps
everything that must last. SIGINT and SIGTERM are for rank 0, which still needs this rank to save a checkpoint.

A step whose loss is not finite is refused by all ranks together, and so is a checkpoint that does not fit. Then the
process waits for the next command. Any other error ends it, after it has told rank 0 why: it may be in the middle of a
collective for which the others wait.
"""

import argparse
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from periplus.errors import ConfigError, NonFiniteLoss
from periplus.process import telemetry
from trainer.distributed.commands import BEAT, BEAT_S, BuildLearner, read_one, unpacked
from trainer.distributed.failures import explained_failure

log = logging.getLogger(__name__)

EXIT_LEFT = 0
"""Exit code of a follower whose input ended."""

EXIT_FAILED = 1
"""Exit code of a follower that failed."""

MAX_WAITING = 8
"""Most commands that wait here, so that memory is bounded. Rank 0 takes part in each command before it sends the next
one, so one is usual. Chosen by hand."""


def main() -> None:
    """Run one follower until its input ends. It never returns."""
    parser = argparse.ArgumentParser(description="One rank of a trainer, started by rank 0.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the ranks meet")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True, help="a pipe for the reason of a failure")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    telemetry.configure("INFO", sys.stderr)
    commands: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
    # Before anything slow, so that this process never outlives rank 0.
    threading.Thread(target=_read, args=(sys.stdin.buffer, commands), daemon=True).start()
    try:
        _follow(arguments.rank, arguments.size, arguments.folder, arguments.threads, commands, arguments.report_fd)
    except BaseException as error:  # the root of the process
        _fail(error, arguments.report_fd)


def _read(source: BinaryIO, commands: "queue.Queue[bytes]") -> None:
    while (data := read_one(source)) is not None:
        commands.put(data)
    os._exit(EXIT_LEFT)


def _follow(
    rank: int, size: int, folder: Path, num_threads: int, commands: "queue.Queue[bytes]", report_fd: int
) -> None:
    # Importing these takes seconds.
    import torch

    from periplus.job.job_file import JobFile
    from trainer.distributed.process_group import join, say_ready
    from trainer.distributed.rank import TrainingRank, skeleton

    threading.Thread(target=_beat, args=(report_fd,), daemon=True).start()
    torch.set_num_threads(num_threads)
    # Rank 0 may be warming the model up for a long time.
    first = unpacked(commands.get())
    assert isinstance(first, BuildLearner), f"the learner is built first, not {first}"
    model = skeleton(first)
    say_ready(rank, folder)
    groups = join(rank, size, folder)
    here = TrainingRank(JobFile.from_json(first.job_json), model, groups)
    while True:
        command = unpacked(commands.get())
        try:
            beside = here.follow(command)
        except (NonFiniteLoss, ConfigError) as error:  # all ranks have it
            telemetry.event(
                log, logging.WARNING, "command_refused", rank=rank, command=type(command).__name__, why=error
            )
            continue
        if beside is not None:
            # Rank 0 takes one version after the other, so there is one thread at a time.
            threading.Thread(target=_finish, args=(beside, report_fd), daemon=True).start()


def _beat(report_fd: int) -> None:
    # Without rank 0 this process ends, by the end of its input.
    with contextlib.suppress(OSError):
        while True:
            os.write(report_fd, BEAT)
            time.sleep(BEAT_S)


def _finish(finish: Callable[[], None], report_fd: int) -> None:
    try:
        finish()
    except BaseException as error:  # the root of the thread
        _fail(error, report_fd)


def _fail(error: BaseException, report_fd: int) -> None:
    """Tell rank 0 why this process ends, and end it, with all its threads and connections."""
    log.error("rank_failed", exc_info=error)
    try:
        os.write(report_fd, explained_failure(error).encode())
    finally:
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
