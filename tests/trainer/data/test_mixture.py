"""The order of problems: one data set or several, the same after every restore."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.mixture import BLOCK_GROUPS, TrainingSource, block_shares, item_order


def test_each_epoch_goes_through_every_problem_once_in_an_order_of_its_own() -> None:
    problems = tuple(range(100, 150))
    item_of = item_order([TrainingSource(problems=problems, weight=1.0)], seed=3)
    epochs = [[item_of(group) for group in range(50 * epoch, 50 * (epoch + 1))] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(problems)] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 5000), max_size=20),
)
def test_a_problem_depends_on_the_number_of_the_group_alone(weights: list[float], seed: int, groups: list[int]) -> None:
    sources = [
        TrainingSource(problems=tuple(range(100 * number, 100 * number + 7 + number)), weight=weight)
        for number, weight in enumerate(weights)
    ]
    forwards, fresh = item_order(sources, seed), item_order(sources, seed)
    assert [forwards(group) for group in groups] == [fresh(group) for group in reversed(groups)][::-1]


def test_weights_hold_exactly_over_each_block_and_each_source_goes_round_by_itself() -> None:
    large = TrainingSource(problems=tuple(range(1000)), weight=3.0)
    small = TrainingSource(problems=tuple(range(5000, 5010)), weight=1.0)
    item_of = item_order([large, small], seed=1)
    blocks = [[item_of(group) for group in range(BLOCK_GROUPS * n, BLOCK_GROUPS * (n + 1))] for n in range(5)]
    assert [sum(item >= 5000 for item in block) for block in blocks] == [64] * 5
    of_small = [item for block in blocks for item in block if item >= 5000]
    # 320 groups of ten problems: each was seen 32 times, and once in each round of ten.
    assert set(Counter(of_small).values()) == {32}
    assert all(len(set(of_small[start : start + 10])) == 10 for start in range(0, 320, 10))
    of_large = [item for block in blocks for item in block if item < 5000]
    assert len(set(of_large)) == len(of_large) == 960


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=64))
def test_shares_fill_a_block_and_leave_no_source_out(weights: list[float]) -> None:
    shares = block_shares(weights)
    assert min(shares) >= 1
    assert sum(shares) >= BLOCK_GROUPS
    total = sum(weights)
    assert all(
        abs(share - weight / total * BLOCK_GROUPS) < 1 or share == 1
        for share, weight in zip(shares, weights, strict=True)
    )


def test_a_source_without_problems_is_left_out() -> None:
    item_of = item_order([TrainingSource(problems=(), weight=9.0), TrainingSource(problems=(4, 5), weight=1.0)], seed=0)
    assert sorted(item_of(group) for group in range(2)) == [4, 5]
    with pytest.raises(ValueError, match="no data set"):
        item_order([TrainingSource(problems=(), weight=1.0)], seed=0)
