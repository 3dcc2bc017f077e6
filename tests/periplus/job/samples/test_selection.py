"""The page of a query against a plain sort of all samples."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from periplus.job.samples.index import SampleIndex
from periplus.job.samples.selection import SampleOrder, SampleQuery, choose
from periplus.job.samples.step_blocks import StepBlock, empty_rows
from periplus.spool.format import Position
from periplus.values.policy import Policy

REGIONS = ("eu", "us")


@dataclass(frozen=True)
class One:
    step: int
    place: int
    group: int
    reward: float
    region: int
    sequence: int


def index_of(steps: list[list[tuple[int, float, int]]], oldest: int | None) -> tuple[SampleIndex, list[One]]:
    """Build an index and the same samples as plain values; sample i of the run has its frame at position i."""
    blocks: list[StepBlock] = []
    plain: list[One] = []
    for step, samples in enumerate(steps, 1):
        rows = empty_rows(len(samples))
        for place, (group, reward, region) in enumerate(samples):
            sequence = len(plain)
            rows["group"][place], rows["reward"][place], rows["region"][place] = group, reward, region
            rows["sequence"][place], rows["epoch"][place] = sequence, 1
            plain.append(One(step, place, group, reward, region, sequence))
        blocks.append(StepBlock(policy=Policy(0, step), regions=REGIONS, rows=rows))
    return SampleIndex(
        blocks=tuple(blocks), evaluations=(), oldest=None if oldest is None else Position(1, oldest)
    ), plain


def expected(plain: list[One], query: SampleQuery, num_steps: int, oldest: int | None) -> list[One]:
    step = query.step
    if step is None and query.order is SampleOrder.STEP and query.group is None:
        step = num_steps
    found = [
        one
        for one in plain
        if (step is None or one.step == step)
        and (query.group is None or one.group == query.group)
        and (not query.region or REGIONS[one.region] == query.region)
        and oldest is not None
        and one.sequence >= oldest
    ]
    if query.order is SampleOrder.WORST:
        found.sort(key=lambda one: (one.reward, -one.sequence))
    if query.order is SampleOrder.BEST:
        found.sort(key=lambda one: (-one.reward, -one.sequence))
    return found


samples = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, -2.0]), st.integers(0, 1))


@given(
    steps=st.lists(st.lists(samples, max_size=6), max_size=5),
    oldest=st.none() | st.integers(0, 10),
    step=st.none() | st.integers(1, 6),
    order=st.sampled_from(SampleOrder),
    group=st.none() | st.integers(0, 4),
    region=st.sampled_from(["", "eu", "us", "elsewhere"]),
    page=st.integers(1, 4),
    size=st.integers(1, 5),
)
def test_a_page_is_that_of_a_plain_sort(
    steps: list[list[tuple[int, float, int]]],
    oldest: int | None,
    step: int | None,
    order: SampleOrder,
    group: int | None,
    region: str,
    page: int,
    size: int,
) -> None:
    index, plain = index_of(steps, oldest)
    query = SampleQuery(step=step, order=order, group=group, region=region, page=page, size=size)
    found = choose(index, query)
    matching = expected(plain, query, len(steps), oldest)
    assert found.num_matching == len(matching)
    got = [(each.block.policy.version, each.row) for each in found.samples]
    assert got == [(one.step, one.place) for one in matching[(page - 1) * size : page * size]]


def test_of_many_samples_with_one_reward_the_newest_are_shown() -> None:
    rows = empty_rows(100_000)
    rows["sequence"], rows["epoch"] = np.arange(100_000), 1
    block = StepBlock(policy=Policy(0, 1), regions=(), rows=rows)
    index = SampleIndex(blocks=(block,), evaluations=(), oldest=Position(1, 0))
    page = choose(index, SampleQuery(order=SampleOrder.BEST, size=3))
    assert [each.row for each in page.samples] == [99_999, 99_998, 99_997]
