"""Runs one demo from launch to summary: WAN emulator, coordinator, agents, one job and its live view.

The demo does what an operator would do: start the services, wait until all regions have joined and all links are
measured, submit the job, watch it to its end, audit the run and print the summary. It uses only commands and gRPC calls
and never reaches into a service. The first interrupts cancel the job, so that its trainer writes a checkpoint. The
`wan_bytes` of the summary are counted by the emulator.
"""

import asyncio
import contextlib
import json
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from coordinator.client.connection import Coordinator, connect, job_state, raise_outcome, view_event
from coordinator.client.submission import submission
from coordinator.local_fleet.fleet import LocalFleet, LocalFleetSettings
from coordinator.local_fleet.services import Services
from coordinator.state import JobState
from periplus import clock
from periplus.audit.run_reader import audit_run
from periplus.config import finite_json
from periplus.config.local_paths import home_folder
from periplus.errors import EXIT_INTERRUPTED, EXIT_OK, DiskFull, NotFound, PeriplusError, explained_error
from periplus.job.job_file import JobFile
from periplus.job.resumption import ResumePoint, newest_checkpoint
from periplus.job.run_directory import RunDirectory, append_line, read_lines, write_atomically
from periplus.net.tokens import read_token
from periplus.pb.v1 import control_pb2
from periplus.values.record import RecordKind
from periplus.view import units
from periplus.view.page.write_report import write_report
from periplus.view.recording import recorded
from periplus.view.state import Event, ViewState
from periplus.view.summary import WanCounter, summary_from, summary_json, summary_table
from periplus.view.terminal.watch import watch
from periplus.wan.client import WanControl

SESSIONS_FILE = "demo.jsonl"
"""File in the run's log folder with one line for each demo that worked on the run.

A resumed demo sums the bytes and times of all lines.
"""

INTERRUPTS_TO_GIVE_UP = 3
"""Number of interrupts at which the demo stops waiting; each earlier one asks the coordinator to cancel the job."""

CHECK_S = 1.0
"""Seconds between two checks that all services still run; chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of one demo, from its command line. `launched_s` is the start time on the monotonic clock."""

    job: JobFile
    resume: ResumePoint | None
    wan: str
    regions: tuple[str, ...]
    work_dir: Path
    as_json: bool
    live: bool
    request_id: str
    launched_s: float


async def run_demo(settings: DemoSettings) -> int:
    """Run the demo to its end, stop its services, and return the exit code. Raises: PeriplusError."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="periplus-demo-") as scratch:
        services = Services(Path(scratch))
        demo = _Demo(settings, services, Path(scratch), console)
        try:
            return await demo.run()
        # The services stop before their logs are moved, so that the logs are complete. What is left of the run can be
        # told only then, because a trainer may still write a checkpoint while it stops.
        finally:
            await services.stop(lambda: demo.num_interrupts >= INTERRUPTS_TO_GIVE_UP)
            if demo.run_directory is not None:
                try:
                    services.move_logs(demo.run_directory.logs)
                except OSError as error:
                    console.print(f"the logs of the demo's services are lost: {error}", highlight=False)
                demo.say_what_is_left(demo.run_directory)


def _final_digest(run: RunDirectory) -> str:
    """Return the digest of the weights that were published last: the summary record carries it as its text."""
    return next(record.text for record in reversed(run.records()) if record.kind is RecordKind.SUMMARY)


class _Demo:
    def __init__(self, settings: DemoSettings, services: Services, scratch: Path, console: Console) -> None:
        self._settings = settings
        self._services = services
        self._console = console
        self._token_file = scratch / "token"
        layout = LocalFleetSettings(
            regions=settings.regions,
            wan=settings.wan,
            work_dir=settings.work_dir,
            token_file=self._token_file,
            state_dir=scratch / "coordinator",
            identity=scratch / "identity",
            # The demo's job is its own user's, who names its directory on the command line.
            allow_dirs=(home_folder(), settings.work_dir / settings.job.output.dir),
        )
        self._fleet = LocalFleet(layout, services, self._doing)
        self._interrupted = asyncio.Event()
        self.num_interrupts = 0
        self.run_directory: RunDirectory | None = None
        self._is_done = False

    async def run(self) -> int:
        """Run every step of the demo and return the exit code. An interrupt at any step leads to a clean end."""
        loop = asyncio.get_running_loop()
        # A handler replaces KeyboardInterrupt, so that an interrupt first cancels the job, which writes a checkpoint.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        starting = asyncio.ensure_future(self._fleet.start())
        if not await self._unless_interrupted(starting):
            return EXIT_INTERRUPTED
        addresses = starting.result()
        async with connect(addresses.coordinator, self._fleet.access()) as remote:
            joining = asyncio.ensure_future(self._fleet.await_regions(remote))
            if not await self._unless_interrupted(joining):
                return EXIT_INTERRUPTED
            submitted = await remote.submit(self._request())
            # The events are recorded from the first one on, before the trainer itself makes the directory.
            run = RunDirectory(self._settings.work_dir / self._settings.job.output.dir / submitted.job_id)
            run.create()
            self.run_directory = run
            state = await self._watch(remote, submitted.job_id, run)
            if state is None:
                return EXIT_INTERRUPTED
            ended = await remote.job(submitted.job_id)
        return await self._conclude(ended, state, run, addresses.wan)

    def _interrupt(self) -> None:
        self.num_interrupts += 1
        self._interrupted.set()

    async def _unless_interrupted(self, work: "asyncio.Future[Any]") -> bool:
        interrupted: asyncio.Future[Any] = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait({work, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if work.done():
            # This raises the error with which the work ended, if any.
            work.result()
            return True
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        self._say("interrupted before the job was submitted; nothing to keep")
        return False

    # ---- before the job -------------------------------------------------------------------------------------------

    def _request(self) -> control_pb2.SubmitJobRequest:
        settings = self._settings
        return submission(settings.job, settings.request_id, settings.resume)

    # ---- the job --------------------------------------------------------------------------------------------------

    async def _watch(self, remote: Coordinator, job_id: str, run: RunDirectory) -> ViewState | None:
        """Watch the job to its end and return what the view then showed; None if the user gave up waiting."""
        job = self._settings.job
        # The view counts from the launch of the demo, as time since 1970.
        launched_at_s = clock.unix_s() - (clock.monotonic_s() - self._settings.launched_s)
        start = ViewState(steps_total=job.steps, staleness_bound=job.staleness, started_at_s=launched_at_s)
        events = recorded(self._events(remote, job_id), run)
        watching = asyncio.ensure_future(watch(events, self._console, self._settings.live, start=start))
        guarding = asyncio.ensure_future(self._guard(remote, job_id))
        try:
            # The watcher ends with the job. The guard ends when the user gives up waiting, or fails if a service has
            # ended.
            await asyncio.wait({watching, guarding}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watching.result()
            guarding.result()
            return None
        finally:
            for task in (watching, guarding):
                task.cancel()
            await asyncio.gather(watching, guarding, return_exceptions=True)

    async def _guard(self, remote: Coordinator, job_id: str) -> None:
        """Cancel the job at each interrupt; return when the user gives up. Raises: PeriplusError if a service ended."""
        num_heard = 0
        while self.num_interrupts < INTERRUPTS_TO_GIVE_UP:
            self._services.check()
            if num_heard < self.num_interrupts:
                num_heard += 1
                self._say("stopping: the trainer writes a checkpoint first (Ctrl-C twice more gives up waiting)")
                with contextlib.suppress(PeriplusError):  # the job may have ended by itself; the watcher then shows it
                    await remote.cancel(job_id)
            # Wait for the next interrupt, but not longer than CHECK_S, so that the services are checked meanwhile.
            self._interrupted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), CHECK_S)

    async def _events(self, remote: Coordinator, job_id: str) -> AsyncIterator[Event]:
        async for event in remote.watch(job_id):
            seen = view_event(event)
            if seen is not None:
                yield seen

    # ---- after it -------------------------------------------------------------------------------------------------

    async def _conclude(self, ended: control_pb2.Job, state: ViewState, run: RunDirectory, wan: str) -> int:
        # The emulator counts every byte between regions; its counts are lost when it stops with the demo.
        async with WanControl(wan, read_token(self._token_file)) as emulator:
            counted = sum(count.delivered_bytes for count in await emulator.counters())
        wall_s = clock.monotonic_s() - self._settings.launched_s
        # The session is noted also for a cancelled job: the sums of a resumed run need it.
        try:
            append_line(run.logs / SESSIONS_FILE, finite_json.dumps({"wan_bytes": counted, "wall_s": round(wall_s, 3)}))
        except DiskFull as error:
            self._say(f"time and bytes of this session are not noted, so no later summary has them: {error}")
        if job_state(ended) == JobState.CANCELLED:
            return EXIT_INTERRUPTED
        raise_outcome(ended)
        self._is_done = True
        sessions = [json.loads(line) for line in read_lines(run.logs / SESSIONS_FILE)]
        summary = summary_from(state.summary, self._settings.regions)
        all_known = len(sessions) == run.records()[-1].policy.fork + 1  # a demo that was killed left no line
        summary = replace(
            summary,
            wan_bytes=sum(session["wan_bytes"] for session in sessions) if all_known else None,
            wan_bytes_from=WanCounter.EMULATOR if all_known else None,
            wall_s=sum(session["wall_s"] for session in sessions) if all_known else None,
        )
        # The report reads the summary file.
        write_atomically(run.summary, summary_json(summary) + "\n")
        write_report(run)
        await self._audit(run)
        if self._settings.as_json:
            print(summary_json(summary, job_id=ended.job_id, run_dir=str(run.root), weights_digest=_final_digest(run)))  # noqa: T201
        else:
            console = Console()
            console.print(summary_table(summary, ascii_only=console.options.ascii_only))
        self._say(f"run directory: {run.root} (report.html, metrics.jsonl, final/ is the model)")
        return EXIT_OK

    async def _audit(self, run: RunDirectory) -> None:
        """Audit the finished run. Raises: PeriplusError if the audit found anything wrong."""
        report = await asyncio.to_thread(audit_run, run.root, (), lambda *_: None)
        if not report.is_clean:
            first = report.findings[0].message
            raise PeriplusError(
                f"the audit found {len(report.findings)} errors; the first is: {first}; see all of them with: "
                f"periplus job audit {run.root}"
            )
        assert report.surviving is not None
        self._say(f"audit: clean, {report.surviving.trained:,} samples trained on (periplus job audit {run.root})")

    def say_what_is_left(self, run: RunDirectory) -> None:
        """After all services stopped, tell where an unfinished run's report and logs are and how to resume the run."""
        if self._is_done:
            return
        # A finished run has printed all this already. Here the report is of the part that ran.
        try:
            self._say(f"report: {write_report(run)}")
        except PeriplusError as error:
            self._say(f"no report: {explained_error(error)}")
        self._say(f"logs: {run.logs}")
        try:
            checkpoint = newest_checkpoint(run.root)
        except NotFound:
            self._say("stopped before the first checkpoint: there is nothing to resume from, start again")
            return
        except PeriplusError as error:
            self._say(f"no checkpoint can be read: {explained_error(error)}")
            return
        again = f"periplus demo --resume {shlex.quote(str(run.root))}"
        self._say(f"stopped; checkpoint {checkpoint.policy} is kept. Resume with: {again}")

    def _doing(self, message: str) -> None:
        """Print the step that begins, with the time since launch; the live view's clock continues from it."""
        self._say(f"{units.clock(clock.monotonic_s() - self._settings.launched_s):>7}  {message}")

    def _say(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)
