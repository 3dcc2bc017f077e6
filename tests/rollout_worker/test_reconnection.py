import pytest

from rollout_worker.reconnection import GATEWAY_TIMEOUT_S, STABLE_S, Outage


def test_a_worker_gives_up_when_a_gateway_has_been_away_for_too_long() -> None:
    outage = Outage()
    assert not outage.broke(opened_s=0.0, now_s=100.0)
    assert not outage.broke(opened_s=159.5, now_s=100.0 + GATEWAY_TIMEOUT_S)
    assert outage.broke(opened_s=160.0, now_s=100.1 + GATEWAY_TIMEOUT_S)


@pytest.mark.parametrize(("lasted_s", "gives_up"), [(STABLE_S, True), (STABLE_S + 0.1, False)])
def test_only_a_stream_that_lasted_ends_the_outage_before_it(lasted_s: float, gives_up: bool) -> None:
    outage = Outage()
    outage.broke(opened_s=0.0, now_s=0.0)
    now_s = GATEWAY_TIMEOUT_S + 10.0
    assert outage.broke(opened_s=now_s - lasted_s, now_s=now_s) is gives_up
