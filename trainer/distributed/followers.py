"""Rank 0's side of the other ranks: their processes, the commands that they are sent, and the moment one of them ends.

Each follower is a child process of the trainer, in the trainer's Unix session, so that it ends with the trainer when
the region's agent, or the trainer's guard, kills the session. Its standard input carries commands. If the trainer dies,
the pipe ends, and the follower leaves at once. (A process that the trainer has forked would keep the pipe open. Then it
is the guard that ends the follower.)

A thread for each follower waits for its end. When one ends before `close`, the others are killed: without it none of
them can go on, and collectives that wait for them fail then. The first loss is kept, with the reason that the follower
gave, if it could.
"""

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

from periplus.errors import RankLost
from trainer.distributed.commands import Command, packed
from trainer.distributed.process_group import is_ready

START_S = 300.0
"""Seconds that a follower gets to import what it needs. It takes 4 s on a quiet machine, and many times as long from a
slow disk. Chosen by hand."""

LOOK_S = 0.02
"""Seconds between two looks whether a follower is ready. Chosen by hand."""

CLOSE_S = 5.0
"""Seconds that followers get to leave after their input was closed. They leave at once, in the middle of whatever they
do. Chosen by hand."""


class Followers:
    """The processes of the ranks 1 to `size` - 1. They begin to import what they need as soon as this is made.

    `folder` is where ranks meet (process_group.py). `num_threads` is the number of threads of each rank.
    """

    def __init__(self, size: int, num_threads: int) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="periplus-ranks-")
        self.folder = Path(self._scratch.name)
        self._size = size
        self._lock = threading.Lock()
        self._is_closing = False
        self._loss: str | None = None
        self._ended = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, size):
                self._start(rank, num_threads)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the processes, in the order of their ranks."""
        return tuple(process.pid for process in self._processes)

    def send(self, command: Command) -> None:
        """Send a command to all followers. One that is gone is noticed by its watcher."""
        data = packed(command)
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(data)
                process.stdin.flush()
            except OSError:
                self._ended.wait()  # the watcher knows why
                return

    def wait_until_ready(self) -> None:
        """Wait until all followers have imported what they need and are about to join.

        Raises: RankLost if one of them ended, or is not ready in time.
        """
        for rank in range(1, self._size):
            for _ in range(math.ceil(START_S / LOOK_S)):
                if is_ready(rank, self.folder):
                    break
                if (lost := self.lost(LOOK_S)) is not None:
                    raise lost
            else:
                raise RankLost(
                    f"rank {rank} of {self._size} did not start within {START_S:.0f} s; see the trainer's log, and "
                    "resume the job"
                )

    def lost(self, wait_s: float | None = 0.0) -> RankLost | None:
        """Return the error for the first follower that ended, waiting for one at most `wait_s` seconds.

        None if none has ended, or once `close` was called. With `wait_s` None it waits until one of these happens.
        """
        self._ended.wait(wait_s)
        return None if self._loss is None else RankLost(self._loss)

    def close(self) -> None:
        """Let all followers leave, and wait for their end. Calling it again does nothing."""
        with self._lock:
            self._is_closing = True
        self._ended.set()
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # what it should still have read cannot be written
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for watcher in self._watchers:
            watcher.join()
        self._scratch.cleanup()

    def _start(self, rank: int, num_threads: int) -> None:
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "trainer.distributed.follower"),
                    *("--rank", str(rank), "--size", str(self._size), "--folder", str(self.folder)),
                    *("--threads", str(num_threads), "--report-fd", str(writing)),
                ],
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(num_threads),
                    # Threads that wait for work must not take a core from the processes beside them.
                    "OMP_WAIT_POLICY": "PASSIVE",
                },
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._processes.append(process)
        watcher = threading.Thread(
            target=self._watch, args=(rank, process, os.fdopen(reading, "rb")), daemon=True, name=f"rank-{rank}"
        )
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]", report: BinaryIO) -> None:
        with report:
            said = report.read().decode(errors="replace").strip()  # up to the end, when its process has ended
        code = process.wait()
        with self._lock:
            if self._is_closing or self._loss is not None:
                return
            how = said or (f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")
            self._loss = (
                f"rank {rank} of {self._size} (process {process.pid}) is lost: {how}; the step under way was not "
                "applied; resume the job from its last checkpoint"
            )
        for other in self._processes:
            other.kill()
        self._ended.set()
