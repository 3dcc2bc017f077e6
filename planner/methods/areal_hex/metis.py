"""Partition of weighted graphs: METIS if `pymetis` is installed, otherwise greedy growth. Both are deterministic.

Source: Karypis and Kumar, SIAM J. Sci. Comput. 1998.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

try:
    import pymetis
except ImportError:  # without the extra `metis` partitions are coarser; nothing else changes
    pymetis = None

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEVELS = 1000
"""Weight of the heaviest edge, since METIS takes whole numbers."""


def partition(weights: Floats, shares: Sequence[float]) -> Ints:
    """Return the part of each node, such that parts have about these shares of the nodes and heavy edges are not cut.

    `weights` is symmetric, `[num_nodes, num_nodes]`; 0 stands for no edge.
    """
    num = len(weights)
    if len(shares) < 2 or num <= len(shares):
        # Too few nodes to cut: each is a part of its own.
        return np.minimum(np.arange(num, dtype=np.int64), len(shares) - 1)
    if pymetis is None:
        return grown(weights, shares)
    # METIS takes the graph in compressed rows: `starts` delimits each node's neighbours in `columns`.
    whole = np.rint(weights / max(float(weights.max()), 1e-30) * _LEVELS).astype(np.int64)
    np.fill_diagonal(whole, 0)
    rows, columns = np.nonzero(whole)
    starts = np.searchsorted(rows, np.arange(num + 1))
    _, parts = pymetis.part_graph(
        len(shares),
        pymetis.CSRAdjacency(starts, columns),
        eweights=whole[rows, columns],
        tpwgts=[share / sum(shares) for share in shares],
        recursive=True,
    )
    return np.array(parts, dtype=np.int64)


def grown(weights: Floats, shares: Sequence[float]) -> Ints:
    """Return the part of each node by greedy growth.

    Each part starts at the node with the least weight to the nodes that are left, and grows along its heaviest edges.
    The last part gets the rest.
    """
    num = len(weights)
    parts = np.full(num, len(shares) - 1, dtype=np.int64)
    free = np.ones(num, dtype=bool)
    for part, share in enumerate(shares[:-1]):
        want = min(round(share / sum(shares) * num), int(free.sum()))
        # Weight of the edges from each node into the part so far.
        pull = np.zeros(num)
        for taken in range(want):
            inside = weights @ free
            # The first node of a part is the one with the least weight to the rest, which lies at the edge of the
            # graph. From there on the node that is joined to the part most strongly follows.
            at = int(np.argmax(np.where(free, pull - (0 if taken else inside), -np.inf)))
            parts[at] = part
            free[at] = False
            pull = pull + weights[at]
    return parts
