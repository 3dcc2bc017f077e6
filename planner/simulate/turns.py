"""A group's tasks on its devices, one at a time: generation in the background, other passes in the order they come."""

from collections import deque
from collections.abc import Callable

from planner.simulate.agenda import Agenda

Turn = Callable[[Callable[[], None]], None]
"""Begins something on the devices; calls its argument when it is done with them."""


class Turns:
    """`pause` stops what runs in the background and says when the devices are free; `resume` starts it again."""

    def __init__(self, agenda: Agenda, pause: Callable[[], float] | None, resume: Callable[[], None] | None) -> None:
        self.is_busy = False
        self._agenda = agenda
        self._pause = pause
        self._resume = resume
        self._queue: deque[Turn] = deque()

    def request(self, turn: Turn) -> None:
        """Begins it when it is its turn."""
        self._queue.append(turn)
        if not self.is_busy:
            self.is_busy = True
            free_s = self._pause() if self._pause else self._agenda.now_s
            self._agenda.at(free_s, self._next)

    def request_pass(self, seconds: Callable[[], float], on_done: Callable[[float, float], None]) -> None:
        """A turn of `seconds()`; then `on_done(began_s, ended_s)`, which may request the next."""

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
