"""Which way is the cheapest: the one with which the reader has the newest weights soonest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from region_agent.weights.reader_routes import RouteKind, RouteRates, Situation, costs, fold_bytes

GB = 1 << 30
DELTA = 100 << 20
SLOW, FAST = RouteRates(link_bytes_per_s=2.5e6), RouteRates(link_bytes_per_s=1.25e9)


def cheapest(situation: Situation, rates: RouteRates) -> RouteKind:
    return costs(situation, rates)[0].kind


def behind(num_deltas: int, made_fold: int | None = None) -> Situation:
    chain = [DELTA] * num_deltas
    return Situation(chain=chain, num_folded=num_deltas, copy_content=16 * GB, made_fold=made_fold)


def test_one_delta_is_sent_as_it_was_signed() -> None:
    assert cheapest(behind(1), SLOW) is cheapest(behind(1), FAST) is RouteKind.CHAIN


def test_eight_deltas_are_folded_over_a_slow_link_and_sent_as_they_are_over_a_fast_one() -> None:
    assert cheapest(behind(8), SLOW) is RouteKind.FOLD
    assert cheapest(behind(8), FAST) is RouteKind.CHAIN


def test_a_fold_that_is_made_already_costs_only_its_bytes() -> None:
    assert cheapest(behind(8, made_fold=4 * DELTA), FAST) is RouteKind.FOLD


def test_who_has_nothing_gets_the_copy_and_the_deltas_behind_it() -> None:
    (only,) = costs(Situation(copy_content=16 * GB, is_behind_copy=True, after_copy=[DELTA, DELTA]), FAST)
    assert only.kind is RouteKind.FULL
    assert only.num_bytes == int(0.8 * 16 * GB) + 2 * DELTA


def test_nobody_is_sent_a_copy_that_is_older_than_what_it_has() -> None:
    dense = Situation(chain=[20 * GB], num_folded=1, copy_content=GB)
    assert {cost.kind for cost in costs(dense, FAST)} == {RouteKind.CHAIN, RouteKind.FOLD}


def test_without_chain_and_copy_there_is_no_way() -> None:
    assert costs(Situation(), FAST) == ()


@pytest.mark.parametrize(("num_deltas", "share"), [(2, 0.87), (4, 0.74), (8, 0.60), (16, 0.47)])
def test_the_estimate_of_a_fold_is_near_what_was_measured(num_deltas: int, share: float) -> None:
    assert fold_bytes([1000] * num_deltas) / (1000 * num_deltas) == pytest.approx(share, rel=0.08)


@given(
    chain=st.none() | st.lists(st.integers(1, 1 << 40), max_size=20),
    content=st.none() | st.integers(1, 1 << 45),
    after=st.lists(st.integers(1, 1 << 40), max_size=5),
    link=st.floats(1e3, 1e11),
    is_behind=st.booleans(),
)
def test_ways_are_ordered_by_time_and_none_is_faster_than_its_bytes(
    chain: list[int] | None, content: int | None, after: list[int], link: float, is_behind: bool
) -> None:
    situation = Situation(
        chain=chain, num_folded=len(chain or ()), copy_content=content, after_copy=after, is_behind_copy=is_behind
    )
    found = costs(situation, RouteRates(link_bytes_per_s=link))
    assert [cost.seconds for cost in found] == sorted(cost.seconds for cost in found)
    assert all(cost.seconds >= cost.num_bytes / link for cost in found)
    assert (chain is not None) == (RouteKind.CHAIN in {cost.kind for cost in found})
