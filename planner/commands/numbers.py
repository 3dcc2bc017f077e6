"""Numbers on a command line: finite, and within what makes sense."""

import math
from typing import Any

import click

from planner.plan_entries import MAX_STEP_S, MAX_USD_PER_HOUR

__all__ = ["MAX_BUDGET_S", "MAX_PROBE_S", "MAX_SPREAD", "MAX_STEP_S", "MAX_USD_PER_HOUR", "Number"]

MAX_BUDGET_S = 7 * 86_400.0
MAX_PROBE_S = 600.0
MAX_SPREAD = 2.0
"""Standard deviation of a rate's logarithm: by then a link is mostly seven times slower or faster than measured."""


class Number(click.FloatRange):
    """A number above 0 (or from `least` on) up to `most`; neither NaN nor infinity."""

    name = "number"

    def __init__(self, most: float, *, least: float | None = None) -> None:
        super().__init__(min=least or 0.0, max=most, min_open=least is None)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is no number; give one in the range {self._describe_range()}.", param, ctx)
        return found
