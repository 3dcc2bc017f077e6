"""Type of numeric options on a command line: finite and within a range. It also holds the ranges' ends.

`click.FloatRange` accepts NaN, since every comparison with it is false; `Number` does not.
"""

import math
from typing import Any

import click

from planner.problem.ranges import MAX_STEP_S, MAX_USD_PER_HOUR

__all__ = ["MAX_BUDGET_S", "MAX_SPREAD", "MAX_STEP_S", "MAX_USD_PER_HOUR", "Number"]

MAX_BUDGET_S = 7 * 86_400.0
"""Largest time budget of a search: a week. Chosen by hand."""
MAX_SPREAD = 2.0
"""Largest standard deviation of the logarithm of a link's rate. One standard deviation is then a factor of seven.
Chosen by hand."""


class Number(click.FloatRange):
    """A finite number above 0, or from `least` on if that is given, up to `most`."""

    name = "number"

    def __init__(self, most: float, *, least: float | None = None) -> None:
        super().__init__(min=least or 0.0, max=most, min_open=least is None)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number; give one in the range {self._describe_range()}.", param, ctx)
        return found
