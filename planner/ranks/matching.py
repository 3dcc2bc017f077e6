"""Bottleneck matching: a perfect matching whose worst edge is as good as possible."""

import numpy as np
import numpy.typing as npt
from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def bottleneck(rates: Floats) -> Ints:
    """Return the column of each row in a perfect matching of a square matrix whose least rate is largest.

    The method is binary search over the rates: is there a perfect matching of edges with at least this rate?
    """
    levels = np.unique(rates)
    low, high = 0, len(levels) - 1
    # All edges have at least the least rate, so the first matching exists. `best` always belongs to level `low`.
    best = _perfect(rates >= levels[0])
    assert best is not None
    while low < high:
        # Rounded up, so that `low = middle` makes progress.
        middle = (low + high + 1) // 2
        found = _perfect(rates >= levels[middle])
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return best


def _perfect(edges: npt.NDArray[np.bool_]) -> Ints | None:
    """Return a perfect matching of a bipartite graph, or None if there is none."""
    # A row or column without an edge rules out a matching, without a call of the solver.
    if not (edges.any(axis=0).all() and edges.any(axis=1).all()):
        return None
    rows, columns = np.nonzero(edges)
    solver = SimpleLinearSumAssignment()
    # All costs are 0: any perfect matching will do.
    solver.add_arcs_with_cost(rows, columns, np.zeros(len(rows), dtype=np.int64))
    if solver.solve() != SimpleLinearSumAssignment.Status.OPTIMAL:
        return None
    return np.array([solver.right_mate(row) for row in range(len(edges))], dtype=np.int64)
