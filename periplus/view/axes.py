"""Axes: round ranges and ticks, and the map from values to places in a picture. It knows neither pixels nor characters.

An `Axis` maps values to places along one direction, linearly or by their logarithm. Places are in the unit of the
picture; an axis that goes up in a picture whose y grows downwards has a `start` above its `end`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from the value `low` at the place `start` to the value `high` at the place `end`.

    `low` is less than `high`, and positive on a logarithmic axis.
    """

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value. A value outside of the axis is put at its nearer end."""
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, *, num_steps: int = 5, mantissas: Sequence[float] = (1, 2, 5)) -> list[float]:
        """Return round values on the axis: about `num_steps` + 1, or on a logarithmic axis all with these mantissas."""
        if not self.is_logarithmic:
            return ticks((self.low, self.high), num_steps)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
        # A tick at an end must not be lost to rounding.
        return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def log_axis(low: float, high: float, start: float, end: float) -> Axis:
    """Return a logarithmic axis from `low` at the place `start` to `high` at the place `end`."""
    return Axis(low, high, start, end, is_logarithmic=True)


def nice_range(values: Sequence[float], *, num_steps: int = 4) -> tuple[float, float]:
    """Return the range of the finite values, widened to round numbers; never an empty range."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    # Equal values have no span: their size, or 1 if they are zero, stands in for it.
    step = nice_step((max(finite) - min(finite)) or abs(max(finite)) or 1.0, num_steps)
    # Without the small shift a value that is a multiple of the step up to rounding would widen the range by a step.
    low, high = math.floor(min(finite) / step + 1e-9) * step, math.ceil(max(finite) / step - 1e-9) * step
    return low, (high if high > low else low + step)


def nice_step(span: float, num_steps: int) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that covers `span` in at most `num_steps` steps."""
    raw = span / num_steps
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9)) * power


def ticks(value_range: tuple[float, float], num_steps: int) -> list[float]:
    """Return round numbers within the range, about `num_steps` + 1 of them."""
    low, high = value_range
    step = nice_step(high - low, num_steps)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
