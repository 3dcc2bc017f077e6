"""A proved bound is carried over to changed fleets, lowered in proportion to what can make placements better."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.planner_cases import small
from planner.answer.outcome import Found
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.version_overlap import overlaps_of
from planner.devices.catalogue import gpu_types
from planner.methods.exact.method import search
from planner.problem.fleet import Fleet
from planner.problem.goal import Goal, Problem
from planner.replan.certificate import carried
from planner.replan.stretch import stretch, tables
from tests.support.planner.replanning import problem

TOLERANCE = 1e-6


def best_s(case: Problem) -> float | None:
    outcome = search(CostTables(case), seed=0, budget_s=30.0, now_s=time.monotonic, gap=0.0)
    return outcome.best.evaluation.step_s if isinstance(outcome, Found) else None


def with_links(case: Problem, factor: Callable[[], float]) -> Problem:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * factor(), rtt_s=link.rtt_s / factor()) for link in case.fleet.links
    )
    return replace(case, fleet=replace(case.fleet, links=links))


def with_fewer(case: Problem, rng: np.random.Generator) -> Problem:
    """One machine less."""
    places = [(i, j) for i, region in enumerate(case.fleet.regions) for j in range(len(region.machines))]
    at, of = places[rng.integers(len(places))]
    regions = list(case.fleet.regions)
    machines = list(regions[at].machines)
    machines[of] = replace(machines[of], num_machines=machines[of].num_machines - 1)
    regions[at] = replace(regions[at], machines=tuple(each for each in machines if each.num_machines))
    return replace(case, fleet=replace(case.fleet, regions=tuple(regions)))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(min_value=0, max_value=199), st.integers(min_value=0, max_value=1 << 20))
def test_no_placement_of_the_changed_fleet_beats_what_is_left_of_the_bound(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = replace(small.problem(number, small.DEVICES), goal=Goal())
    assume(len(case.workload.tasks) < 4)
    before = best_s(case)
    assume(before is not None)
    changed = with_fewer(case, rng) if rng.random() < 0.5 else case
    changed = with_links(changed, lambda: float(np.exp(rng.uniform(-3, 1))))
    bound = carried(before, CostTables(case), CostTables(changed))
    after = best_s(changed)
    assume(bound is not None and after is not None)
    assert bound is not None
    assert after is not None
    assert bound <= after * (1 + TOLERANCE)


def test_fewer_machines_and_slower_links_leave_a_bound_as_it_is() -> None:
    was = CostTables(problem())
    assert carried(3.0, was, CostTables(problem(num_l40s=2, bytes_per_s=1e6))) == 3.0


def test_twice_as_fast_a_link_leaves_half_of_it() -> None:
    was = CostTables(problem())
    assert carried(3.0, was, CostTables(problem(bytes_per_s=4e9))) == pytest.approx(1.5)


def test_more_machines_leave_nothing() -> None:
    assert carried(3.0, CostTables(problem()), CostTables(problem(num_l40s=5))) is None


def test_another_workload_leaves_nothing() -> None:
    was, now = problem(), problem()
    now = replace(now, workload=replace(now.workload, eta=2))
    assert carried(3.0, CostTables(was), CostTables(now)) is None


def test_a_way_that_was_not_there_leaves_nothing() -> None:
    case = problem()
    cut = replace(case, fleet=replace(case.fleet, links=case.fleet.links[:1]))
    assert carried(3.0, CostTables(cut), CostTables(case)) is None
    assert carried(3.0, CostTables(case), CostTables(cut)) == 3.0


@pytest.mark.parametrize(("eta", "most"), [(1, 1.1), (3, 1.3)])
def test_what_is_made_on_a_coarser_grid_is_made_on_the_finer_one_within_the_factor(eta: int, most: float) -> None:
    case = problem(eta=eta)
    fewer = Fleet(regions=case.fleet.regions[:1], links=(), gpu_types=gpu_types())
    was, now = CostTables(case), CostTables(replace(case, fleet=fewer))
    factor = stretch(was, now)
    assert 1.0 < factor < most
    (at,) = now.classes.values()
    seconds = np.geomspace(now.phase_seconds[0], now.phase_seconds[-1], 5000)
    for (old, overlap), (new, _) in zip(tables(was, at), tables(now, at), strict=True):
        of = overlaps_of([overlap])
        for span_s in (0.0, *np.geomspace(seconds[0], seconds[-1], 9)):
            was_s, now_s = (of.knots_s(cost_tables.phase_seconds, span_s)[0] for cost_tables in (was, now))
            for of_old, of_new in zip(old, new, strict=True):
                made = np.interp(seconds, now_s, of_new)
                assert (np.interp(seconds * factor * (1 + 1e-9), was_s, of_old) >= made * (1 - 1e-9)).all()


def test_regions_that_are_renamed_leave_nothing() -> None:
    case = problem()
    fleet = replace(case.fleet, regions=(replace(case.fleet.regions[0], name="north"),), links=())
    assert carried(3.0, CostTables(case), CostTables(replace(case, fleet=fleet))) is None
