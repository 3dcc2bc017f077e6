"""Properties of the best placement on any fleet: more resources never hurt, units and names do not matter."""

import time
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bench.planner_cases import small
from planner.answer.outcome import BudgetExhausted, Found, Infeasible, Outcome
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import ignore, never
from planner.methods.exact.method import search
from planner.methods.exact.search import Search
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Objective, Problem, Rules
from planner.problem.hardware import GpuType
from planner.problem.workload import Task
from tests.support.planner.known_parts import known_parts, with_binding_goal

pytestmark = pytest.mark.slow

T = TypeVar("T")
TOLERANCE = 1e-6
GAP = 2e-5
"""Relative gap that a search with a requested gap of 0 reaches."""
BUDGET_S = 20.0
"""Time budget of one search in processor seconds. Nearly all cases take less than 0.5, and none more than 3."""
numbers = st.integers(min_value=0, max_value=79)
few = settings(max_examples=7, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
fewer = settings(few, max_examples=3)
"""Fewer examples, for tests whose cases need many searches: a conflict takes one search per fact that is tried."""


def solved(problem: Problem) -> Outcome:
    return search(CostTables(problem), seed=0, budget_s=2 * BUDGET_S, now_s=time.process_time, gap=0.0)


def best_s(problem: Problem) -> float | None:
    """Seconds a step of the best placement; None where there is none."""
    outcome = Search(
        cost_tables=CostTables(problem),
        gap=0.0,
        budget_s=BUDGET_S,
        now_s=time.process_time,
        report=ignore,
        should_stop=never,
    ).run()  # without a conflict, which takes longer
    assert not isinstance(outcome, BudgetExhausted)  # an unproved answer is no best
    return outcome.best.evaluation.step_s if isinstance(outcome, Found) else None


def feasible(number: int, size: small.Size = small.DEVICES) -> tuple[Problem, float]:
    """A small case for throughput that has a plan."""
    problem, before = asked(number, size is small.MANY_TASK_DEVICES)
    assume(before is not None)
    assert before is not None
    return problem, before


@cache
def asked(number: int, has_many_tasks: bool) -> tuple[Problem, float | None]:
    """The case for throughput, and its best."""
    size = small.MANY_TASK_DEVICES if has_many_tasks else small.DEVICES
    problem = replace(small.problem(number, size), goal=Goal())
    assume(has_many_tasks or len(problem.workload.tasks) < 4)
    return problem, best_s(problem)


def no_worse(after: float | None, before: float) -> bool:
    return after is not None and after <= before * (1 + TOLERANCE)


@few
@given(numbers, st.integers(min_value=0, max_value=7))
def test_another_machine_never_hurts(number: int, which: int) -> None:
    problem, before = feasible(number)
    assert no_worse(best_s(with_another_machine(problem, which)), before)


def with_another_machine(problem: Problem, which: int) -> Problem:
    places = [(i, j) for i, region in enumerate(problem.fleet.regions) for j in range(len(region.machines))]
    at, of = places[which % len(places)]
    regions = list(problem.fleet.regions)
    machines = list(regions[at].machines)
    machines[of] = replace(machines[of], num_machines=machines[of].num_machines + 1)
    regions[at] = replace(regions[at], machines=tuple(machines))
    return replace(problem, fleet=replace(problem.fleet, regions=tuple(regions)))


@fewer
@given(numbers, st.integers(min_value=0, max_value=7))
def test_another_machine_never_hurts_many_tasks(number: int, which: int) -> None:
    problem, before = feasible(number, small.MANY_TASK_DEVICES)
    assert no_worse(best_s(with_another_machine(problem, which)), before)


@few
@given(numbers, st.floats(min_value=1.0, max_value=100.0))
def test_faster_links_never_hurt(number: int, factor: float) -> None:
    problem, before = feasible(number)
    links = tuple(replace(link, bytes_per_s=link.bytes_per_s * factor) for link in problem.fleet.links)
    assert no_worse(best_s(replace(problem, fleet=replace(problem.fleet, links=links))), before)


@few
@given(numbers, st.integers(min_value=1, max_value=4))
def test_a_larger_bound_of_staleness_never_hurts(number: int, more: int) -> None:
    problem, before = feasible(number)
    assume(problem.workload.eta > 0)
    assert no_worse(
        best_s(replace(problem, workload=replace(problem.workload, eta=problem.workload.eta + more))), before
    )


@few
@given(numbers, st.floats(min_value=0.01, max_value=100.0))
def test_a_world_that_runs_faster_has_the_same_plan_in_less_time(number: int, factor: float) -> None:
    problem, before = feasible(number)
    after = best_s(replace(problem, fleet=_faster(problem.fleet, factor)))
    assert after == pytest.approx(before / factor, rel=TOLERANCE)


@pytest.mark.parametrize("number", [0, 5, 7])
def test_steps_of_days_are_planned_as_others_are(number: int) -> None:
    problem = replace(small.problem(number, small.DEVICES), goal=Goal())
    usual = solved(problem)
    assert isinstance(usual, Found)
    slow = solved(replace(problem, fleet=_faster(problem.fleet, usual.best.evaluation.step_s / 200_000)))
    assert isinstance(slow, Found)
    assert slow.best.evaluation.step_s == pytest.approx(200_000, rel=TOLERANCE)


@few
@given(numbers, st.floats(min_value=0.01, max_value=100.0))
def test_another_currency_changes_the_price_alone(number: int, rate: float) -> None:
    problem, before = feasible(number)
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=2 * before)
    here, there = (
        solved(replace(problem, fleet=fleet, goal=goal)) for fleet in (problem.fleet, _in_currency(problem.fleet, rate))
    )
    assert type(here) is type(there)
    if isinstance(here, Found) and isinstance(there, Found):
        usd = here.best.evaluation.usd_per_hour
        assert there.best.evaluation.usd_per_hour == pytest.approx(usd * rate, rel=TOLERANCE)


@few
@given(numbers, st.randoms(use_true_random=False))
def test_the_order_of_regions_machines_and_links_changes_nothing(number: int, order: Random) -> None:
    problem, _ = feasible(number)
    fleet = problem.fleet
    regions = [replace(each, machines=_shuffled(each.machines, order)) for each in fleet.regions]
    mixed = replace(fleet, regions=_shuffled(tuple(regions), order), links=_shuffled(fleet.links, order))
    first, second = solved(problem), solved(replace(problem, fleet=mixed))
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert first.best.placement == second.best.placement
    assert first.best.evaluation == second.best.evaluation


@few
@given(numbers, st.sampled_from(["one", "two", "three"]))
def test_names_of_regions_change_nothing_but_names(number: int, prefix: str) -> None:
    problem, before = feasible(number)
    rules = problem.rules
    assume(not (rules.pins or rules.forbidden or rules.forbidden_regions or rules.generating))
    regions = tuple(replace(each, name=f"{prefix}-{each.name[::-1]}") for each in problem.fleet.regions)
    names = {old.name: new.name for old, new in zip(problem.fleet.regions, regions, strict=True)}
    links = tuple(
        replace(each, src_region=names[each.src_region], dst_region=names[each.dst_region])
        for each in problem.fleet.links
    )
    after = best_s(replace(problem, fleet=replace(problem.fleet, regions=regions, links=links)))
    assert after == pytest.approx(before, rel=TOLERANCE)


@few
@given(numbers)
def test_every_answer_is_a_placement_that_the_oracle_accepts_and_nobody_beats(number: int) -> None:
    holds(with_binding_goal(small.problem(number, small.DEVICES)))


@fewer
@given(numbers)
def test_every_answer_of_many_tasks_is_one_that_nobody_beats(number: int) -> None:
    holds(with_binding_goal(small.problem(number, small.MANY_TASK_DEVICES)))


def holds(problem: Problem) -> None:
    """The answer is the oracle's, and no placement that any method finds beats it or its bound."""
    outcome, known = solved(problem), known_parts(problem).parts()
    if isinstance(outcome, Infeasible):
        assert outcome.facts
        assert not known
        return
    assert isinstance(outcome, Found)
    best = outcome.best
    assert evaluate(CostTables(problem), best.placement) == best.evaluation
    assert best.bound is not None
    assert best.value(problem.goal) <= best.bound * (1 + 3 * GAP)
    for part, each in known:
        assert best.bound <= each.value * (1 + TOLERANCE), part


@fewer
@given(numbers)
def test_a_conflict_is_minimal(number: int) -> None:
    """Two rules that contradict each other, and nothing else: without either one there is a plan."""
    problem, _ = feasible(number)
    name = problem.fleet.regions[0].name
    pinned, closed = ((Task.ACTOR_TRAINING, frozenset({name})),), frozenset({name})
    alone = [Rules(pins=pinned), Rules(forbidden_regions=closed)]
    assume(all(best_s(replace(problem, rules=rules)) is not None for rules in alone))
    outcome = solved(replace(problem, rules=Rules(pins=pinned, forbidden_regions=closed)))
    assert isinstance(outcome, Infeasible)
    assert outcome.is_minimal
    assert {fact.kind for fact in outcome.facts} == {"rules"}
    assert sorted(fact.name for fact in outcome.facts) == [f"forbid:{name}", "pin:actor_training"]


@fewer
@given(numbers)
def test_a_deadline_that_cannot_be_met_is_part_of_the_conflict_and_lifting_it_is_enough(number: int) -> None:
    problem, before = feasible(number)
    hasty = Goal(max_step_s=before / 2)
    outcome = solved(replace(problem, goal=hasty))
    assert isinstance(outcome, Infeasible)
    assert "deadline" in {fact.name for fact in outcome.facts}


def _faster(fleet: Fleet, factor: float) -> Fleet:
    """All rates times, all latencies over the factor."""

    def gpu(of: GpuType) -> GpuType:
        fit = of.efficiency
        return replace(
            of,
            memory_bytes_per_s=of.memory_bytes_per_s * factor,
            matmul_flop_per_s=of.matmul_flop_per_s * factor,
            link_bytes_per_s=of.link_bytes_per_s * factor,
            efficiency=replace(
                fit,
                layer_overhead_s=fit.layer_overhead_s / factor,
                collective_latency_s=fit.collective_latency_s / factor,
                attention_overhead_s=fit.attention_overhead_s / factor,
            ),
        )

    def times(rate: float | None) -> float | None:
        return None if rate is None else rate * factor

    regions = tuple(
        replace(
            each,
            fabric_bytes_per_s=each.fabric_bytes_per_s * factor,
            fabric_latency_s=each.fabric_latency_s / factor,
            cross_fabric_bytes_per_s=times(each.cross_fabric_bytes_per_s),
            wan_up_bytes_per_s=times(each.wan_up_bytes_per_s),
            wan_down_bytes_per_s=times(each.wan_down_bytes_per_s),
            machines=tuple(replace(m, network_bytes_per_s=times(m.network_bytes_per_s)) for m in each.machines),
        )
        for each in fleet.regions
    )
    links = tuple(
        replace(each, rtt_s=each.rtt_s / factor, bytes_per_s=each.bytes_per_s * factor) for each in fleet.links
    )
    return Fleet(regions=regions, links=links, gpu_types={name: gpu(of) for name, of in fleet.gpu_types.items()})


def _in_currency(fleet: Fleet, rate: float) -> Fleet:
    regions = tuple(
        replace(
            region,
            machines=tuple(
                replace(each, usd_per_gpu_hour=None if each.usd_per_gpu_hour is None else each.usd_per_gpu_hour * rate)
                for each in region.machines
            ),
        )
        for region in fleet.regions
    )
    links = tuple(replace(each, usd_per_gbyte=each.usd_per_gbyte * rate) for each in fleet.links)
    return replace(fleet, regions=regions, links=links)


def _shuffled(items: tuple[T, ...], order: Random) -> tuple[T, ...]:
    mixed = list(items)
    order.shuffle(mixed)
    return tuple(mixed)
