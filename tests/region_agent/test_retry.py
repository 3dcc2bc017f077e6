"""How long one waits who is refused again and again."""

from region_agent.retry import FORGET_S, FREE, LONGEST_PAUSE_S, Patience


def test_the_first_attempts_are_free_and_later_ones_wait_ever_longer() -> None:
    patience, now_s, pauses = Patience(), 1000.0, []
    for _ in range(40):
        pauses.append(patience.pause_s(now_s))
        now_s += pauses[-1]
    assert pauses[:FREE] == [0.0] * FREE
    assert pauses[FREE:] == sorted(pauses[FREE:])
    assert pauses[FREE] == 1.0
    assert pauses[-1] == LONGEST_PAUSE_S


def test_after_a_while_of_peace_all_is_forgotten() -> None:
    patience = Patience()
    for _ in range(20):
        patience.pause_s(1000.0)
    assert patience.pause_s(1000.0 + FORGET_S) == 0.0
