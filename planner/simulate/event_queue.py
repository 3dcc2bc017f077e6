"""Event queue: events are handled in the order of their times, and those of the same time in the order of entry."""

import heapq
import math
from collections.abc import Callable


class EventQueue:
    """Event queue of one run.

    `now_s` is the simulated time of the event that is being handled.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._num_entered = 0

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Schedule `action` at that time, or now if the time has passed. An infinite time means never."""
        if time_s == math.inf:
            return
        # The running number makes the order of simultaneous events definite, and keeps the heap from comparing actions.
        self._num_entered += 1
        heapq.heappush(self._entries, (max(time_s, self.now_s), self._num_entered, action))

    def step(self) -> bool:
        """Handle the next event. Return False if there is none."""
        if not self._entries:
            return False
        self.now_s, _, action = heapq.heappop(self._entries)
        action()
        return True
