"""The frontier names its ends and its knee, and leaves out what another plan betters."""

from dataclasses import replace

from planner.explain.frontier import frontier_of, frontier_text, frontier_tree
from planner.explain.processes import NO_PRICES, dollars_text, processes_text
from planner.plan import Assignment, Plan, TaskKind
from tests.support.planner.gpu_plan import gpu_plan
from tests.support.planner.static_plan import PLAN


def point(step_s: float, usd: float) -> Plan:
    made = gpu_plan()
    assert made.evaluation is not None
    trainer = Assignment(task=TaskKind.TRAINER, region="eu", num_workers=1, device="L4", data=2, usd_per_hour=usd / 2)
    rollout = Assignment(task=TaskKind.ROLLOUT, region="us", num_workers=3, engine="torch", usd_per_hour=usd / 2)
    evaluation = replace(made.evaluation, step_s=step_s, usd_per_hour=usd, usd_egress_per_hour=0.0)
    return replace(made, assignments=(trainer, rollout), evaluation=evaluation)


def test_the_knee_is_farthest_below_the_line_between_the_ends() -> None:
    points = [(1.0, 10.0), (1.2, 4.0), (2.0, 3.5), (2.0, 9.0), (3.0, 3.0), (4.0, 3.0)]
    named = frontier_of([point(*each) for each in reversed(points)])
    found = [(name, plan.evaluation.step_s) for name, plan in named if plan.evaluation]
    assert found == [("fastest", 1.0), ("knee", 1.2), ("cheapest", 3.0)]
    lines = frontier_text(named, 100).splitlines()
    assert lines[0].split() == ["FRONTIER", "S/STEP", "$/H", "$/1M", "TOKENS", "$/JOB", "DEVICES"]
    assert lines[2].endswith("2 L4 in eu, 3 cores in us")
    assert [each["point"] for each in frontier_tree(named, 100)] == ["fastest", "knee", "cheapest"]


def test_fewer_than_three_points_have_no_knee() -> None:
    assert frontier_of([]) == ()
    assert [name for name, _ in frontier_of([point(1.0, 2.0)])] == ["fastest and cheapest"]
    assert [name for name, _ in frontier_of([point(1.0, 2.0), point(2.0, 1.0)])] == ["fastest", "cheapest"]


def test_processes_are_a_row_each_and_dollars_a_line() -> None:
    made = point(36.0, 10.0)
    assert processes_text(made).splitlines() == [
        "TASK     REGION  DEVICE  ENGINE  TENSOR  DATA  COUNT   $/H",
        "trainer  eu      L4      -            -     2      1  5.00",
        "rollout  us      cores   torch        1     -      3  5.00",
    ]
    assert "rent 10.00 + egress 0.00 an hour, 0.1 a step," in dollars_text(made, 50)
    assert dollars_text(made, 50).endswith(" 5.00 for 50 steps")
    by_hand = replace(
        made, evaluation=None, assignments=(made.assignments[0], replace(made.assignments[1], usd_per_hour=None))
    )
    assert dollars_text(by_hand, 50) == (
        "dollars: rent 5.00 + egress 0.00 an hour, no step is predicted (without 3 processes whose price is unknown)"
    )
    assert dollars_text(PLAN, 50) == NO_PRICES
