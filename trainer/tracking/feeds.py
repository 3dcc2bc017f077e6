"""Hands a run's records to its trackers' processes, without waiting for them.

A tracker's process is started by the first record that has values, so a job that is refused starts none. Rows wait in a
queue of bounded length. A tracker that is slower than training loses the rows for which there is no room; the first
loss and their number at the end are WARNINGs. A tracker that fails is one WARNING, and gets nothing more.

At the end of the run, whether it succeeded or not, all trackers together get FINISH_S seconds to write what is left,
or TURN_S once the trainer was asked to stop. Then their processes are killed, and the rows that may be lost are counted
in a WARNING.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from periplus import clock
from periplus.process.telemetry import event
from periplus.values.record import Record
from trainer.tracking.opening import TrackerOpening, tracker_environment
from trainer.tracking.rows import row_of

log = logging.getLogger(__name__)

QUEUE_ROWS = 1000
"""Rows that wait for one tracker at most. Chosen by hand: a row has 2 to 3 kB, and a tracker needs 5 to 20 s to start,
in which even a tiny model takes fewer steps."""

FINISH_S = 120.0
"""Seconds that trackers get at the end to write what is left. Chosen by hand: a tracker that writes files needs less
than 3 s, but a short run ends while it starts, which takes minutes on a machine with much other work."""

TURN_S = 10.0
"""Seconds after which a wait at the end is said again, and which it may last once the trainer was asked to stop: an
agent kills it 30 s later. Chosen by hand."""

MAX_REASON_BYTES = 2000
"""Bytes of a tracker's error that are logged at most."""


class TrackerFeed:
    """Feeds the process of one tracker. `environment` holds the variables of the trainer's process."""

    def __init__(self, opening: TrackerOpening, environment: Mapping[str, str]) -> None:
        self.opening = opening
        self._variables = tracker_environment(opening, environment)
        self._rows: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_ROWS)
        self._is_wanted = asyncio.Event()
        self._has_ended = False
        self._num_dropped = 0
        self.num_sent = 0

    @property
    def is_wanted(self) -> bool:
        """Whether a record with values has come."""
        return self._is_wanted.is_set()

    def send(self, record: Record) -> None:
        """Hand over a record, or drop it if the tracker is too far behind or has ended."""
        if self._has_ended:
            return
        row = row_of(record, self.opening.resumed_version or 0)
        try:
            self._rows.put_nowait(f"{row.to_json()}\n".encode())
            self.num_sent += 1
        except asyncio.QueueFull:
            if self._num_dropped == 0:
                self._warn("tracker_behind", rows=QUEUE_ROWS)
            self._num_dropped += 1
        if record.values:
            self._is_wanted.set()

    def close(self) -> None:
        """End the rows. The tracker writes what is left."""
        if self._rows.full():
            self._rows.get_nowait()
            self._num_dropped += 1
        self._rows.put_nowait(None)

    def give_up(self) -> None:
        """Say that the tracker is not waited for any more."""
        self._warn("tracker_slow_to_finish", rows_at_risk=self.num_sent)

    async def run(self) -> None:
        """Start the tracker's process, feed it, and return when it has ended. Cancelling kills it. Raises nothing."""
        await self._is_wanted.wait()
        try:
            reason = await self._feed()
        except Exception as error:  # the root of a task that must not fail the trainer
            reason = str(error) or repr(error)
        self._has_ended = True
        if reason is not None:
            self._warn("tracker_failed", why=reason)
        elif self._num_dropped:
            self._warn("tracker_lost_rows", rows=self._num_dropped)

    async def _feed(self) -> str | None:
        # -P keeps a folder named `trainer` in the current directory from being imported in place of the package.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "trainer.tracking.process"), stdin=PIPE, stdout=PIPE, env=self._variables
        )
        try:
            await self._write(process)
            assert process.stdout is not None
            said = await process.stdout.read(MAX_REASON_BYTES)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return None if code == 0 else said.decode(errors="replace") or f"its process ended with {code}"

    async def _write(self, process: Process) -> None:
        pipe = process.stdin
        assert pipe is not None
        pipe.write(f"{self.opening.to_json()}\n".encode())
        try:
            while (line := await self._rows.get()) is not None:
                pipe.write(line)
                await pipe.drain()
        except ConnectionError:  # the process has ended, and its exit says why
            pass
        pipe.close()

    def _warn(self, name: str, **fields: object) -> None:
        opening = self.opening
        event(log, logging.WARNING, name, job=opening.job_id, tracker=opening.tracker, **fields)


class Trackers:
    """The trackers of a run, whose feeds are running."""

    def __init__(self, running: Mapping["asyncio.Task[None]", TrackerFeed] | None = None) -> None:
        self._running = dict(running or {})

    def record(self, record: Record) -> None:
        """Hand a record to all trackers. It takes a fraction of a millisecond, and never waits."""
        for feed in self._running.values():
            feed.send(record)

    async def finish(self, stop: asyncio.Event, say: Callable[[str], None]) -> None:
        """Let the trackers write what is left, and end them. `stop` shortens the wait, and `say` is told of it."""
        running, self._running = self._running, {}
        late = {task for task, feed in running.items() if feed.is_wanted}
        for task in late:
            running[task].close()
        deadline_s = clock.monotonic_s() + FINISH_S
        try:
            while late and (left_s := deadline_s - clock.monotonic_s()) > 0:
                _, late = await asyncio.wait(late, timeout=min(TURN_S, left_s))
                if late and stop.is_set():
                    break
                if late:
                    names = ", ".join(sorted(running[task].opening.tracker for task in late))
                    say(f"waiting for trackers to write the last records: {names}, for at most {left_s:.0f} s")
            for task in late:
                running[task].give_up()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@asynccontextmanager
async def tracking(
    openings: Sequence[TrackerOpening], environment: Mapping[str, str], stop: asyncio.Event
) -> AsyncIterator[Trackers]:
    """Run the trackers of a run, and let them finish on leaving, unless that is done."""
    feeds = [TrackerFeed(opening, environment) for opening in openings]
    trackers = Trackers({asyncio.create_task(feed.run()): feed for feed in feeds})
    try:
        yield trackers
    finally:
        await trackers.finish(stop, lambda said: event(log, logging.INFO, "trackers", why=said))
