"""Time-sharing of a group's devices: one task at a time, with generation in the background.

Other tasks get the devices in the order of their requests.
"""

from collections import deque
from collections.abc import Callable

from planner.simulate.event_queue import Agenda

Turn = Callable[[Callable[[], None]], None]
"""Function that starts work on the devices. It calls its argument when it is done with them."""


class Turns:
    """Queue of requests for one group's devices.

    `pause` stops what runs in the background and returns the time at which the devices are free. `resume` starts it
    again when the queue is empty. Both are None if nothing runs in the background.
    """

    def __init__(self, agenda: Agenda, pause: Callable[[], float] | None, resume: Callable[[], None] | None) -> None:
        self.is_busy = False
        self._agenda = agenda
        self._pause = pause
        self._resume = resume
        self._queue: deque[Turn] = deque()

    def request(self, turn: Turn) -> None:
        """Queue a turn. It starts when the earlier ones are done."""
        self._queue.append(turn)
        if not self.is_busy:
            self.is_busy = True
            free_s = self._pause() if self._pause else self._agenda.now_s
            self._agenda.at(free_s, self._next)

    def request_pass(self, seconds: Callable[[], float], on_done: Callable[[float, float], None]) -> None:
        """Queue a turn of `seconds()` seconds and call `on_done(began_s, ended_s)` at its end.

        `on_done` may request the next turn.
        """

        def begin(release: Callable[[], None]) -> None:
            began_s = self._agenda.now_s

            def end() -> None:
                on_done(began_s, self._agenda.now_s)
                release()

            self._agenda.at(began_s + seconds(), end)

        self.request(begin)

    def _next(self) -> None:
        if self._queue:
            self._queue.popleft()(self._next)
            return
        self.is_busy = False
        if self._resume:
            self._resume()
