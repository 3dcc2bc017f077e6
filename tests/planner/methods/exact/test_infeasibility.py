"""Conflicts are minimal: without any one of their facts a placement exists."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.answer.outcome import Found, Infeasible
from planner.cost.tables.cost_tables import CostTables
from planner.methods.exact.infeasibility import conflict
from planner.methods.exact.method import search
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.workload import Task


def names(found: object) -> set[str]:
    assert isinstance(found, Infeasible)
    assert found.is_minimal
    return {fact.name for fact in found.facts}


def test_two_pins_and_one_region_contradict_each_other(make_problem: Callable[..., Problem]) -> None:
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = make_problem(rules=Rules(pins=pins, max_regions=1))
    found = search(CostTables(problem), seed=0, budget_s=20.0, now_s=time.process_time)
    assert names(found) == {"pin:generation", "pin:actor_training", "max_regions"}
    for pin in pins:
        fewer = replace(problem, rules=replace(problem.rules, pins=tuple(p for p in pins if p != pin)))
        assert isinstance(search(CostTables(fewer), seed=0, budget_s=20.0, now_s=time.process_time), Found)


def test_a_deadline_that_nothing_meets_is_named(make_problem: Callable[..., Problem]) -> None:
    found = search(CostTables(make_problem(goal=Goal(max_step_s=0.5))), seed=0, budget_s=20.0, now_s=time.process_time)
    assert "deadline" in names(found)
    assert isinstance(found, Infeasible)
    fact = next(each for each in found.facts if each.name == "deadline")
    best = search(CostTables(make_problem()), seed=0, budget_s=20.0, now_s=time.process_time)
    assert isinstance(best, Found)
    said = float(fact.what.removesuffix(" s a step)").rpartition(" ")[2])
    assert fact.what.startswith("at most 0.5 s a step (without this limit, the best found is ")
    assert said == pytest.approx(best.best.evaluation.step_s, rel=0.03)


def test_a_missing_price_that_would_meet_the_limit_is_named(make_problem: Callable[..., Problem]) -> None:
    plain = make_problem()
    best = search(CostTables(plain), seed=0, budget_s=20.0, now_s=time.process_time)
    assert isinstance(best, Found)
    first, *others = plain.fleet.regions
    unpaid = replace(first, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in first.machines))
    paid = [replace(r, machines=tuple(replace(m, usd_per_gpu_hour=1.0) for m in r.machines)) for r in others]
    fleet = replace(plain.fleet, regions=(unpaid, *paid))
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=1.05 * best.best.evaluation.step_s)
    found = search(CostTables(replace(plain, fleet=fleet, goal=goal)), seed=0, budget_s=20.0, now_s=time.process_time)
    assert any(name.startswith(f"price:{first.name}/") for name in names(found))
    assert isinstance(found, Infeasible)
    assert any("with devices that have a price is " in fact.what for fact in found.facts)


def test_ways_that_nobody_measured_are_named(make_problem: Callable[..., Problem]) -> None:
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = make_problem(rules=Rules(pins=pins))
    one_way = tuple(link for link in problem.fleet.links if link.dst_region != "east")
    problem = replace(problem, fleet=replace(problem.fleet, links=one_way))
    found = search(CostTables(problem), seed=0, budget_s=20.0, now_s=time.process_time)
    assert isinstance(found, Infeasible)
    said = {fact.what for fact in found.facts}
    assert "no link was measured from west to east" in said
    assert "actor training may use only east" in said


def test_a_model_that_fits_nowhere_is_memorys_fault(make_problem: Callable[..., Problem]) -> None:
    pins = ((Task.ACTOR_TRAINING, frozenset({"west"})), (Task.GENERATION, frozenset({"west"})))
    problem = make_problem(model="Qwen3-32B", rules=Rules(pins=pins))
    found = names(search(CostTables(problem), seed=0, budget_s=20.0, now_s=time.process_time))
    assert any(name.startswith(("memory:", "inventory:")) for name in found)


def test_what_time_did_not_decide_is_not_called_minimal(make_problem: Callable[..., Problem]) -> None:
    hours = itertools.count(step=3600.0)
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = make_problem(rules=Rules(pins=pins, max_regions=1))
    found = conflict(problem, lambda: next(hours), lambda: False)
    assert not found.is_minimal


def test_of_two_pins_of_one_task_the_one_that_contradicts_is_named(make_problem: Callable[..., Problem]) -> None:
    here, anywhere = frozenset({"east"}), frozenset({"east", "west"})
    task = Task.ACTOR_TRAINING
    for pins in (((task, anywhere), (task, here)), ((task, here), (task, anywhere))):
        problem = make_problem(rules=Rules(pins=pins, forbidden=((task, here),)))
        found = search(CostTables(problem), seed=0, budget_s=20.0, now_s=time.process_time)
        assert isinstance(found, Infeasible)
        assert {fact.what for fact in found.facts} == {
            "actor training must not use east",
            "actor training may use only east",
        }
