"""One process of a task, which the fork server of the agent started, the agent itself, or an agent before it."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import BinaryIO

import psutil

from periplus.process.fork_server import MAX_REQUEST_BYTES, Request
from periplus.process.telemetry import event
from periplus.values.task import EXIT_UNKNOWN

log = logging.getLogger(__name__)

NOT_STARTED = 127
"""Exit code of a command that a shell cannot start."""


class Child:
    """A process that leads a Unix session of its own.

    If it `is_tied` to this agent, its standard input is a pipe that ends with the agent. With `fork_server`, the path
    of a server's socket, that server forks it. If the server is not there, or refuses, the process is started in the
    usual way. `output` gets its output; the caller may close its own descriptor at once.
    Raises: OSError if the process cannot be started.
    """

    def __init__(
        self, request: Request, output: BinaryIO, fork_server: Path | None = None, *, is_tied: bool = True
    ) -> None:
        self._request = request
        self._popen: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._signals: list[signal.Signals] = []  # sent before the process was there
        self._stdin: BinaryIO | None = None
        if is_tied:
            reading, writing = os.pipe()
            self._stdin = os.fdopen(writing, "wb")
        else:
            reading = os.open(os.devnull, os.O_RDONLY)
        self._streams = [reading, os.dup(output.fileno())]
        try:
            if fork_server is None or not self._asked(fork_server):
                self._spawn()
        except OSError:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The id of the process, or None before it is there."""
        return self._pid

    def poll(self) -> int | None:
        """Return the exit code of the process, minus the signal's number if one killed it; None while it runs.

        It is `NOT_STARTED` if the fork server refused and the process could not be started in the usual way either.
        """
        if self._connection is not None:
            self._read(self._connection)
        if self._popen is not None:
            self._exit_code = self._popen.poll()
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, or SIGKILL to its whole group. Nothing happens if it has ended."""
        if self.poll() is not None:
            return
        if self._pid is None:
            self._signals.append(number)
        else:
            self._signal(self._pid, number)

    def kill_group(self) -> None:
        """Kill what is left of the group of a process that has ended."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
                os.killpg(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipe to the process, which makes it leave if it still runs, and all else that is open."""
        if self._stdin is not None:
            self._stdin.close()
        self._close_streams()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _asked(self, fork_server: Path) -> bool:
        """Return whether the server could be asked. It answers once it has imported its modules."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(fork_server))
            reading, output = self._streams
            socket.send_fds(connection, [self._request.to_bytes()], [reading, output, output])
        except OSError as error:
            connection.close()
            event(log, logging.WARNING, "fork_server_unreachable", path=fork_server, why=error)
            return False
        connection.setblocking(False)
        self._connection = connection
        return True

    def _read(self, connection: socket.socket) -> None:
        while self._exit_code is None:
            try:
                data = connection.recv(MAX_REQUEST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            answer = json.loads(data) if data else {}
            if "pid" in answer:
                self._started(answer["pid"])
            elif "exit_code" in answer:
                self._exit_code = answer["exit_code"]
            elif self._pid is not None:  # the server is dead, and nobody learns how this process ends
                self.kill_group()
                self._exit_code = -signal.SIGKILL
            else:
                connection.close()
                self._connection = None
                why = answer.get("refused", "the fork server ended")
                event(log, logging.WARNING, "task_not_forked", module=self._request.module, why=why)
                try:
                    self._spawn()
                except OSError as error:
                    event(log, logging.ERROR, "task_not_started", module=self._request.module, why=error)
                    self._exit_code = NOT_STARTED
                return

    def _spawn(self) -> None:
        reading, output = self._streams
        self._popen = subprocess.Popen(
            self._request.words,
            stdin=reading,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=dict(self._request.environment),
            cwd=self._request.folder,
        )
        self._started(self._popen.pid)

    def _started(self, pid: int) -> None:
        self._pid = pid
        self._close_streams()
        for number in self._signals:
            self._signal(pid, number)

    def _close_streams(self) -> None:
        for stream in self._streams:
            os.close(stream)
        self._streams = []

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)  # a fork becomes the leader of its group a moment after it has an id
        if number is signal.SIGKILL:
            self.kill_group()


class AdoptedChild:
    """A process that an earlier agent started as a `Child`, known by its id and the time of its start.

    `created_at` has that time. Nobody learns its exit code.
    """

    def __init__(self, pid: int, started: float) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        if created_at(pid) == started:  # else another process has the id by now
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        """Return None while the process runs, and `EXIT_UNKNOWN` once it has ended."""
        if self._process is None or not self._process.is_running():
            return EXIT_UNKNOWN
        with contextlib.suppress(psutil.NoSuchProcess):
            return EXIT_UNKNOWN if self._process.status() == psutil.STATUS_ZOMBIE else None
        return EXIT_UNKNOWN

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, or SIGKILL to its whole group. Nothing happens if it has ended."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.send_signal(number)
            if number is signal.SIGKILL:
                self.kill_group()

    def kill_group(self) -> None:
        """Kill what is left of the group of the process, if it was there when it was adopted."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """There is nothing to close."""


def created_at(pid: int) -> float | None:
    """Return when a process was started, to recognise it later; None if it is not there.

    On Linux in ticks since the machine's start, which no change of its clock moves; elsewhere in Unix seconds.
    """
    try:
        # The name in parentheses may contain spaces; the time is the twentieth field after it.
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).create_time()
        return None
    except (ProcessLookupError, IndexError):  # it has just ended
        return None
