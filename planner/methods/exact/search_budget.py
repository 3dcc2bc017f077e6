"""The budget of one search: how long it may run, and whether the caller has asked to stop.

This is the only place in which the search reads a clock. The clock and the caller's wish come in as functions.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBudget:
    """Seconds of one search since it began, all on the caller's clock."""

    budget_s: float
    """Seconds that the search may take."""
    now_s: Callable[[], float]
    """The caller's clock, in seconds."""
    should_stop: Callable[[], bool]
    """Whether the caller asks the search to stop."""
    began_s: float
    """Time on the clock at which the search began."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return self.now_s() - self.began_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.budget_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Whether the search must end: the caller asks to stop, or the time is spent."""
        return self.should_stop() or self.elapsed_s >= self.budget_s

    def is_past(self, until_s: float) -> bool:
        """Return whether the clock shows `until_s` or later, or the caller asks to stop."""
        return self.now_s() >= until_s or self.should_stop()
