"""The order in which a job's problems are trained on, for one data set or a mixture of several.

The problem of a training group is a function of the group's number and the job's seed alone, so that a restored run
goes on in the same order without a state of its own. Each data set goes through its problems once an epoch, in a new
permutation each time. Of several data sets, each block of `BLOCK_GROUPS` groups takes from each the number that its
weight asks for, in a shuffled order: so weights hold exactly over each block, and a small data set is seen more often
rather than less.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

BLOCK_GROUPS = 256
"""Groups in which the shares of a mixture are met to the nearest whole group. Chosen by hand: a few training steps."""

_BLOCK_KEY = 1 << 32
"""Part of the random key of a block. Numbers of sources and epochs are below it, so that no two permutations share a
key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSource:
    """The problems of one data set that are trained on, and the data set's weight in the mixture."""

    problems: tuple[int, ...]
    weight: float


def item_order(sources: Sequence[TrainingSource], seed: int) -> Callable[[int], int]:
    """Return a function from the number of a training group to its problem.

    Sources without problems are left out. Raises: ValueError if no source has a problem.
    """
    sources = [source for source in sources if source.problems]
    if not sources:
        raise ValueError("no data set has a problem to train on")
    if len(sources) == 1:
        return _shuffled(sources[0].problems, (seed,))
    shares = block_shares([source.weight for source in sources])
    orders = [_shuffled(source.problems, (seed, number)) for number, source in enumerate(sources)]
    blocks: dict[int, list[tuple[int, int]]] = {}

    def item_of(group: int) -> int:
        block, place = divmod(group, sum(shares))
        if block not in blocks:  # only the block that was used last is kept
            blocks.clear()
            blocks[block] = _places(shares, block, seed)
        source, nth = blocks[block][place]
        return orders[source](nth)

    return item_of


def block_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many groups of a block each source gets, in proportion to the weights; each gets at least one.

    Shares are rounded by the largest remainder, so that they sum to `BLOCK_GROUPS`, unless there are more sources.
    """
    exact = [weight / sum(weights) * BLOCK_GROUPS for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda source: (shares[source] - exact[source], source))
    for source in by_remainder[: max(0, BLOCK_GROUPS - sum(shares))]:
        shares[source] += 1
    return tuple(shares)


def _places(shares: Sequence[int], block: int, seed: int) -> list[tuple[int, int]]:
    # For each place of the block: the source, and the number of the source's groups before it since the start.
    turns = [source for source, share in enumerate(shares) for _ in range(share)]
    counts = [block * share for share in shares]
    places = []
    for turn in np.random.default_rng((seed, _BLOCK_KEY, block)).permutation(len(turns)).tolist():
        source = turns[turn]
        places.append((source, counts[source]))
        counts[source] += 1
    return places


def _shuffled(problems: Sequence[int], key: tuple[int, ...]) -> Callable[[int], int]:
    permutations: dict[int, list[int]] = {}

    def problem_of(nth: int) -> int:
        epoch, position = divmod(nth, len(problems))
        if epoch not in permutations:  # only the permutation that was used last is kept
            permutations.clear()
            permutations[epoch] = np.random.default_rng((*key, epoch)).permutation(len(problems)).tolist()
        return problems[permutations[epoch][position]]

    return problem_of
