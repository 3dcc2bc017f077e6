"""Splits a job's prompts into warm-up, training and held-out sets that are disjoint by the prompts' text.

A procedural task may repeat prompts, so disjoint indices would not suffice. Of prompts that are equal up to letter case
only the first is used, because some tokenizers ignore case. The split is a function of (prompts, sizes, seed): the
held-out and warm-up sets are drawn first, and training gets all other prompts. Each call asserts that the three sets
are disjoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from periplus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The indices of the prompts in each set. The sets are pairwise disjoint by the prompts' text."""

    warmup: tuple[int, ...]
    train: tuple[int, ...]
    held_out: tuple[int, ...]

    def renumbered(self, indices: Sequence[int]) -> "Splits":
        """Return the sets with each index i replaced by `indices[i]`."""
        return Splits(
            warmup=tuple(indices[i] for i in self.warmup),
            train=tuple(indices[i] for i in self.train),
            held_out=tuple(indices[i] for i in self.held_out),
        )


def split(prompts: Sequence[str], num_warmup: int, num_held_out: int, seed: int) -> Splits:
    """Split the distinct prompts into the three sets, in a random order given by `seed`.

    Raises: ConfigError if no distinct prompt is left for training, ValueError for a negative size.
    """
    if num_warmup < 0 or num_held_out < 0:
        raise ValueError(f"sizes must not be negative: warm-up {num_warmup}, held-out {num_held_out}")
    first_index: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first_index.setdefault(prompt.casefold(), index)
    distinct = list(first_index.values())
    if len(distinct) <= num_warmup + num_held_out:
        raise ConfigError(
            f"only {len(distinct)} of {len(prompts)} prompts are distinct, too few for {num_warmup} for warm-up, "
            f"{num_held_out} held out and at least one for training; set data.size higher (a data file needs more "
            "lines), or train.warmup.num_examples or eval.num_prompts lower"
        )
    # The held-out set is cut off first, so that its prompts stay the same when the warm-up set gets another size.
    order = np.random.default_rng(seed).permutation(len(distinct))
    shuffled = tuple(distinct[place] for place in order)
    cut = num_held_out + num_warmup
    splits = Splits(held_out=shuffled[:num_held_out], warmup=shuffled[num_held_out:cut], train=shuffled[cut:])
    _assert_disjoint(prompts, splits)
    return splits


def _assert_disjoint(prompts: Sequence[str], splits: Splits) -> None:
    texts = [{prompts[index].casefold() for index in part} for part in (splits.warmup, splits.train, splits.held_out)]
    assert len(set.union(*texts)) == sum(map(len, texts)), "warm-up, training and held-out prompts overlap"
