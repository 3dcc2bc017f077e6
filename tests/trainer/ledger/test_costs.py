"""What an event costs the ledger does not grow with the number of leases that a worker holds.

Costs are counted in function calls, of Python and of C, which is the same on every machine.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from periplus.values.policy import Policy
from tests.support.ledgers import Desk, answer
from trainer.ledger.values import ClockTicked, Event, Lease, LeasesStarted, ResultArrived


def calls_of(action: Callable[[], Any]) -> int:
    num_calls = 0

    def count(frame: FrameType, what: str, about: object) -> None:
        nonlocal num_calls
        num_calls += what in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return num_calls


def a_result(lease: Lease) -> Event:
    return ResultArrived(answer(lease, Policy(0, 0), "a"))


def a_start(lease: Lease) -> Event:
    return LeasesStarted("a", (lease.lease_id,), Policy(0, 0))


def cost_with(num_leases: int, event: Callable[[Lease], Event]) -> int:
    """Return the most calls that one of 20 events and a tick after it cost while a worker holds so many leases."""
    desk = Desk(group_size=8, groups_per_step=num_leases // 8, steps=1, bound=0, intake_tokens=10_000_000)
    leases = desk.worker("a", num_leases)
    assert len(leases) == num_leases

    def cost_of(place: int, lease: Lease) -> int:
        now_s = 1.0 + place / 100
        return calls_of(lambda: desk.ledger.apply(event(lease), now_s)) + calls_of(
            lambda: desk.ledger.apply(ClockTicked(), now_s)
        )

    return max(cost_of(place, lease) for place, lease in enumerate(leases[:20]))


@pytest.mark.parametrize("event", [a_result, a_start])
def test_an_event_costs_the_same_however_many_leases_its_worker_holds(event: Callable[[Lease], Event]) -> None:
    assert cost_with(4096, event) <= 2 * cost_with(64, event)
