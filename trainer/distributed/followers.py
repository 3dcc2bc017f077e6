"""Rank 0's side of the other ranks: their processes, the commands that they are sent, and the moment one of them ends.

Each follower is a child process of the trainer, in the trainer's Unix session, so that it ends with the trainer when
the region's agent, or the trainer's guard, kills the session. For a rank on another machine the child is what the
launcher of the region runs there (`RankMachine.words`), which ends with the rank, and the rank with it.

A follower opens one connection to rank 0: a Unix socket, or TCP if ranks are on several machines. Both ends prove that
they know a key, which is in the environment of the follower. The connection carries commands. If the trainer dies it
ends, and the follower leaves at once. (A process that the trainer has forked would keep it open. Then it is the guard
that ends the follower.)

A thread for each follower waits for its end, and for a message of one byte (a *beat*) that a thread of the follower
sends every few seconds. A process that is stopped, or in which no thread of Python can run, sends none, and is killed.
A follower whose other threads wait for ever still sends beats: it is found out by the limits of process_group.py.

When a follower ends before `close`, the others are killed: without it none of them can go on, and collectives that wait
for them fail then. The first loss is kept, with the reason that the follower gave, if it could. The loss of one rank
breaks the collectives of the others, and these may say so first. So what a follower says is kept if no other one ends
without a word.
"""

import contextlib
import math
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from periplus.errors import RankLost
from periplus.values.task import RankMachine
from trainer.distributed.commands import BEAT, KEY_VARIABLE, READY, Command, packed
from trainer.distributed.position import RankPosition, positions, ranks_by_machine
from trainer.distributed.process_group import first_store

START_S = 300.0
"""Seconds that a follower gets to import what it needs. It takes 4 s on a quiet machine, and many times as long from a
slow disk. Chosen by hand."""

LOOK_S = 0.02
"""Seconds between two looks whether a follower is ready. Chosen by hand."""

CLOSE_S = 5.0
"""Seconds that followers get to leave after their connection was closed, and to end after they were killed. They leave
at once, in the middle of whatever they do; one that waits for a broken device may not. Chosen by hand."""

CAUSE_S = 1.0
"""Seconds in which the end of a follower that said nothing counts as the cause of what another one said. The kernel
tells both at once. Chosen by hand, below what rank 0 waits for a loss (leader.py)."""

SILENT_S = 25
"""Seconds without a beat after which a follower is killed. They are counted one by one, so that a time in which all
processes were stopped counts as one. Chosen by hand, so that a loss is found out within half a minute."""


class Followers:
    """The processes of the ranks 1 to `size` - 1. They begin to import what they need as soon as this is made.

    `num_threads` are the threads of all ranks of one machine. `machines` are those of the ranks if there are several;
    then `address` is that of this machine in their network. `on_loss` is called in a thread of this object after one of
    the ranks was lost.
    """

    def __init__(
        self,
        size: int,
        num_threads: int,
        on_loss: Callable[[], None] = lambda: None,
        machines: Sequence[RankMachine] = (),
        address: str = "",
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="periplus-ranks-")
        folder = Path(self._scratch.name)
        self.store = first_store(address, size) if address else None
        meet = f"{address}:{self.store.port}" if self.store is not None else str(folder)
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._is_closing = False
        self._loss: str | None = None
        self._ended = threading.Event()
        self._key = secrets.token_bytes(32)
        where: tuple[str, int] | str = (address, 0) if address else str(folder / "dial")
        self._listener = Listener(where, backlog=size, authkey=self._key)
        self._followers: list[_Follower] = []
        self.positions = positions(size, machines, meet)
        """The positions of all ranks."""
        places = [
            machine
            for machine, number in zip(machines or (None,), ranks_by_machine(size, machines), strict=True)
            for _ in range(number)
        ]
        try:
            for position, machine in list(zip(self.positions, places, strict=True))[1:]:
                self._start(position, max(1, num_threads // position.local_size), machine)
            self._welcoming = threading.Thread(target=self._welcome, daemon=True, name="ranks")
            self._welcoming.start()
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the processes, in the order of their ranks."""
        return tuple(follower.process.pid for follower in self._followers)

    def send(self, command: Command) -> None:
        """Send a command to all followers. One that is gone is noticed by its watcher. Raises: RankLost."""
        data = packed(command)
        for follower in self._followers:
            self._wait_for(follower, follower.arrived)
            assert follower.connection is not None
            try:
                follower.connection.send_bytes(data)
            except OSError:
                self._ended.wait(CLOSE_S)  # the watcher knows why
                return

    def wait_until_ready(self) -> None:
        """Wait until all followers have imported what they need and can join.

        Raises: RankLost if one of them ended, or is not ready in time.
        """
        for follower in self._followers:
            self._wait_for(follower, follower.ready)

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
        for follower in self._followers:
            follower.say_no_more()
        with contextlib.suppress(OSError), multiprocessing.connection.Client(self._listener.address):
            pass  # wakes who waits for the next one
        self._listener.close()
        for follower in self._followers:
            try:
                follower.process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                follower.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    follower.process.wait(CLOSE_S)
        for follower in self._followers:
            follower.watcher.join(CLOSE_S)
            follower.close()
        self._scratch.cleanup()

    def _wait_for(self, follower: "_Follower", event: threading.Event) -> None:
        for _ in range(math.ceil(START_S / LOOK_S)):
            if event.is_set():
                return
            if (lost := self.lost(LOOK_S)) is not None:
                raise lost
        raise RankLost(
            f"{follower.name} did not start within {START_S:.0f} s; see the trainer's log, and resume the job"
        )

    def _start(self, position: RankPosition, num_threads: int, machine: RankMachine | None) -> None:
        at = self._listener.address
        command = [
            *(machine.words if machine else ()),
            *(sys.executable, "-m", "trainer.distributed.follower", *position.to_words()),
            *("--dial", at if isinstance(at, str) else f"{at[0]}:{at[1]}", "--threads", str(num_threads)),
        ]
        if machine and machine.cores:
            command += ["--cores", ",".join(map(str, machine.cores))]
        process = subprocess.Popen(
            command,
            # What runs it on another machine ends when this pipe does.
            stdin=subprocess.PIPE if machine and machine.words else subprocess.DEVNULL,
            env={
                **os.environ,
                KEY_VARIABLE: self._key.hex(),
                "OMP_NUM_THREADS": str(num_threads),
                # Threads that wait for work must not take a core from the processes beside them.
                "OMP_WAIT_POLICY": "PASSIVE",
            },
        )
        name = f"rank {position.rank} of {position.size}" + (f" on {machine.name}" if machine else "")
        follower = _Follower(name, process)
        follower.watcher = threading.Thread(target=self._watch, args=(follower,), daemon=True, name=name)
        self._followers.append(follower)
        follower.watcher.start()

    def _welcome(self) -> None:
        """Take the connections of all followers, whose first message is their rank."""
        num_missing = len(self._followers)
        while num_missing and not self._is_closing:
            # A connection without the key is nobody's.
            with contextlib.suppress(multiprocessing.AuthenticationError, EOFError, OSError, ValueError):
                connection = self._listener.accept()
                self._followers[int(connection.recv_bytes()) - 1].arrive(connection)
                num_missing -= 1

    def _watch(self, follower: "_Follower") -> None:
        said, process = follower.last_words(), follower.process
        if self._is_closing:
            return
        process.kill()  # it has ended, or is silent
        try:
            code = process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        if said:
            self._ended.wait(CAUSE_S)
        with self._lock:
            if self._is_closing or self._loss is not None:
                return
            how = said or (f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")
            self._loss = (
                f"{follower.name} (process {process.pid}) is lost: {how}; the step under way was not "
                "applied; resume the job from its last checkpoint"
            )
        for other in self._followers:
            other.process.kill()
        self._ended.set()
        self._on_loss()


class _Follower:
    """One follower: its process, and its connection once it has `arrived`."""

    watcher: threading.Thread

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.name, self.process = name, process
        self.connection: Connection | None = None
        self.arrived, self.ready = threading.Event(), threading.Event()

    def arrive(self, connection: Connection) -> None:
        self.connection = connection
        self.arrived.set()

    def say_no_more(self) -> None:
        """End the connection towards the follower, which leaves then."""
        if self.connection is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as end:
                end.shutdown(socket.SHUT_WR)
        elif self.process.poll() is None:  # it still starts
            self.process.kill()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def last_words(self) -> str:
        """Return what the follower has sent apart from beats, when it has ended or is silent."""
        said, silent_s, has_begun = b"", 0, False
        while not self.arrived.wait(1.0):
            if self.process.poll() is not None:
                return ""
        connection = self.connection
        assert connection is not None
        with contextlib.suppress(EOFError, OSError):
            while silent_s < SILENT_S:
                if connection.poll(1.0):
                    message = connection.recv_bytes()
                    silent_s, has_begun = 0, True
                    if message == READY:
                        self.ready.set()
                    elif message != BEAT:
                        said += message
                elif self.process.poll() is not None:  # with its machine
                    break
                elif has_begun:  # imports come first, which take long from a slow disk
                    silent_s += 1
            else:
                return f"it gave no sign of life for {SILENT_S} s"
        return said.decode(errors="replace").strip()
