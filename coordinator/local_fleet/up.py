"""Runs one local fleet from its start until it is asked to stop, for `periplus up`.

Progress goes to standard error, and to standard output only where the fleet listens. A signal, or the end of standard
input for a parent that asked for it, stops the agents first, so that the trainers of running jobs write checkpoints; a
second Ctrl-C kills what still runs. If this process is killed, its services read the end of their standard input and
stop by themselves. A service that ends by itself ends the fleet with an error.
"""

import asyncio
import contextlib
import shutil
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from coordinator.client.connection import Coordinator, connect, job_state
from coordinator.local_fleet.directory import held_folder
from coordinator.local_fleet.fleet import FleetAddresses, LocalFleet, LocalFleetSettings
from coordinator.local_fleet.records import FleetRecord, announced, own_process
from coordinator.local_fleet.services import Services
from coordinator.members.access import Access
from coordinator.state import ENDED_STATES
from periplus import clock
from periplus.errors import EXIT_INTERRUPTED, EXIT_OK, PeriplusError
from periplus.job.resumption import newest_checkpoint
from periplus.process.lifecycle import ShutdownReason, wait_for_stop
from periplus.values.task import resume_command
from periplus.view import units
from periplus.view.terminal.visible import say

CHECK_S = 1.0
"""Seconds between two checks that all services still run; chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """The settings of one `periplus up`. `records` is the folder in which other programs look for fleets."""

    fleet: LocalFleetSettings
    records: Path
    hostname: str
    as_json: bool
    stop_on_stdin_eof: bool
    launched_s: float


async def run_up(settings: UpSettings) -> int:
    """Run the fleet until it is asked to stop, and return the exit code. Raises: PeriplusError, Conflict."""
    with held_folder(settings.fleet.work_dir) as folder:
        services = Services(folder)
        up = _Up(settings, services)
        hurries: list[int] = []
        asked = asyncio.ensure_future(wait_for_stop(settings.stop_on_stdin_eof))
        serving = asyncio.ensure_future(up.serve())
        try:
            await asyncio.wait({asked, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            _count_signals(hurries)
            await up.note_running_jobs()
        finally:
            for task in (asked, serving):
                task.cancel()
            await asyncio.gather(asked, serving, return_exceptions=True)
            _count_signals(hurries)
            await services.stop(lambda: bool(hurries))
            with contextlib.suppress(OSError):
                settings.fleet.token_file.unlink(missing_ok=True)
            for folder in (settings.fleet.identity, settings.fleet.state_dir):
                shutil.rmtree(folder, ignore_errors=True)
        up.say_what_is_left()
    return EXIT_INTERRUPTED if asked.result() is ShutdownReason.SIGINT else EXIT_OK


def _count_signals(heard: list[int]) -> None:
    """Let the list grow with each signal from now on: those that asked for the stop were waited for elsewhere."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard.append, number)


class _Up:
    def __init__(self, settings: UpSettings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._coordinator = ""
        self._access = Access()
        self._running_jobs: dict[str, str] = {}  # by id: the run directory, or empty before its trainer was started

    async def serve(self) -> None:
        """Start the fleet, tell where it listens, and check its services without end. Raises: PeriplusError."""
        fleet = LocalFleet(self._settings.fleet, self._services, self._doing)
        addresses = await fleet.start()
        self._access = fleet.access()
        async with connect(addresses.coordinator, self._access) as remote:
            await fleet.await_regions(remote)
        self._coordinator = addresses.coordinator
        record = self._record(addresses)
        with announced(record, self._settings.records):
            self._tell(record)
            while True:
                self._services.check()
                await asyncio.sleep(CHECK_S)

    def _record(self, addresses: FleetAddresses) -> FleetRecord:
        process_id, start = own_process()
        return FleetRecord(
            **asdict(addresses),
            regions=self._settings.fleet.regions,
            directory=str(self._settings.fleet.work_dir),
            process_id=process_id,
            process_start=start,
            hostname=self._settings.hostname,
            token_file=str(self._settings.fleet.token_file),
            identity=str(self._settings.fleet.identity),
        )

    def _tell(self, record: FleetRecord) -> None:
        if self._settings.as_json:
            click.echo(record.to_json())
            return
        network = f", emulated network at {record.wan}" if record.wan else ""
        say(f"coordinator  {record.coordinator}{network}")
        say(f"regions      {', '.join(record.regions)}")
        say(f"runs go to   {record.directory}")
        _say("submit a job:  periplus job submit JOB.yaml --watch     from Python:  periplus.connect()")
        _say("commands on this machine find the fleet by themselves; Ctrl-C stops it")

    async def note_running_jobs(self) -> None:
        """Say which jobs the stop will end, and remember them for `say_what_is_left`."""
        if not self._coordinator:
            return
        try:
            async with connect(self._coordinator, self._access) as remote:
                self._running_jobs = await _running_jobs(remote)
        except PeriplusError:  # the fleet stops anyway; the run directories tell what is left
            return
        if self._running_jobs:
            jobs = ", ".join(self._running_jobs)
            _say(f"stopping: {jobs} may write a checkpoint first (Ctrl-C once more kills everything at once)")

    def say_what_is_left(self) -> None:
        """After all services stopped, tell how each job that was ended goes on."""
        for job_id, run_dir in self._running_jobs.items():
            try:
                if not run_dir:
                    raise PeriplusError("its trainer was never started")
                checkpoint = newest_checkpoint(Path(run_dir))
            except PeriplusError as error:
                _say(f"{job_id} was stopped and cannot be resumed: {error}")
            else:
                again = f"periplus up, then {resume_command(run_dir)}"
                _say(f"{job_id} was stopped; checkpoint {checkpoint.policy} is kept. Resume with: {again}")

    def _doing(self, message: str) -> None:
        _say(f"{units.clock(clock.monotonic_s() - self._settings.launched_s):>7}  {message}")


async def _running_jobs(remote: Coordinator) -> dict[str, str]:
    ended = {state.value for state in ENDED_STATES}
    return {job.job_id: job.files.run_dir for job in await remote.jobs() if job_state(job) not in ended}


def _say(message: str) -> None:
    say(message, err=True)
