from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trainer.ledger.staleness_window import excess, fits, minus, plus, without_oldest

SMALL = {"groups_per_step": 2, "bound": 1}


def test_as_many_groups_fit_as_the_steps_within_the_bound_take() -> None:
    assert fits({5: 4}, next_step=5, **SMALL)
    assert excess({5: 5}, next_step=5, **SMALL) == 1


def test_older_groups_leave_room_for_younger_ones_only_in_later_steps() -> None:
    assert fits({4: 2, 5: 2}, next_step=5, **SMALL)
    assert excess({4: 3, 5: 1}, next_step=5, **SMALL) == 1
    assert excess({4: 1, 5: 4}, next_step=5, **SMALL) == 1


def test_a_group_that_only_a_past_step_could_consume_never_fits() -> None:
    assert excess({3: 1}, next_step=5, **SMALL) == 1


def test_at_bound_zero_a_group_of_the_next_version_fits_while_the_step_before_is_trained() -> None:
    assert excess({7: 1}, groups_per_step=2, bound=0, next_step=8) == 1
    assert fits({8: 2}, groups_per_step=2, bound=0, next_step=8)


def test_adding_and_removing_leave_no_empty_class() -> None:
    assert plus({1: 1}, [1, 2]) == Counter({1: 2, 2: 1})
    assert minus({1: 2, 2: 1}, [1, 2]) == Counter({1: 1})


@given(st.dictionaries(st.integers(0, 6), st.integers(1, 5)), st.integers(1, 3), st.integers(0, 3), st.integers(0, 6))
def test_what_fits_is_what_earliest_deadline_first_can_consume_in_time(
    classes: dict[int, int], groups_per_step: int, bound: int, next_step: int
) -> None:
    queue = sorted(version for version, count in classes.items() for _ in range(count))
    in_time = all(next_step + place // groups_per_step <= version + bound for place, version in enumerate(queue))
    assert fits(classes, groups_per_step=groups_per_step, bound=bound, next_step=next_step) == in_time


@given(st.dictionaries(st.integers(0, 6), st.integers(1, 5)), st.integers(1, 3), st.integers(0, 3), st.integers(0, 6))
def test_the_excess_is_the_fewest_of_the_oldest_without_which_all_fit(
    classes: dict[int, int], groups_per_step: int, bound: int, next_step: int
) -> None:
    queue = sorted(version for version, count in classes.items() for _ in range(count))
    counts = (
        count
        for count in range(len(queue) + 1)
        if fits(Counter(queue[count:]), groups_per_step=groups_per_step, bound=bound, next_step=next_step)
    )
    assert excess(classes, groups_per_step=groups_per_step, bound=bound, next_step=next_step) == next(counts)


def test_a_batch_takes_the_oldest_of_what_is_whole() -> None:
    assert +without_oldest({1: 3, 2: 2, 3: 1}, {1: 1, 2: 2, 3: 1}, 2) == Counter({1: 2, 2: 1, 3: 1})
