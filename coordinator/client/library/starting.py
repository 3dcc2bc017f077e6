"""Runs a local fleet for a script or a notebook: `periplus up` as a process of its own.

The process ends with the client that `up` returns: with its `with` block, its `close`, or the script. If the script is
killed, the process reads the end of its standard input and stops its services. It has a session of its own, so that the
terminal's Ctrl-C reaches the script alone.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from coordinator.client.library.client import Client, connect
from coordinator.local_fleet.records import FleetRecord
from coordinator.local_fleet.services import STOP_GRACE_S
from periplus.errors import MEANING, PeriplusError

STOP_DEADLINE_S = 2 * STOP_GRACE_S + 10.0
"""Seconds for the fleet to stop before it is killed: its two waves of services, and slack. Chosen by hand."""

_ERROR = "error: "
"""Beginning of the message with which a command fails."""


class FleetClient(Client):
    """A connection to a fleet of its own, which ends with it. `ending` stops the fleet."""

    def __init__(self, client: Client, ending: ExitStack) -> None:
        super().__init__(client._coordinator)
        self._ending = ending

    def close(self) -> None:
        """Close the connection and end the fleet. Jobs that still run are stopped, with a checkpoint."""
        super().close()
        self._ending.close()


def up(
    directory: str | os.PathLike[str] = ".",
    *,
    regions: int | Sequence[str] = 1,
    grid: str = "",
    worker_threads: int | None = None,
    trainer_threads: int | None = None,
    jobs_per_region: int = 1,
    allow_dirs: Sequence[str | os.PathLike[str]] = (),
) -> FleetClient:
    """Run a fleet on this machine, and return a connection to it.

    The fleet ends with the connection: after its `with` block, at its `close`, or with the script. Jobs that still run
    at the end are stopped, with a checkpoint. Jobs write their runs below `directory`, your home or one of
    `allow_dirs`. `regions` is a number or names. With `grid`, the network between them is emulated: "continental",
    "intercontinental", "off", or the path of a grid file. `jobs_per_region` jobs may share a group of cores.

    Raises: Conflict if a fleet runs in the directory already, ConfigError, TimedOut, PeriplusError.
    """
    names = str(regions) if isinstance(regions, int) else ",".join(regions)
    words = ["--dir", os.fspath(directory), "--regions", names, "-o", "json", "--stop-on-stdin-eof"]
    words += [word for each in allow_dirs for word in ("--allow-dir", os.fspath(each))]
    words += ["--jobs-per-region", str(jobs_per_region)]
    options = {"--grid": grid, "--worker-threads": worker_threads, "--trainer-threads": trainer_threads}
    words += [word for name, value in options.items() if value not in ("", None) for word in (name, str(value))]
    with ExitStack() as starting:
        said = starting.enter_context(tempfile.TemporaryFile())
        process = starting.enter_context(_running(words, said))
        client = connect(_ready(process, said).coordinator)
        return FleetClient(client, starting.pop_all())


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
