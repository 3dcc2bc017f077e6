"""Which of many rows no other row beats."""

import numpy as np
import numpy.typing as npt

from planner.cost.cuts import BoolArray, FloatArray

_CHUNK = 512
_FIRST = 64
"""Rows that beat most others: who is left after these is held against four times as many, and so on."""
Ranks = npt.NDArray[np.signedinteger]


def undominated(costs: FloatArray) -> BoolArray:
    """[rows, numbers], the less the better: False where another row is nowhere worse. Of equal rows the first stays."""
    num, width = costs.shape
    if num < 2:
        return np.ones(num, dtype=bool)
    ranks = np.empty((width, num), dtype=np.int16 if num < 1 << 15 else np.int32)
    for i in range(width):
        ranks[i] = np.unique(costs[:, i], return_inverse=True)[1]
    ranks = ranks[ranks.max(axis=1) > 0] if ranks.any() else ranks[:1]
    order = np.argsort(ranks.sum(axis=0, dtype=np.int64), kind="stable")  # what beats a row comes before it
    ranks = ranks[:, order]
    kept = ranks[:, :0]
    stays = np.zeros(num, dtype=bool)
    for start in range(0, num, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, num))
        rows = rows[~_beaten(kept, ranks[:, rows])]
        chunk = ranks[:, rows]
        beats = _no_worse(chunk, chunk)
        rows = rows[~np.triu(beats, 1).any(axis=0)]
        stays[order[rows]] = True
        kept = np.concatenate([kept, ranks[:, rows]], axis=1)
    return stays


def _beaten(kept: Ranks, rows: Ranks) -> BoolArray:
    beaten = np.zeros(rows.shape[1], dtype=bool)
    start, many = 0, _FIRST
    while start < kept.shape[1] and not beaten.all():
        left = np.flatnonzero(~beaten)
        beaten[left] = _no_worse(kept[:, start : start + many], rows[:, left]).any(axis=0)
        start, many = start + many, 4 * many
    return beaten


def _no_worse(a: Ranks, b: Ranks) -> BoolArray:
    """[i, j]: row i of `a` is nowhere worse than row j of `b`."""
    result: BoolArray = np.asarray(a[0][:, None] <= b[0][None, :])
    for mine, other in zip(a[1:], b[1:], strict=True):
        np.logical_and(result, mine[:, None] <= other[None, :], out=result)
    return result
