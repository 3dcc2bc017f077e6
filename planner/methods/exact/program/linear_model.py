"""Mixed-integer linear models as plain arrays, independent of any solver.

The relaxation of a subproblem is built as a `LinearModel`, and `ortools_solver` solves it. The constraint matrix is
sparse (coordinate format) and in order of creation, so that the same problem gives the same model and the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INFINITE = float("inf")
"""Bound of a variable or row that has none, and value of "no solution"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result of one solver call."""

    values: Floats | None
    """Value of each variable; None if no feasible point was found."""
    objective: float
    """Objective of `values`; inf without them."""
    bound: float
    """Proven lower bound on the objective; inf if the model is infeasible, -inf if nothing is proved."""
    is_infeasible: bool
    """Whether the solver proved that there is no feasible point."""
    is_complete: bool
    """Whether the solver finished. False if a limit ended it or it gave up; `bound` holds nevertheless."""


@dataclass(slots=True)
class LinearModel:
    """The model: minimise cost x subject to row_low <= A x <= row_high and low <= x <= high, with some x integer."""

    low: list[float] = field(default_factory=list)
    """Lower bound of each variable."""
    high: list[float] = field(default_factory=list)
    """Upper bound of each variable."""
    cost: list[float] = field(default_factory=list)
    """Objective coefficient of each variable."""
    whole: list[bool] = field(default_factory=list)
    """Whether each variable must be an integer."""
    row_low: list[float] = field(default_factory=list)
    """Lower bound of each row."""
    row_high: list[float] = field(default_factory=list)
    """Upper bound of each row."""
    row_at: list[int] = field(default_factory=list)
    """Row index of each matrix entry."""
    entry_at: list[int] = field(default_factory=list)
    """Variable index of each matrix entry."""
    entry: list[float] = field(default_factory=list)
    """Value of each matrix entry."""

    @property
    def num_variables(self) -> int:
        """Number of variables."""
        return len(self.low)

    @property
    def is_crossed(self) -> bool:
        """Whether some lower bound is above its upper bound.

        Such a model is infeasible, and solvers refuse to read it.
        """
        variables, rows = zip(self.low, self.high, strict=True), zip(self.row_low, self.row_high, strict=True)
        return any(low > high for low, high in variables) or any(low > high for low, high in rows)

    def variable(self, low: float = 0.0, high: float = INFINITE, cost: float = 0.0, *, whole: bool = False) -> int:
        """Add a variable and return its index."""
        self.low.append(low)
        self.high.append(high)
        self.cost.append(cost)
        self.whole.append(whole)
        return len(self.low) - 1

    def variables(self, high: Sequence[float] | Floats, *, whole: bool) -> Ints:
        """Add variables from 0 to each entry of `high` and return their indices, `[len(high)]`."""
        first = len(self.low)
        self.low += [0.0] * len(high)
        self.high += [float(h) for h in high]
        self.cost += [0.0] * len(high)
        self.whole += [whole] * len(high)
        return np.arange(first, first + len(high), dtype=np.int64)

    def row(self, terms: Sequence[tuple[int, float]], low: float = -INFINITE, high: float = INFINITE) -> int:
        """Add low <= sum of coefficient x variable <= high and return the row's index.

        A variable may appear several times.
        """
        # Solvers reject repeated entries. Most rows have none, and for them the dictionary is all the work.
        merged = dict(terms)
        if len(merged) < len(terms):
            merged = {}
            for variable, coefficient in terms:
                merged[variable] = merged.get(variable, 0.0) + coefficient
        place = len(self.row_low)
        self.row_low.append(low)
        self.row_high.append(high)
        # Sorted by variable, so that equal models have equal arrays.
        entries = sorted(each for each in merged.items() if each[1] != 0.0)
        self.row_at += [place] * len(entries)
        self.entry_at += [variable for variable, _ in entries]
        self.entry += [coefficient for _, coefficient in entries]
        return place

    def rows(self, first: int, coefficients: Sequence[float], second: int, low: Sequence[float]) -> None:
        """Add the rows low[i] <= coefficients[i] x first + second; `first` must be the older variable."""
        place, num = len(self.row_low), len(low)
        self.row_low += low
        self.row_high += [INFINITE] * num
        self.row_at += [row for row in range(place, place + num) for _ in (0, 1)]
        self.entry_at += [first, second] * num
        self.entry += [value for each in coefficients for value in (each, 1.0)]

    def add(self, at: Ints, values: Floats, low: float = -INFINITE, high: float = INFINITE) -> int:
        """Add a row over variables that are all different, given as arrays, and return its index."""
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
        """Return an independent copy."""
        return LinearModel(
            low=[*self.low],
            high=[*self.high],
            cost=[*self.cost],
            whole=[*self.whole],
            row_low=[*self.row_low],
            row_high=[*self.row_high],
            row_at=[*self.row_at],
            entry_at=[*self.entry_at],
            entry=[*self.entry],
        )
