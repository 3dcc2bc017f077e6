"""The staleness window equals AReaL's formula for one class, and earliest-deadline-first for several."""

from hypothesis import given
from hypothesis import strategies as st

from planner.simulate.generation.staleness_window import Window


def deadline_first_succeeds(versions: list[int], *, batch: int, eta: int, next_step: int) -> bool:
    """Return whether no group is used later than its class allows if each step takes the most urgent groups."""
    left = sorted(versions)
    step = next_step
    while left:
        taken, left = left[:batch], left[batch:]
        if any(version + eta < step for version in taken):
            return False
        step += 1
    return True


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 6))
def test_for_one_class_it_is_areals_formula(batch: int, eta: int, version: int) -> None:
    window = Window(batch=batch, eta=eta)
    window.next_step = version
    opened = 0
    while window.room(version) > 0:
        window.open(version)
        opened += 1
    assert opened == (eta + 1) * batch


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(0, 5), max_size=20))
def test_what_it_opens_can_all_be_taken_in_time(batch: int, eta: int, wishes: list[int]) -> None:
    window = Window(batch=batch, eta=eta)
    opened: list[int] = []
    for version in wishes:
        fits = deadline_first_succeeds([*opened, version], batch=batch, eta=eta, next_step=0)
        assert (window.room(version) > 0) == fits
        if fits:
            window.open(version)
            opened.append(version)


def test_a_batch_that_leaves_an_older_group_behind_is_not_taken() -> None:
    window = Window(batch=2, eta=1)
    for version in (0, 1, 1):
        window.open(version)
    window.next_step = 1
    assert not window.may_take([1, 1])
    assert window.may_take([0, 1])


def test_what_is_too_old_is_not_taken_at_all() -> None:
    window = Window(batch=1, eta=1)
    window.open(0)
    window.next_step = 2
    assert not window.may_take([0])


def test_a_taken_batch_makes_room_only_for_newer_classes() -> None:
    window = Window(batch=2, eta=0)
    window.open(0)
    window.open(0)
    assert window.room(0) == 0
    window.take([0, 0])
    assert (window.next_step, window.room(0), window.room(1)) == (1, 0, 2)
