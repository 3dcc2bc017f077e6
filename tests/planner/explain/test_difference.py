from dataclasses import replace

import pytest

from planner.answer.placement import Placement
from planner.explain.difference import difference
from planner.propose import plan_of
from tests.support.gpu_plan import PLACEMENT, gpu_plan, judged
from tests.support.static_plan import PLAN


def test_a_plan_does_not_differ_from_itself() -> None:
    for made in (PLAN, gpu_plan()):
        found = difference(made, made)
        assert (found.workers, found.devices) == ((), ())
        assert found.text() == "the two plans are the same"


def test_devices_that_move_are_counted() -> None:
    (pool,) = PLACEMENT.groups[0].pools
    fewer = replace(PLACEMENT.groups[0], pools=(replace(pool, num_units=6),))
    prices, found = judged(placement=Placement(groups=(fewer, *PLACEMENT.groups[1:])))
    changed = difference(gpu_plan(), plan_of(prices, found, method="hetrl", seed=1))
    assert changed.devices == (("generation", "eu/L40S/4/spot", 8, 6),)
    assert changed.workers == (("rollout", "eu", 8, 6),)
    assert changed.moved_fraction == pytest.approx(2 / 32), "of 8 + 8 + 4 + 3 x 4"
    text = changed.text()
    assert "generation  eu/L40S/4/spot  8       6" in text
    assert "method" in text
    assert changed.to_tree()["devices"] == [
        {"task": "generation", "device_class": "eu/L40S/4/spot", "before": 8, "after": 6}
    ]


def test_plans_without_placements_differ_by_their_workers() -> None:
    other = replace(PLAN, assignments=PLAN.assignments[:2], method="auto")
    found = difference(PLAN, other)
    assert found.workers == (("rollout", "bbb", 1, 0),)
    assert found.moved_fraction is None
    assert "rollout  bbb" in found.text()
