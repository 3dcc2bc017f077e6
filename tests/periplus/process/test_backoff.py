import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.process.backoff import Attempts, Backoff

REQUESTS = Backoff(first_s=1.0, longest_s=60.0, free_attempts=3, reset_after_s=300.0)


def pauses(backoff: Backoff, number: int) -> list[float]:
    return [backoff.pause_s(attempt) for attempt in range(number)]


def test_pauses_double_from_the_first_to_the_longest() -> None:
    assert pauses(Backoff(first_s=0.25, longest_s=5.0), 7) == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_free_attempts_wait_for_nothing_and_do_not_double_what_comes_after() -> None:
    assert pauses(Backoff(first_s=1.0, longest_s=4.0, free_attempts=2), 6) == [0.0, 0.0, 1.0, 2.0, 4.0, 4.0]


@given(st.floats(0.0, 1e6), st.integers(0, 5000))
def test_a_pause_is_never_shorter_than_the_one_before_nor_longer_than_allowed(
    longest_s: float, num_attempts: int
) -> None:
    backoff = Backoff(first_s=0.1, longest_s=longest_s, free_attempts=1)
    assert backoff.pause_s(num_attempts) <= backoff.pause_s(num_attempts + 1) <= longest_s


def test_without_a_longest_pause_any_number_of_attempts_still_has_one() -> None:
    assert Backoff(first_s=1.0).pause_s(1_000_000) == 2.0**1000


def test_attempts_are_counted_and_each_waits_at_least_as_long_as_the_one_before() -> None:
    attempts, now_s, found = Attempts(REQUESTS), 1000.0, list[float]()
    for _ in range(40):
        found.append(attempts.pause_s(now_s))
        now_s += found[-1]
    assert found == pauses(REQUESTS, 40)
    assert found[-1] == REQUESTS.longest_s


@pytest.mark.parametrize(("quiet_s", "pause_s"), [(299.0, 60.0), (300.0, 0.0)])
def test_after_a_long_time_without_an_attempt_counting_begins_again(quiet_s: float, pause_s: float) -> None:
    attempts = Attempts(REQUESTS)
    for _ in range(20):
        attempts.pause_s(1000.0)
    assert attempts.pause_s(1000.0 + quiet_s) == pause_s
