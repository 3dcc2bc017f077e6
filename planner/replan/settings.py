"""Tuned numbers of re-planning, in one place. All were chosen by hand. Only `SETTINGS` is used.

What an operator may choose is in `planner.replan.migration.MigrationPolicy`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanSettings:
    """Settings of the search for a placement after a change."""

    # ---- time limits (`replanner`, `branching`)

    link_programs_s: float = 0.05
    """Seconds to solve integer programs after a changed link."""
    programs_s: float = 0.3
    """Seconds to solve integer programs after any other change."""
    search_s: float = 1.0
    """Seconds of a search from scratch."""
    least_program_s: float = 0.01
    """Least time limit of one integer program in seconds."""

    # ---- intervals of generation's window (`branching`)

    step_limits: tuple[float, ...] = (1.25, 2.0, 8.0, 1000.0)
    """Limits on the step that are tried one after the other if the running plan cannot run, as multiples of its last
    step."""
    first_window: tuple[float, float] = (0.97, 1.06)
    """Ends of the first interval of windows, relative to the running plan's window. It extends further up, since small
    changes need a slightly longer window."""
    gap: float = 0.005
    """Relative tolerance: improvements below this do not count, and intervals with less overestimation are not
    divided."""
    least_part: float = 0.2
    """Least part of an interval that is left on either side when it is divided."""

    # ---- bounds on a changed fleet (`stretch`)

    span_intervals: int = 1024
    """Number of intervals on which the factor between two grids is bounded where more than two versions share
    engines."""


SETTINGS = ReplanSettings()
"""The settings that re-planning uses."""
