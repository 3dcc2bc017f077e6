"""Linear models with integers as plain arrays: what `model` builds, `solver` solves and a re-plan changes in place.

Rows are kept sparse, in order of creation; so the same problem gives the same model, and the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a solver says of one model."""

    values: Floats | None
    """None where nothing feasible was found."""
    objective: float
    bound: float
    """No feasible point has less; infinite where there is none."""
    is_infeasible: bool
    is_complete: bool
    """False where a limit ended the search: `bound` holds nevertheless."""


@dataclass(slots=True)
class LinearModel:
    """Minimise cost x, lower <= A x <= upper, low <= x <= high, some x whole."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    row_at: list[int] = field(default_factory=list)
    """Of each entry: its row."""
    entry_at: list[int] = field(default_factory=list)
    """Of each entry: its variable."""
    entry: list[float] = field(default_factory=list)

    @property
    def num_variables(self) -> int:
        return len(self.low)

    @property
    def is_crossed(self) -> bool:
        """Whether some lower bound is above its upper bound: then nothing is feasible, and solvers refuse the model."""
        variables, rows = zip(self.low, self.high, strict=True), zip(self.row_low, self.row_high, strict=True)
        return any(low > high for low, high in variables) or any(low > high for low, high in rows)

    def variable(self, low: float = 0.0, high: float = INFINITE, cost: float = 0.0, *, whole: bool = False) -> int:
        """A new variable's index."""
        self.low.append(low)
        self.high.append(high)
        self.cost.append(cost)
        self.whole.append(whole)
        return len(self.low) - 1

    def variables(self, high: Sequence[float] | Floats, *, whole: bool) -> Ints:
        """As many new variables from 0 as `high` has entries."""
        first = len(self.low)
        self.low += [0.0] * len(high)
        self.high += [float(h) for h in high]
        self.cost += [0.0] * len(high)
        self.whole += [whole] * len(high)
        return np.arange(first, first + len(high), dtype=np.int64)

    def row(self, terms: Sequence[tuple[int, float]], low: float = -INFINITE, high: float = INFINITE) -> int:
        """low <= sum of coefficient x variable <= high; a variable may come up several times. The row's index."""
        merged = dict(terms)
        if len(merged) < len(terms):
            merged = {}
            for variable, coefficient in terms:
                merged[variable] = merged.get(variable, 0.0) + coefficient
        place = len(self.row_low)
        self.row_low.append(low)
        self.row_high.append(high)
        entries = sorted(each for each in merged.items() if each[1] != 0.0)
        self.row_at += [place] * len(entries)
        self.entry_at += [variable for variable, _ in entries]
        self.entry += [coefficient for _, coefficient in entries]
        return place

    def rows(self, first: int, coefficients: Sequence[float], second: int, low: Sequence[float]) -> None:
        """Of two variables, the older one first, as many as `low` has entries: low <= coefficient x first + second."""
        place, num = len(self.row_low), len(low)
        self.row_low += low
        self.row_high += [INFINITE] * num
        self.row_at += [row for row in range(place, place + num) for _ in (0, 1)]
        self.entry_at += [first, second] * num
        self.entry += [value for each in coefficients for value in (each, 1.0)]

    def add(self, at: Ints, values: Floats, low: float = -INFINITE, high: float = INFINITE) -> int:
        """The same of variables that are all different."""
        place = len(self.row_low)
        self.row_low.append(low)
        self.row_high.append(high)
        order = np.argsort(at, kind="stable")
        order = order[values[order] != 0.0]
        self.row_at += [place] * len(order)
        self.entry_at += at[order].tolist()
        self.entry += values[order].tolist()
        return place

    def copy(self) -> "LinearModel":
        """One that can be changed without changing this."""
        return LinearModel(
            low=[*self.low], high=[*self.high], cost=[*self.cost], whole=[*self.whole], row_low=[*self.row_low],
            row_high=[*self.row_high], row_at=[*self.row_at], entry_at=[*self.entry_at], entry=[*self.entry],
        )  # fmt: skip
