"""How a Periplus process meets the process that started it: it says when it is ready, and it knows when to stop.

A parent that passed port 0 learns the addresses from the ready file, which appears whole or not at all. A parent that
dies cannot send a signal, but the kernel closes its pipes: a child that was started with `stdin=PIPE` and
`--stop-on-stdin-eof` ends with it, so that no process stays behind.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from periplus import errors

_STDIN_FD = 0
_DISCARD_BYTES = 1 << 16


class ShutdownReason(StrEnum):
    """Why a process was asked to stop."""

    SIGTERM = "SIGTERM"
    SIGINT = "SIGINT"
    STDIN_CLOSED = "stdin closed"


def write_ready_file(path: str | Path, mapping: Mapping[str, str | int]) -> None:
    """Write `mapping` as one JSON object, atomically: a reader sees nothing or all of it.

    Raises: ConfigError if the path cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(dict(mapping)) + "\n", encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise errors.ConfigError(
            f"cannot write the ready file {target}: {error}; give a path in a writable folder"
        ) from error


async def wait_for_stop(stop_on_stdin_eof: bool, on_waiting: Callable[[], None] | None = None) -> ShutdownReason:
    """Wait for SIGTERM, SIGINT or, if asked for, the end of stdin, and tell which came.

    The handlers are set only while this waits: a second Ctrl-C during a graceful stop interrupts it. Say that you are
    ready in `on_waiting`, which is called once they are set: a parent may stop its child the moment that it is ready.
    A stdin that is closed, or that cannot be waited for (a file, /dev/null), counts as ended.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[ShutdownReason] = loop.create_future()

    def stop(reason: ShutdownReason) -> None:
        if not stopped.done():
            stopped.set_result(reason)

    loop.add_signal_handler(signal.SIGTERM, stop, ShutdownReason.SIGTERM)
    loop.add_signal_handler(signal.SIGINT, stop, ShutdownReason.SIGINT)
    try:
        if stop_on_stdin_eof:
            _watch_stdin(loop, stop)
        if on_waiting is not None:
            on_waiting()
        return await stopped
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        if stop_on_stdin_eof:
            loop.remove_reader(_STDIN_FD)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[ShutdownReason], None]) -> None:
    def read() -> None:
        try:
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
    except OSError:  # epoll takes pipes, sockets and terminals only
        stop(ShutdownReason.STDIN_CLOSED)
