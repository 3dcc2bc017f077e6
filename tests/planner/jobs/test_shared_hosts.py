"""Regions on one machine share its cores: a step takes at least the core seconds of all their processes."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from planner import solve
from planner.answer.outcome import BudgetExhausted, Found
from planner.devices.catalogue import architecture
from planner.files.capabilities import load_capabilities
from planner.plan import Plan
from planner.problem.workload import Task
from planner.solve import Thinking, plan_job
from tests.support.planner.hosts import host, mesh, tiny_job

NAMES = ("a", "b", "c")


def planned(hosts: Mapping[str, str], cores: int, **changes: object) -> Plan:
    regions = [replace(host(name, num_cores=cores), host=hosts.get(name, "")) for name in NAMES]
    found = plan_job(
        mesh(regions),
        tiny_job(regions={"min": 3}, plan={"workers_per_region": 1}, **changes),
        architecture=architecture("builtin:qwen3-tiny"),
        model_bytes=None,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=20.0, now_s=time.monotonic),
    )
    assert isinstance(found, Found), found
    return found.best


def seconds(plan: Plan) -> tuple[float, float]:
    """The step and the training of a plan."""
    assert plan.evaluation is not None
    return plan.evaluation.step_s, dict(plan.evaluation.task_s)[Task.ACTOR_TRAINING]


def test_a_machine_with_cores_for_all_is_as_fast_as_one_for_each_region() -> None:
    assert seconds(planned(dict.fromkeys(NAMES, "box"), 16)) == seconds(planned({}, 16))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_step_takes_the_core_seconds_of_all_processes_on_the_cores_that_there_are(cores: int) -> None:
    alone_s, trains_s = seconds(planned({}, 16, staleness=4))
    step_s, training_s = seconds(planned(dict.fromkeys(NAMES, "box"), cores, staleness=4))
    # All takes so many times longer that the cores are busy for all of a step.
    assert step_s == pytest.approx(training_s / trains_s * alone_s, rel=0.02)
    on_one_core_s = seconds(planned(dict.fromkeys(NAMES, "box"), 1, staleness=4))[0]
    assert on_one_core_s > 1.1 * alone_s
    assert step_s == pytest.approx(max(alone_s, on_one_core_s / cores), rel=0.02)


def test_a_region_on_a_machine_of_its_own_is_no_slower() -> None:
    both = planned({"a": "box", "b": "box"}, 1, staleness=4)
    sources = {each.region: each.share for each in both.assignments if each.task == "rollout"}
    assert sources["c"] is not None
    assert sources["c"] > max(sources["a"] or 0.0, sources["b"] or 0.0)


def test_workers_of_a_synchronous_job_share_the_cores_with_each_other_and_not_with_the_trainer() -> None:
    alone_s, trains_s = seconds(planned({}, 16, staleness=0))
    step_s, training_s = seconds(planned(dict.fromkeys(NAMES, "box"), 1, staleness=0))
    assert training_s == pytest.approx(trains_s)
    # Generation takes three times as long, and transfers no longer.
    assert 1.5 * (alone_s - trains_s) < step_s - training_s < 3 * (alone_s - trains_s)


def test_a_plan_that_counts_no_sharing_is_kept_where_there_is_no_time_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, calls = solve._best_over_trainer_regions, list[object]()

    def once(*arguments: Any) -> Any:
        calls.append(arguments)
        return first(*arguments) if len(calls) == 1 else (BudgetExhausted(best=None, bound=None), None)

    monkeypatch.setattr(solve, "_best_over_trainer_regions", once)
    alone = [replace(host(name, num_cores=1), host="box") for name in NAMES]
    found = plan_job(
        mesh(alone),
        tiny_job(regions={"min": 3}, plan={"workers_per_region": 1}, staleness=4),
        architecture=architecture("builtin:qwen3-tiny"),
        model_bytes=None,
        capabilities=load_capabilities(),
        thinking=Thinking(budget_s=20.0, now_s=time.monotonic),
    )
    assert len(calls) == 2
    assert isinstance(found, Found)
