"""Perfect matchings whose worst edge is as good as it can be."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def bottleneck(rates: Floats) -> Ints:
    """For each row its column: among all perfect matchings of a square matrix, one whose least rate is largest.

    A binary search over rates, each step continuing Kuhn's augmenting paths.
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
    num = len(edges)
    row_of = np.full(num, -1, dtype=np.int64)
    for row in range(num):
        parent = np.full(num, -1, dtype=np.int64)
        seen = np.zeros(num, dtype=bool)
        frontier, end = [row], -1
        while frontier and end < 0:
            at = frontier.pop()
            fresh = np.flatnonzero(edges[at] & ~seen)
            seen[fresh] = True
            parent[fresh] = at
            free = fresh[row_of[fresh] < 0]
            if len(free):
                end = int(free[0])
            else:
                frontier += [int(row_of[column]) for column in fresh]
        if end < 0:
            return None
        column_of = {int(r): int(c) for c, r in enumerate(row_of) if r >= 0}
        while end >= 0:
            at = int(parent[end])
            before = column_of.get(at, -1)
            row_of[end] = at
            end = before if at != row else -1
    columns = np.empty(num, dtype=np.int64)
    columns[row_of] = np.arange(num)
    return columns
