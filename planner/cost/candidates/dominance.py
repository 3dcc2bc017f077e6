"""Pareto filter: find the rows of a cost matrix that no other row dominates.

Row a dominates row b if a is not larger than b in any column. The columns are first replaced by dense integer ranks,
which are compared faster than floats. Rows are then sorted by the sum of their ranks, so that a dominating row always
comes before the rows that it dominates. It is therefore enough to compare each row with the survivors before it.
"""

import numpy as np
import numpy.typing as npt

from planner.cost.tasks.layer_cuts import BoolArray, FloatArray

_CHUNK = 512
"""Rows that are compared with each other at once; this bounds the memory of the comparison. Chosen by hand."""
_FIRST = 64
"""Survivors in the first comparison. They have the smallest rank sums and dominate most rows; each further comparison
takes four times as many survivors. Chosen by hand."""
Ranks = npt.NDArray[np.signedinteger]
"""Dense ranks, `[num_columns, num_rows]`."""


def undominated(costs: FloatArray) -> BoolArray:
    """Return `[num_rows]`: whether no other row of `costs` dominates the row.

    `costs` is `[num_rows, num_columns]`, less is better. Of several equal rows only the first one is True.
    """
    num, width = costs.shape
    if num < 2:
        return np.ones(num, dtype=bool)
    # Replace each column by dense ranks, in the smallest integer type that holds them: [num_columns, num_rows].
    ranks = np.empty((width, num), dtype=np.int16 if num < 1 << 15 else np.int32)
    for i in range(width):
        ranks[i] = np.unique(costs[:, i], return_inverse=True)[1]
    # A column in which all rows are equal decides nothing, so it is dropped (one column always stays).
    ranks = ranks[ranks.max(axis=1) > 0] if ranks.any() else ranks[:1]
    # A dominating row has the smaller rank sum, so it comes before the rows that it dominates.
    order = np.argsort(ranks.sum(axis=0, dtype=np.int64), kind="stable")
    ranks = ranks[:, order]
    kept = ranks[:, :0]
    stays = np.zeros(num, dtype=bool)
    for start in range(0, num, _CHUNK):
        # First drop the rows of this chunk that an earlier survivor dominates, then compare the rest with each other.
        rows = np.arange(start, min(start + _CHUNK, num))
        rows = rows[~_beaten(kept, ranks[:, rows])]
        chunk = ranks[:, rows]
        beats = _no_worse(chunk, chunk)
        # beats[i, j]: row i dominates row j. Only earlier rows can dominate, hence the strict upper triangle.
        rows = rows[~np.triu(beats, 1).any(axis=0)]
        stays[order[rows]] = True
        kept = np.concatenate([kept, ranks[:, rows]], axis=1)
    return stays


def _beaten(kept: Ranks, rows: Ranks) -> BoolArray:
    """Return `[num_rows]`: whether any survivor in `kept` (`[num_columns, num_kept]`) dominates the row."""
    beaten = np.zeros(rows.shape[1], dtype=bool)
    # Early survivors are the strongest and beat most rows, so they are compared first and only what is left goes on.
    # Growing chunks bound the memory of a comparison.
    start, many = 0, _FIRST
    while start < kept.shape[1] and not beaten.all():
        left = np.flatnonzero(~beaten)
        beaten[left] = _no_worse(kept[:, start : start + many], rows[:, left]).any(axis=0)
        start, many = start + many, 4 * many
    return beaten


def _no_worse(a: Ranks, b: Ranks) -> BoolArray:
    """Return `[num_a, num_b]`: whether row i of `a` dominates row j of `b`, equal rows included."""
    result: BoolArray = np.asarray(a[0][:, None] <= b[0][None, :])
    for mine, other in zip(a[1:], b[1:], strict=True):
        np.logical_and(result, mine[:, None] <= other[None, :], out=result)
    return result
