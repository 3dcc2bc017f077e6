"""Perfect matchings whose worst edge is as good as it can be."""

import numpy as np
import numpy.typing as npt
from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def bottleneck(rates: Floats) -> Ints:
    """For each row its column: among all perfect matchings of a square matrix, one whose least rate is largest.

    A binary search over rates: is there a perfect matching of edges that are at least so good?
    """
    levels = np.unique(rates)
    low, high = 0, len(levels) - 1
    best = _perfect(rates >= levels[0])
    assert best is not None
    while low < high:
        middle = (low + high + 1) // 2
        found = _perfect(rates >= levels[middle])
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return best


def _perfect(edges: npt.NDArray[np.bool_]) -> Ints | None:
    """A perfect matching of a bipartite graph, or None."""
    if not (edges.any(axis=0).all() and edges.any(axis=1).all()):
        return None
    rows, columns = np.nonzero(edges)
    solver = SimpleLinearSumAssignment()
    solver.add_arcs_with_cost(rows, columns, np.zeros(len(rows), dtype=np.int64))
    if solver.solve() != SimpleLinearSumAssignment.Status.OPTIMAL:
        return None
    return np.array([solver.right_mate(row) for row in range(len(edges))], dtype=np.int64)
