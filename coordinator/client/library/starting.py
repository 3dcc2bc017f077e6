"""Runs a local fleet for the time of a script's `with` block: `periplus up` as a process of its own.

The process ends with the block. If the script is killed, the process reads the end of its standard input and stops its
services. It has a session of its own, so that the terminal's Ctrl-C reaches the script alone.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from coordinator.client.library.client import Client, connect
from coordinator.local_fleet.records import FleetRecord
from coordinator.local_fleet.services import STOP_GRACE_S
from periplus.errors import MEANING, PeriplusError

STOP_DEADLINE_S = 2 * STOP_GRACE_S + 10.0
"""Seconds for the fleet to stop before it is killed: its two waves of services, and slack. Chosen by hand."""

_ERROR = "error: "
"""Beginning of the message with which a command fails."""


@contextmanager
def up(
    directory: str | os.PathLike[str] = ".",
    *,
    regions: int | Sequence[str] = 1,
    grid: str = "",
    worker_threads: int | None = None,
    trainer_threads: int | None = None,
    allow_dirs: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[Client]:
    """Run a fleet on this machine while the `with` block lasts, and yield a connection to it.

    Jobs write their runs below `directory`, your home or one of `allow_dirs`. `regions` is a number or names. With
    `grid`, the network between them is emulated: "continental", "intercontinental", "off", or the path of a grid file.
    Jobs that still run when the block ends are stopped, with a checkpoint.

    Raises: Conflict if a fleet runs in the directory already, ConfigError, TimedOut, PeriplusError.
    """
    names = str(regions) if isinstance(regions, int) else ",".join(regions)
    words = ["--dir", os.fspath(directory), "--regions", names, "-o", "json", "--stop-on-stdin-eof"]
    words += [word for each in allow_dirs for word in ("--allow-dir", os.fspath(each))]
    options = {"--grid": grid, "--worker-threads": worker_threads, "--trainer-threads": trainer_threads}
    words += [word for name, value in options.items() if value not in ("", None) for word in (name, str(value))]
    with (
        tempfile.TemporaryFile() as said,
        _running(words, said) as process,
        connect(_ready(process, said).coordinator) as client,
    ):
        yield client


@contextmanager
def _running(words: Sequence[str], said: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "periplus", "up", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_DEADLINE_S)
        finally:
            # Also after an interrupt of the wait. What the fleet has started ends when it does.
            process.kill()
            process.wait()
            process.stdout.close()


def _ready(process: "subprocess.Popen[bytes]", said: IO[bytes]) -> FleetRecord:
    """Return where the fleet listens, once it does: each step of its start has a deadline of its own.

    Raises: the PeriplusError with which it ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if line:
        return FleetRecord.from_json(line.decode())
    code = process.wait(STOP_DEADLINE_S)
    said.seek(0)
    text = said.read().decode(errors="replace").strip()
    # Everything before the command's last message is progress.
    _, is_told, message = f"\n{text}".rpartition(f"\n{_ERROR}")
    if not is_told:
        message = f"the local fleet ended before it was ready, with exit code {code}: {text or 'it said nothing'}"
    kind = next((each for each, meaning in MEANING.items() if meaning.exit_code == code), PeriplusError)
    raise kind(message)
