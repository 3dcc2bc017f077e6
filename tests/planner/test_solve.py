"""Jobs planned on fleets of hosts, with the exact method unless a test names another."""

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from periplus.job.job_file import JobFile
from planner import solve
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Infeasible, Outcome
from planner.answer.placement import Group, Layout, Placement, Pool
from planner.cost.oracle import evaluate
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture
from planner.files.capabilities import load_capabilities
from planner.jobs.hosts import problems
from planner.jobs.job_workload import workload_of_job
from planner.jobs.needs import needs_of
from planner.plan import Plan, PlanOutcome, TaskKind
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet
from planner.problem.workload import Task
from planner.solve import Thinking, plan, plan_job
from tests.support.planner.gpu_plan import PROBLEM
from tests.support.planner.hosts import host, mesh, rollout_regions, tiny_job, without_link

TINY = architecture("builtin:qwen3-tiny")


class Clock:
    """A second passes at each look: budgets end after so many looks, whatever the machine does."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


def ask(fleet: Fleet, job: JobFile, shape_of: Architecture | None = TINY, method: str = "exact") -> PlanOutcome:
    thinking = Thinking(budget_s=1e6, now_s=Clock())
    return plan_job(
        fleet,
        job,
        architecture=shape_of,
        model_bytes=None,
        capabilities=load_capabilities(),
        thinking=thinking,
        method=method,
    )


def planned(fleet: Fleet, job: JobFile, **options: object) -> Plan:
    made = ask(fleet, job, **options)  # type: ignore[arg-type]
    assert isinstance(made, Found), made
    return made.best


ABC = mesh([host("a"), host("b"), host("c")])


def test_a_tiny_job_trains_in_one_region_and_rolls_out_in_as_many_as_were_asked_for() -> None:
    made = planned(ABC, tiny_job(regions={"min": 3}))
    assert [a.task for a in made.assignments] == [TaskKind.TRAINER, *[TaskKind.ROLLOUT] * 3]
    assert rollout_regions(made) == ("a", "b", "c")
    assert made.evaluation is not None
    assert made.bound is not None
    assert made.bound <= made.evaluation.step_s * (1 + 1e-6)
    assert made.method == "exact"


def test_pins_are_kept() -> None:
    job = tiny_job(regions={"trainer": "b", "rollout": ["c"]}, plan={"workers_per_region": 3})
    made = planned(ABC, job)
    assert [(a.task, a.region, a.num_workers) for a in made.assignments] == [
        (TaskKind.TRAINER, "b", 1),
        (TaskKind.ROLLOUT, "c", 3),
    ]


def test_the_trainer_avoids_a_region_with_slow_links() -> None:
    far = mesh([host("a"), host("b"), host("c")])
    links = tuple(replace(k, rtt_s=2.0) if "a" in (k.src_region, k.dst_region) else k for k in far.links)
    made = planned(replace(far, links=links), tiny_job(regions={"min": 3}))
    assert made.trainer_region == "b"


def test_more_cores_decide_between_equals() -> None:
    assert planned(mesh([host("a"), host("b", num_cores=4)]), tiny_job(regions={"min": 2})).trainer_region == "b"


def test_a_missing_link_moves_the_trainer() -> None:
    assert planned(without_link(ABC, "a", "c"), tiny_job(regions={"min": 3})).trainer_region == "b"


def test_an_unmeasured_link_that_is_needed_is_named() -> None:
    job = tiny_job(regions={"trainer": "a", "rollout": ["a", "c"]})
    made = ask(without_link(ABC, "c", "a"), job)
    assert isinstance(made, Infeasible)
    assert made.conflict == "no link was measured from c to a"


def test_a_model_that_cannot_be_seen_is_placed_by_links_and_memory_alone() -> None:
    made = planned(ABC, tiny_job(model={"path": "/models/absent"}), shape_of=None)
    assert made.method == "static"
    assert made.evaluation is None
    assert planned(ABC, tiny_job(), method="static").method == "static"


def test_time_that_runs_out_leaves_what_was_found_or_nothing() -> None:
    def late(cost_tables: CostTables, **_: object) -> Outcome:
        return BudgetExhausted(best=None, bound=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "method_of", lambda name: late)
        assert ask(ABC, tiny_job()) == BudgetExhausted(best=None, bound=None)
        assert plan(PROBLEM, Thinking(budget_s=1, now_s=Clock())) == BudgetExhausted(best=None, bound=None)


def test_an_unknown_method_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="'magic' is not a planning method; choose one of "):
        plan(PROBLEM, Thinking(budget_s=1, now_s=Clock()), "magic")


# ---- properties ------------------------------------------------------------------------------------------------------

NAMES = "abc"


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3))
    hosts = [host(n, draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 8]))) for n in names]
    fleet = mesh(hosts)
    links = tuple(
        replace(link, rtt_s=draw(st.sampled_from([0.0, 0.1, 3.0])), bytes_per_s=draw(st.sampled_from([1e5, 1e7])))
        for link in fleet.links
        if draw(st.integers(0, 9))
    )
    return replace(fleet, links=links)


JOBS = st.builds(
    lambda eta, trainer, rollout, least, workers: tiny_job(
        staleness=eta,
        regions={"trainer": trainer, "rollout": rollout, "min": least},
        plan={"workers_per_region": workers},
    ),
    st.integers(0, 2),
    st.none() | st.sampled_from(NAMES),
    st.none() | st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=2),
    st.just(1),
    st.integers(1, 2),
)
QUICKLY = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@QUICKLY
@given(fleets(), JOBS, st.randoms(use_true_random=False))
def test_a_jobs_plan_keeps_every_rule_in_any_order_of_the_fleet(fleet: Fleet, job: JobFile, shuffler: Random) -> None:
    made = ask(fleet, job)
    assert not isinstance(made, BudgetExhausted)
    regions, links = list(fleet.regions), list(fleet.links)
    shuffler.shuffle(regions)
    shuffler.shuffle(links)
    again = ask(Fleet(regions=tuple(regions), links=tuple(links), gpu_types={}), job)
    if isinstance(made, Infeasible):
        assert made.conflict
        assert isinstance(again, Infeasible)
        return
    assert isinstance(again, Found)
    plan = made.best
    assert replace(again.best, question=None) == replace(plan, question=None)
    needs = needs_of(job)
    assert needs.may_train(plan.trainer_region)
    assert set(job.regions.rollout or rollout_regions(plan)) == set(rollout_regions(plan))
    for name in plan.regions:
        region = fleet.region(name)
        assert region is not None
        workers = sum(a.num_workers for a in plan.assignments if a.region == name and a.task is TaskKind.ROLLOUT)
        assert workers in (0, needs.least_workers)
        assert needs.has_room(region, trains=name == plan.trainer_region, rolls_out=bool(workers))


def best_by_enumeration(fleet: Fleet, job: JobFile) -> float | None:
    """Over every trainer region, set of regions with all their workers, and batch."""
    best = None
    workload = workload_of_job(job, TINY)
    for _, problem in problems(fleet, needs_of(job), workload, load_capabilities().limits):
        cost_tables = CostTables(problem)
        for placement in _placements(cost_tables, needs_of(job).least_workers):
            estimate = evaluate(cost_tables, placement)
            if isinstance(estimate, Evaluation):
                best = estimate.step_s if best is None else min(best, estimate.step_s)
    return best


def _placements(cost_tables: CostTables, workers: int) -> list[Placement]:
    keys = sorted(cost_tables.classes)
    tasks = tuple(task for task in cost_tables.problem.workload.tasks if task is not Task.GENERATION)
    found = []
    for recompute, micro_batch in itertools.product((False, True), validity.MICRO_BATCH):
        layout = Layout(tensor=1, recompute=recompute, micro_batch=micro_batch)
        for home in keys:
            train = Pool(device_class=home, unit_gpus=1, num_units=1, layouts=tuple((task, layout) for task in tasks))
            for size in range(1, len(keys) + 1):
                for used in itertools.combinations(keys, size):
                    for batch in validity.BATCH if cost_tables.problem.workload.eta else (0,):
                        made = ((Task.GENERATION, Layout(tensor=1, batch=batch)),)
                        pools = tuple(
                            Pool(device_class=key, unit_gpus=1, num_units=workers, layouts=made) for key in used
                        )
                        groups = (Group(tasks=(Task.GENERATION,), pools=pools), Group(tasks=tasks, pools=(train,)))
                        found.append(Placement(groups=groups))
    return found


@settings(QUICKLY, max_examples=8)
@given(fleets(), JOBS)
def test_no_enumerated_placement_is_better(fleet: Fleet, job: JobFile) -> None:
    made, best = ask(fleet, job), best_by_enumeration(fleet, job)
    if isinstance(made, Found):
        assert made.best.evaluation is not None
        assert best is not None
        assert made.best.evaluation.step_s <= best * (1 + 1e-6)
        assert made.best.bound is None or made.best.bound <= best * (1 + 1e-6)
    else:
        assert best is None
