"""Conflicts are minimal: without any one of their facts there is a placement."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from planner.answer.outcome import Found, Infeasible
from planner.cost.pools import Prices
from planner.exact.conflict import conflict
from planner.exact.method import search
from planner.question.goal import Goal, Problem, Rules
from planner.question.workload import Task


def names(found: object) -> set[str]:
    assert isinstance(found, Infeasible)
    assert found.is_minimal
    return {fact.name for fact in found.conflict}


def test_two_pins_and_one_region_contradict_each_other(make_problem: Callable[..., Problem]) -> None:
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = make_problem(rules=Rules(pins=pins, max_regions=1))
    found = search(Prices(problem), seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert names(found) == {"pin:generation", "pin:actor_training", "max_regions"}
    for pin in pins:
        fewer = replace(problem, rules=replace(problem.rules, pins=tuple(p for p in pins if p != pin)))
        assert isinstance(search(Prices(fewer), seed=0, budget_s=20.0, now_s=time.perf_counter), Found)


def test_a_deadline_that_nothing_meets_is_named(make_problem: Callable[..., Problem]) -> None:
    found = search(Prices(make_problem(goal=Goal(max_step_s=0.5))), seed=0, budget_s=20.0, now_s=time.perf_counter)
    assert "deadline" in names(found)


def test_a_model_that_fits_nowhere_is_memorys_fault(make_problem: Callable[..., Problem]) -> None:
    pins = ((Task.ACTOR_TRAINING, frozenset({"west"})), (Task.GENERATION, frozenset({"west"})))
    problem = make_problem(model="Qwen3-32B", rules=Rules(pins=pins))
    found = names(search(Prices(problem), seed=0, budget_s=20.0, now_s=time.perf_counter))
    assert any(name.startswith(("memory:", "inventory:")) for name in found)


def test_what_time_did_not_decide_is_not_called_minimal(make_problem: Callable[..., Problem]) -> None:
    hours = itertools.count(step=3600.0)
    pins = ((Task.GENERATION, frozenset({"west"})), (Task.ACTOR_TRAINING, frozenset({"east"})))
    problem = make_problem(rules=Rules(pins=pins, max_regions=1))
    found = conflict(problem, lambda: next(hours), lambda: False)
    assert not found.is_minimal
