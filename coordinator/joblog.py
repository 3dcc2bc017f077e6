"""The events of one job in order, for its watchers: a bounded list with rising sequence numbers.

There are three kinds of event: changes of the job's state, records of its trainer, and pictures of the fleet. State
changes are kept. Only the newest few pictures are kept, because a picture is useful only while it is fresh. When the
list is full, the oldest trainer's record is dropped; all records are also in the run directory. A resumed job gets a
new fork and an empty log, because the events of earlier forks are in the run directory.
"""

from bisect import bisect_right
from dataclasses import dataclass

from coordinator.state import Job, State
from periplus.values.record import Record

MAX_EVENTS = 10_000
"""Events kept for one job. Chosen by hand: almost three hours at one step a second, in a few megabytes."""

MAX_PICTURES = 8
"""Pictures of the fleet kept for one job, one a second.

It must exceed the window in seconds over which watchers average rates (`periplus/view/state.py`).
"""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event: `news` is the job after a state change, a trainer's record, or a state whose fleet is shown."""

    sequence: int
    time_s: float
    news: Job | Record | State


class JobLog:
    """The events of one job, with numbers above `first`. They go on rising when the job is resumed under its id."""

    def __init__(self, first: int = 0) -> None:
        self._events: list[JobEvent] = []
        self._last = first
        self._fork = 0

    def append(self, time_s: float, news: Job | Record | State) -> None:
        """Add one event and drop old ones that exceed the limits."""
        # The job was resumed. Sequence numbers go on, so that watchers of the earlier fork see the new events.
        if isinstance(news, Job) and news.fork > self._fork:
            self._fork = news.fork
            self._events.clear()
        self._last += 1
        self._events.append(JobEvent(self._last, time_s, news))
        if isinstance(news, State):
            pictures = [event for event in self._events if isinstance(event.news, State)]
            if len(pictures) > MAX_PICTURES:
                self._events.remove(pictures[0])
        # State changes are kept while there is anything else to drop.
        if len(self._events) > MAX_EVENTS:
            oldest = next((event for event in self._events if not isinstance(event.news, Job)), self._events[0])
            self._events.remove(oldest)

    def after(self, sequence: int) -> tuple[JobEvent, ...]:
        """Return the kept events with a sequence number above this one."""
        start = bisect_right(self._events, sequence, key=lambda event: event.sequence)
        return tuple(self._events[start:])
