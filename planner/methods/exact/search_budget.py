"""When a search ends: its budget of time, the caller's wish to stop, and the early end of a search for an incumbent.

This is the only place in which the search reads a clock. The clock and the caller's wish come in as functions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from planner.methods.exact.frontier import BoundingStage, OpenNode


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


@dataclass(slots=True, kw_only=True)
class EarlyEnd:
    """The end of a search that only looks for an incumbent: after some programs, or after models without progress."""

    programs_left: int
    """Integer programs that may still be solved."""
    patience: int
    """Most models in a row without a better placement."""
    value: float
    """Objective value of the incumbent when the last node was taken."""
    _num_waited: int = 0

    def allows(self, node: OpenNode, value: float) -> bool:
        """Count a node that was taken, and return whether it may be worked on; `value` is the incumbent's."""
        if self.programs_left == 0:
            return False
        self.programs_left -= node.stage is BoundingStage.PROGRAM
        # Listing meshes takes no patience, only models that improve nothing do.
        is_model = node.stage is not BoundingStage.MESH_LIST
        self._num_waited = self._num_waited + is_model if value == self.value else 0
        self.value = value
        return self._num_waited <= self.patience
