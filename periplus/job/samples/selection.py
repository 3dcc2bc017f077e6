"""Chooses the samples of a page: of one step or of all, in the order of the step or by their rewards.

The functions are pure. They work on whole columns, because a run may have millions of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from periplus.job.samples.index import SampleIndex
from periplus.job.samples.step_blocks import StepBlock, column


class SampleOrder(StrEnum):
    """Order of the samples of a page.

    STEP: by step, group and sample. WORST and BEST: by reward; of samples with the same reward the newer comes first.
    """

    STEP = "step"
    WORST = "worst"
    BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """What a user wants to see.

    - `step`: of this step only. Without it: of all steps if an order by reward or a group is given, else of the newest.
    - `evaluation`: of the newest evaluation of this set, or of the one that began at `step`; "held-out" for
      held-out problems. Without it: samples that were trained on.
    - `group`, `region`: only these; None and an empty text mean all.
    - `page` counts from 1; each has `size` samples.
    """

    step: int | None = None
    order: SampleOrder = SampleOrder.STEP
    group: int | None = None
    region: str = ""
    evaluation: str = ""
    page: int = 1
    size: int = 8

    @property
    def is_of_all_steps(self) -> bool:
        """Whether all steps are looked through."""
        return self.step is None and (self.order is not SampleOrder.STEP or self.group is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSample:
    """A sample by its block and its row in it."""

    block: StepBlock
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """The samples of one page, and how many samples match the query on all pages."""

    samples: tuple[ChosenSample, ...]
    num_matching: int


def choose(index: SampleIndex, query: SampleQuery) -> SamplePage:
    """Return the page of a query: empty if nothing matches, or if there are fewer pages."""
    blocks = _blocks(index, query)
    fits = index.has_frames(blocks)
    if query.group is not None:
        fits &= column(blocks, "group") == query.group
    if query.region:
        fits &= _of_region(blocks, query.region)
    matching = np.flatnonzero(fits)
    end = query.page * query.size
    chosen = _first(column(blocks, "reward"), matching, query.order, end)[end - query.size :]
    # From places in the joined rows back to blocks: each begins where those before it end.
    starts = np.cumsum([0, *(len(block.rows) for block in blocks)])
    at = np.searchsorted(starts, chosen, side="right") - 1
    samples = (
        ChosenSample(block=blocks[block], row=int(place - starts[block]))
        for place, block in zip(chosen.tolist(), at.tolist(), strict=True)
    )
    return SamplePage(samples=tuple(samples), num_matching=len(matching))


def _blocks(index: SampleIndex, query: SampleQuery) -> Sequence[StepBlock]:
    if query.evaluation:
        of_set = [block for block in index.evaluations if block.evaluation == query.evaluation]
        return [block for block in of_set if query.step in (None, block.policy.version)][-1:]
    if query.is_of_all_steps:
        return index.blocks
    if query.step is None:
        return index.blocks[-1:]
    return [block for block in index.blocks if block.policy.version == query.step]


def _of_region(blocks: Sequence[StepBlock], region: str) -> npt.NDArray[np.bool_]:
    found = [np.zeros(0, np.bool_)]
    for block in blocks:
        number = block.regions.index(region) if region in block.regions else -1
        found.append(block.rows["region"] == number)
    return np.concatenate(found)


def _first(
    rewards: npt.NDArray[np.float64], matching: npt.NDArray[np.intp], order: SampleOrder, count: int
) -> npt.NDArray[np.intp]:
    """Return the first `count` of the matching places in the given order."""
    if order is SampleOrder.STEP:
        return matching[:count]
    # The smallest key comes first.
    keys = rewards[matching] if order is SampleOrder.WORST else -rewards[matching]
    keys = np.where(np.isnan(keys), np.inf, keys)  # samples that no function judged come last
    if len(matching) > count:
        # Rewards are often equal, by the hundred thousand: all below the last key of the page, and the newest of those
        # that have it. So only what is shown is sorted.
        last = np.partition(keys, count - 1)[count - 1]
        below, same = np.flatnonzero(keys < last), np.flatnonzero(keys == last)
        kept = np.concatenate([below, same[len(same) - (count - len(below)) :]])
        keys, matching = keys[kept], matching[kept]
    return matching[np.lexsort((-matching, keys))]
