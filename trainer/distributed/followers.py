"""Rank 0's side of the other ranks: their processes, the commands that they are sent, and the moment one of them ends.

Each follower is a child process of the trainer, in the trainer's Unix session, so that it ends with the trainer when
the region's agent, or the trainer's guard, kills the session. Its standard input carries commands. If the trainer dies,
the pipe ends, and the follower leaves at once. (A process that the trainer has forked would keep the pipe open. Then it
is the guard that ends the follower.)

A thread for each follower waits for its end, and for a zero byte (a *beat*) that a thread of the follower sends every
few seconds. A process that is stopped, or in which no thread of Python can run, sends none, and is killed. A follower
whose other threads wait for ever still sends beats: it is found out by the limits of process_group.py.

When a follower ends before `close`, the others are killed: without it none of them can go on, and collectives that wait
for them fail then. The first loss is kept, with the reason that the follower gave, if it could.
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from periplus.errors import RankLost
from trainer.distributed.commands import BEAT, Command, packed
from trainer.distributed.process_group import is_ready

START_S = 300.0
"""Seconds that a follower gets to import what it needs. It takes 4 s on a quiet machine, and many times as long from a
slow disk. Chosen by hand."""

LOOK_S = 0.02
"""Seconds between two looks whether a follower is ready. Chosen by hand."""

CLOSE_S = 5.0
"""Seconds that followers get to leave after their input was closed, and to end after they were killed. They leave at
once, in the middle of whatever they do; one that waits for a broken device may not. Chosen by hand."""

SILENT_S = 25
"""Seconds without a beat after which a follower is killed. They are counted one by one, so that a time in which all
processes were stopped counts as one. Chosen by hand, so that a loss is found out within half a minute."""


class Followers:
    """The processes of the ranks 1 to `size` - 1. They begin to import what they need as soon as this is made.

    `folder` is where ranks meet (process_group.py). `num_threads` is the number of threads of each rank. `on_loss` is
    called in a thread of this object after one of them was lost.
    """

    def __init__(self, size: int, num_threads: int, on_loss: Callable[[], None] = lambda: None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="periplus-ranks-")
        self.folder = Path(self._scratch.name)
        self._size = size
        self._on_loss = on_loss
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
                self._ended.wait(CLOSE_S)  # the watcher knows why
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
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CLOSE_S)
        for watcher in self._watchers:
            watcher.join(CLOSE_S)
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
        watcher = threading.Thread(target=self._watch, args=(rank, process, reading), daemon=True, name=f"rank-{rank}")
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]", report: int) -> None:
        said = _last_words(report)
        os.close(report)
        process.kill()  # it has ended, or is silent
        try:
            code = process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
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
        self._on_loss()


def _last_words(report: int) -> str:
    """Return what a follower has written into its pipe apart from beats, when it has closed it or is silent."""
    said, silent_s, has_begun = b"", 0, False
    poller = select.poll()
    poller.register(report, select.POLLIN)
    while silent_s < SILENT_S:
        if poller.poll(1000):
            if not (data := os.read(report, 4096)):
                return said.decode(errors="replace").strip()
            said, silent_s, has_begun = said + data.replace(BEAT, b""), 0, True
        elif has_begun:  # imports come first, which take long from a slow disk
            silent_s += 1
    return f"it gave no sign of life for {SILENT_S} s"
