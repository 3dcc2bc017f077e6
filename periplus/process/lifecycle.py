"""The start and stop protocol between a Periplus process and the process that started it.

A process writes a ready file once it serves. The file is written atomically and has the addresses, for a parent that
passed port 0. A process stops on SIGTERM or SIGINT. A parent that dies cannot send a signal, but the kernel closes its
pipes: a child that was started with `stdin=PIPE` and `--stop-on-stdin-eof` then stops too, so that none is left behind.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from periplus import errors
from periplus.process.disk import replacing
from periplus.process.service_manager import ServiceManager

_STDIN_FD = 0
_DISCARD_BYTES = 1 << 16


class ShutdownReason(StrEnum):
    """The cause for which a process was asked to stop."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    SIGHUP = "SIGHUP"
    STDIN_CLOSED = "stdin closed"


def write_ready_file(path: str | Path, mapping: Mapping[str, str | int]) -> None:
    """Write `mapping` to a file as one JSON object, atomically: a reader sees no file or the whole object.

    Raises: ConfigError if the path cannot be written.
    """
    target = Path(path)
    try:
        with replacing(target) as file:
            file.write(json.dumps(dict(mapping)).encode() + b"\n")
    except OSError as error:
        why = error.strerror or str(error)
        raise errors.ConfigError(
            f"cannot write the ready file {target}: {why}; give a path in a writable folder"
        ) from error


async def wait_for_stop(
    stop_on_stdin_eof: bool, on_waiting: Callable[[], None] | None = None, *, stop_on_hangup: bool = False
) -> ShutdownReason:
    """Wait for SIGTERM, SIGINT, SIGHUP if asked for, or, with `stop_on_stdin_eof`, the end of stdin; return which came.

    The signal handlers are set only during this call, so that a second Ctrl-C interrupts a graceful stop. `on_waiting`
    is called once they are set. Write the ready file there, because a parent may stop its child as soon as it is ready.
    systemd is told that the service is ready then, and while it stops.
    A stdin that is closed, or that cannot be polled (a file, /dev/null), counts as ended.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[ShutdownReason] = loop.create_future()
    manager = ServiceManager()

    def stop(reason: ShutdownReason) -> None:
        if not stopped.done():
            stopped.set_result(reason)

    loop.add_signal_handler(signal.SIGTERM, stop, ShutdownReason.SIGTERM)
    loop.add_signal_handler(signal.SIGINT, stop, ShutdownReason.SIGINT)
    if stop_on_hangup:
        loop.add_signal_handler(signal.SIGHUP, stop, ShutdownReason.SIGHUP)
    try:
        if stop_on_stdin_eof:
            _watch_stdin(loop, stop)
        # Only now: a parent that reads the ready file may send a signal at once.
        if on_waiting is not None:
            on_waiting()
        manager.ready()
        return await stopped
    finally:
        manager.stopping()
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGHUP)
        if stop_on_stdin_eof:
            loop.remove_reader(_STDIN_FD)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[ShutdownReason], None]) -> None:
    def read() -> None:
        try:
            # Bytes on stdin have no meaning; only its end has.
            ended = not os.read(_STDIN_FD, _DISCARD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(_STDIN_FD)
            stop(ShutdownReason.STDIN_CLOSED)

    try:
        loop.add_reader(_STDIN_FD, read)
    except OSError:  # epoll accepts only pipes, sockets and terminals
        stop(ShutdownReason.STDIN_CLOSED)
