"""Time-sharing of a group's devices: one task at a time, with generation in the background.

Tasks get the devices in the order of their requests. Generation that runs in the background is paused while any
request is open.
"""

from collections import deque
from collections.abc import Callable

from planner.simulate.event_queue import EventQueue

Work = Callable[[Callable[[], None]], None]
"""Function that starts work on the devices. It calls its argument, which releases them, when it is done with them."""


class DeviceQueue:
    """Queue of requests for one group's devices.

    `pause` stops what runs in the background and returns the time at which the devices are free. `resume` starts it
    again when the queue is empty. Both are None if nothing runs in the background.
    """

    def __init__(
        self, events: EventQueue, pause: Callable[[], float] | None, resume: Callable[[], None] | None
    ) -> None:
        self.is_busy = False
        self._events = events
        self._pause = pause
        self._resume = resume
        self._queue: deque[Work] = deque()

    def request(self, work: Work) -> None:
        """Queue work. It starts when all earlier requests have released the devices."""
        self._queue.append(work)
        # Only the first request stops the background: it stays stopped until no request is left.
        if not self.is_busy:
            self.is_busy = True
            free_s = self._pause() if self._pause else self._events.now_s
            self._events.at(free_s, self._next)

    def request_pass(self, seconds: Callable[[], float], on_done: Callable[[float, float], None]) -> None:
        """Queue a pass of `seconds()` seconds and call `on_done(began_s, ended_s)` at its end.

        `on_done` may request the next pass.
        """

        def begin(release: Callable[[], None]) -> None:
            began_s = self._events.now_s

            def end() -> None:
                # `on_done` comes first: what it requests is queued before the background could be resumed.
                on_done(began_s, self._events.now_s)
                release()

            self._events.at(began_s + seconds(), end)

        self.request(begin)

    def _next(self) -> None:
        if self._queue:
            # The work gets `_next` as its release, which starts the request after it.
            self._queue.popleft()(self._next)
            return
        self.is_busy = False
        if self._resume:
            self._resume()
