"""Decides how long to wait between repeated attempts: each pause is twice as long as the one before, up to a limit.

`Backoff` is the rule. It maps the number of attempts made so far to the seconds before the next one, so a caller that
counts its own failures needs nothing else. `Attempts` counts for a caller that never learns whether an attempt helped:
it begins again after a long time without one. Nothing here sleeps, draws a random number or reads a clock. A caller
that must not dial at the same moment as others draws its pause below the one that it gets here.
"""

from dataclasses import dataclass
from math import inf

_MOST_DOUBLINGS = 1000
"""Number of doublings after which a pause without a limit no longer grows, because a float ends at 2^1024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A rule for pauses, in seconds.

    - `first_s`: the first pause that is not zero. Each later one is twice as long.
    - `longest_s`: no pause is longer.
    - `free_attempts`: this many attempts are made without a pause.
    - `reset_after_s`: after so long without an attempt, `Attempts` counts from the beginning again.
    """

    first_s: float
    longest_s: float = inf
    free_attempts: int = 0
    reset_after_s: float = inf

    def pause_s(self, num_attempts: int) -> float:
        """Return the seconds to wait before one more attempt, after `num_attempts` that counted as failures."""
        num_doublings = num_attempts - self.free_attempts
        if num_doublings < 0:
            return 0.0
        return min(self.longest_s, self.first_s * 2.0 ** min(num_doublings, _MOST_DOUBLINGS))


class Attempts:
    """The attempts so far at something that may be asked for again and again, and the pause before the next one."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._num_attempts = 0
        self._last_s = -inf

    def pause_s(self, now_s: float) -> float:
        """Count one more attempt, asked for at `now_s`, and return the seconds to wait before it."""
        if now_s - self._last_s >= self._backoff.reset_after_s:
            self._num_attempts = 0
        self._last_s = now_s
        pause_s = self._backoff.pause_s(self._num_attempts)
        self._num_attempts += 1
        return pause_s
