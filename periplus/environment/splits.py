"""Who may see which prompt: warm-up, training and held-out sets, disjoint by the prompts' text.

A procedural task repeats itself, so equal indices are not the criterion: of equal prompts only the first is used, the
rest are dropped. Case does not count: to a tokenizer without it, two spellings are one prompt. The choice is a function
of (prompts, sizes, seed); held-out and warm-up sets are taken first, training gets everything else. That the three are
disjoint is asserted on the text, each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from periplus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Indices into the prompts, pairwise disjoint by text."""

    warmup: tuple[int, ...]
    train: tuple[int, ...]
    held_out: tuple[int, ...]


def split(prompts: Sequence[str], num_warmup: int, num_held_out: int, seed: int) -> Splits:
    """Deals distinct prompts to the three sets in a seeded order.

    Raises: ConfigError if too few distinct prompts are left for training.
    """
    if num_warmup < 0 or num_held_out < 0:
        raise ValueError(f"sizes must not be negative: warm-up {num_warmup}, held-out {num_held_out}")
    first_index: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first_index.setdefault(prompt.casefold(), index)
    distinct = list(first_index.values())
    if len(distinct) <= num_warmup + num_held_out:
        raise ConfigError(
            f"of {len(prompts)} prompts {len(distinct)} are distinct, which cannot give {num_warmup} for warm-up, "
            f"{num_held_out} held out and at least one for training; set data.size higher (a data file needs more "
            "lines), or train.warmup.num_examples or eval.num_prompts lower"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    dealt = tuple(distinct[place] for place in order)
    cut = num_held_out + num_warmup
    splits = Splits(held_out=dealt[:num_held_out], warmup=dealt[num_held_out:cut], train=dealt[cut:])
    _assert_disjoint(prompts, splits)
    return splits


def _assert_disjoint(prompts: Sequence[str], splits: Splits) -> None:
    texts = [{prompts[index].casefold() for index in part} for part in (splits.warmup, splits.train, splits.held_out)]
    assert len(set.union(*texts)) == sum(map(len, texts)), "warm-up, training and held-out prompts overlap"
