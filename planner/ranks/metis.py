"""Partitions of weighted graphs: METIS where `pymetis` is installed, else greedy growth. Deterministic.

Source: Karypis and Kumar, SIAM J. Sci. Comput. 1998.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

try:
    import pymetis
except ImportError:  # the extra `metis` is not installed: partitions are coarser, nothing else changes
    pymetis = None

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEVELS = 1000
"""METIS takes whole weights: the heaviest edge has this one."""


def partition(weights: Floats, shares: Sequence[float]) -> Ints:
    """The part of each node. `weights`: symmetric, 0 for no edge; parts have these shares of the nodes, nearly."""
    num = len(weights)
    if len(shares) < 2 or num <= len(shares):
        return np.minimum(np.arange(num, dtype=np.int64), len(shares) - 1)
    if pymetis is None:
        return grown(weights, shares)
    whole = np.rint(weights / max(float(weights.max()), 1e-30) * _LEVELS).astype(np.int64)
    np.fill_diagonal(whole, 0)
    rows, columns = np.nonzero(whole)
    starts = np.searchsorted(rows, np.arange(num + 1))
    _, parts = pymetis.part_graph(
        len(shares), pymetis.CSRAdjacency(starts, columns), eweights=whole[rows, columns],
        tpwgts=[share / sum(shares) for share in shares], recursive=True,
    )  # fmt: skip
    return np.array(parts, dtype=np.int64)


def grown(weights: Floats, shares: Sequence[float]) -> Ints:
    """Each part grows from the node that hangs least on what is left, by its heaviest edges; the last has the rest."""
    num = len(weights)
    parts = np.full(num, len(shares) - 1, dtype=np.int64)
    free = np.ones(num, dtype=bool)
    for part, share in enumerate(shares[:-1]):
        want = min(round(share / sum(shares) * num), int(free.sum()))
        pull = np.zeros(num)
        for taken in range(want):
            inside = weights @ free
            at = int(np.argmax(np.where(free, pull - (0 if taken else inside), -np.inf)))
            parts[at] = part
            free[at] = False
            pull = pull + weights[at]
    return parts
