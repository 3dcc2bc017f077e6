"""What happened to one job, in order, for watchers: a bounded list with sequences that only rise.

A job that is resumed gets a new fork, and with it an empty log: what became of the earlier fork is no news of this one,
and the run directory has it. State changes are kept for good. Pictures of the fleet are worth something while they are
fresh, so only the newest few stay. Of the trainer's records the oldest go first; they are all in the run directory.
"""

from bisect import bisect_right
from dataclasses import dataclass

from coordinator.state import Job, State
from periplus.values.record import Record

MAX_EVENTS = 10_000
"""Hours of steps at one a second, in some MB."""

MAX_PICTURES = 8
"""More than the window over which watchers average rates (periplus/view/state.py) at one a second."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`news`: the job after its state changed, a record of its trainer, or the state whose fleet is to be shown."""

    sequence: int
    time_s: float
    news: Job | Record | State


class JobLog:
    """Append and read; sequences go on when a job is resumed under its id."""

    def __init__(self) -> None:
        self._events: list[JobEvent] = []
        self._last = 0
        self._fork = 0

    def append(self, time_s: float, news: Job | Record | State) -> None:
        """Add one event, and thin out old ones."""
        if isinstance(news, Job) and news.fork > self._fork:
            self._fork = news.fork
            self._events.clear()
        self._last += 1
        self._events.append(JobEvent(self._last, time_s, news))
        if isinstance(news, State):
            pictures = [event for event in self._events if isinstance(event.news, State)]
            if len(pictures) > MAX_PICTURES:
                self._events.remove(pictures[0])
        if len(self._events) > MAX_EVENTS:
            oldest = next((event for event in self._events if not isinstance(event.news, Job)), self._events[0])
            self._events.remove(oldest)

    def after(self, sequence: int) -> tuple[JobEvent, ...]:
        """What came after this sequence and is still kept."""
        start = bisect_right(self._events, sequence, key=lambda event: event.sequence)
        return tuple(self._events[start:])
