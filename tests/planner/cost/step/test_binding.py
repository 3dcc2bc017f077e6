from dataclasses import replace

import pytest

from planner.cost.step.binding import binding_sentence, names, seconds
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Objective
from tests.support.planner.gpu_plan import FLEET, PROBLEM, estimate, with_eta


def faster(fleet: Fleet, factor: float) -> Fleet:
    return replace(fleet, links=tuple(replace(k, bytes_per_s=factor * k.bytes_per_s) for k in fleet.links))


def sentence(problem: object = PROBLEM) -> str:
    cost_tables, found = estimate(problem)  # type: ignore[arg-type]
    return binding_sentence(cost_tables, found.placement, found.evaluation)


def test_a_path_lists_its_terms() -> None:
    text = sentence()
    assert text.startswith("the path of a version through eu: training ")
    assert text.endswith("within 2 steps (staleness bound 1)")
    assert " + weights " in text
    assert " + generation " in text


def test_busy_devices_bind_where_there_is_slack() -> None:
    problem = replace(with_eta(8), fleet=faster(FLEET, 100))
    assert sentence(problem) == "critic training keeps the devices busy all the time"


def test_a_slow_link_or_uplink_binds_with_its_rate() -> None:
    slow = faster(FLEET, 0.01)
    assert sentence(replace(with_eta(1000), fleet=slow)).startswith(
        "the link from us to eu: 8.04 GB of weights a version"
    )
    capped = tuple(replace(r, wan_up_bytes_per_s=5e6 if r.name == "us" else None) for r in FLEET.regions)
    text = sentence(replace(with_eta(1000), fleet=replace(FLEET, regions=capped)))
    assert "us" in text
    assert "of weights a version" in text


def test_the_goals_number_is_named() -> None:
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=100.0)
    assert sentence(replace(PROBLEM, goal=goal)).endswith("; 100 s a step are allowed")


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ("reward", "reward"),
        ("actor_training+reward", "actor training and reward"),
        ("generation+reward+critic_training", "generation, reward and critic training"),
    ],
)
def test_tasks_are_named_for_people(tasks: str, expected: str) -> None:
    assert names(tasks) == expected


def test_seconds_carry_a_fitting_unit() -> None:
    assert [seconds(x) for x in (0.0, 0.0123, 1.5, 250.0)] == ["0 s", "12.3 ms", "1.50 s", "250 s"]
