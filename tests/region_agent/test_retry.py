"""How long one waits who is refused again and again."""

from region_agent.retry import FREE_ATTEMPTS, LONGEST_PAUSE_S, RESET_AFTER_S, Backoff


def test_the_first_attempts_are_free_and_later_ones_wait_ever_longer() -> None:
    backoff, now_s, pauses = Backoff(), 1000.0, []
    for _ in range(40):
        pauses.append(backoff.pause_s(now_s))
        now_s += pauses[-1]
    assert pauses[:FREE_ATTEMPTS] == [0.0] * FREE_ATTEMPTS
    assert pauses[FREE_ATTEMPTS:] == sorted(pauses[FREE_ATTEMPTS:])
    assert pauses[FREE_ATTEMPTS] == 1.0
    assert pauses[-1] == LONGEST_PAUSE_S


def test_after_a_while_of_peace_all_is_forgotten() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.pause_s(1000.0)
    assert backoff.pause_s(1000.0 + RESET_AFTER_S) == 0.0
