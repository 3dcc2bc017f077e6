"""Entry points of the planner: `plan` for any problem, `plan_job` for a job that this runtime is to execute.

Both are functions of their arguments. The same problem with the same seed gets the same plan, in any order of regions
and links, as long as no search (openings included) runs out of time. The clock is passed in. What the runtime cannot
execute is rejected here, before any method sees it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from planner.answer import outcome
from planner.answer.outcome import Fact, Incumbent
from planner.cost.tables.cost_tables import CostTables
from planner.files.capabilities import Capabilities
from planner.jobs import hosts
from planner.jobs.job_workload import workload_of_job
from planner.jobs.needs import Needs, needs_of
from planner.jobs.polish import needs_s, polished
from planner.jobs.refusals import refusal
from planner.jobs.static import METHOD as STATIC
from planner.jobs.static import plan_static
from planner.methods.obstacles import obstacle
from planner.methods.trim import trimmed
from planner.plan import NoPlanExists, Outcome, PlanningTimedOut
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet
from planner.problem.goal import Problem
from planner.problem.margins import with_margin
from planner.propose import plan_of

AUTO = "auto"
"""Name of the default method."""

_EXTRAS = {"deap": "bench", "ortools": "planner", "pymetis": "metis"}
"""Optional dependency group of this package that installs a module, by the module's name."""

Method = Callable[..., outcome.Outcome]
"""Search with the interface of `planner.methods.portfolio.METHODS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Time budget, seed and callbacks of a search. `now_s` is a monotonic clock."""

    budget_s: float
    now_s: Callable[[], float]
    seed: int = 0
    report: Callable[[Incumbent], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False


def plan(problem: Problem, thinking: Thinking, method: str = AUTO) -> Outcome:
    """Return the best plan in the plan space that keeps its limits with a margin. Raises: ValueError for an unknown
    method."""
    cost_tables = CostTables(with_margin(problem))
    if found := obstacle(cost_tables):
        return _infeasible(found)
    return _as_plan(cost_tables, searched(cost_tables, thinking, method), method, thinking.seed)


def searched(cost_tables: CostTables, thinking: Thinking, method: str) -> outcome.Outcome:
    """Return the outcome of a method.

    Raises: ValueError for an unknown method, ConfigError for one whose optional dependency is missing.
    """
    try:
        return method_of(method)(
            cost_tables,
            seed=thinking.seed,
            budget_s=thinking.budget_s,
            now_s=thinking.now_s,
            report=thinking.report,
            should_stop=thinking.should_stop,
        )
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package, "")
        if not extra:
            raise
        raise ConfigError(
            f"the method {method} needs {package}, which is not installed here; pip install 'periplus[{extra}]'"
        ) from error


def method_of(name: str) -> Method:
    """Return the method of that name. Raises: ValueError."""
    from planner.methods.portfolio import METHODS  # the solver takes a second to load

    if name not in METHODS:
        raise ValueError(f"{name!r} is not a method; choose one of {', '.join(METHODS)}")
    method: Method = METHODS[name]
    return method


def plan_job(
    fleet: Fleet,
    job: JobFile,
    *,
    architecture: Architecture | None,
    model_bytes: int | None,
    capabilities: Capabilities,
    thinking: Thinking,
    method: str = "",
) -> Outcome:
    """Return the best plan that the runtime can execute on a fleet of hosts.

    `method` overrides the job's `plan.method`. `architecture` is that of the job's model; None if it is not visible,
    and then only the static layout is possible.
    """
    needs = needs_of(job, model_bytes)
    if conflict := refusal(fleet, needs, capabilities):
        return NoPlanExists(conflict=conflict)
    method = method or job.plan.method
    if architecture is None or method == STATIC:
        return plan_static(fleet, needs)
    workload = workload_of_job(job, architecture)
    questions = list(hosts.problems(fleet, needs, workload, capabilities.limits))
    return _best_home(fleet, needs, questions, method, thinking)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Best placement with the trainer in one region. `bound` is None if nothing is proved."""

    cost_tables: CostTables
    best: Incumbent
    bound: float | None


def _best_home(
    fleet: Fleet, needs: Needs, questions: Sequence[tuple[str, Problem]], method: str, thinking: Thinking
) -> Outcome:
    """Return the best of one plan per region that may train.

    Plans are ranked by step, then by the number of regions that help, then by the sum of the steps that these regions
    need (short paths first), then by cores of the trainer's region, then by its name.
    """
    cores = {region.name: region.num_cores for region in fleet.regions}
    answers: list[tuple[tuple[float, int, float, int, str], _Answer]] = []
    conflicts: list[outcome.Infeasible] = []
    complete, end_s = True, thinking.now_s() + thinking.budget_s
    for i, (home, problem) in enumerate(questions):
        cost_tables = CostTables(problem)
        # Each problem gets an equal share of the time that is left.
        share_s = max(0.0, end_s - thinking.now_s()) / (len(questions) - i)
        found = searched(cost_tables, replace(thinking, budget_s=share_s), method)
        match found:
            case outcome.Infeasible():
                conflicts.append(found)
                continue
            case outcome.BudgetExhausted(best=None):
                complete = False
                continue
            case outcome.BudgetExhausted(best=Incumbent() as best):
                complete = False
            case outcome.Found(best=best):
                pass
            case _:
                raise AssertionError(f"a search answered {found}")
        best = polished(cost_tables, best, needs.workers_per_region)
        step_s, of_regions = float(f"{best.evaluation.step_s:.6g}"), needs_s(cost_tables, best.placement)
        helping = [need_s for need_s in of_regions.values() if need_s <= step_s * (1 + 1e-6)]
        rank = (step_s, -len(helping), sum(helping), -cores[home], home)
        answers.append((rank, _Answer(cost_tables, best, found.best.bound if found.best else None)))
    if not answers:
        if complete and conflicts:
            return _infeasible(min(conflicts, key=lambda each: len(each.conflict)))
        return PlanningTimedOut(incumbent=None, bound=None)
    chosen = min(answers, key=lambda pair: pair[0])[1]
    # The least bound holds over all regions, if each problem was searched to its end.
    bounds = [answer.bound for _, answer in answers]
    bound = None if None in bounds or not complete else min(b for b in bounds if b is not None)
    made = plan_of(chosen.cost_tables, replace(chosen.best, bound=bound), method=method, seed=thinking.seed)
    return made if complete else PlanningTimedOut(incumbent=made, bound=bound)


def _as_plan(cost_tables: CostTables, found: outcome.Outcome, method: str, seed: int) -> Outcome:
    match found:
        case outcome.Found():
            return plan_of(cost_tables, trimmed(cost_tables, found.best), method=found.method or method, seed=seed)
        case outcome.BudgetExhausted(best=None):
            return PlanningTimedOut(incumbent=None, bound=found.bound)
        case outcome.BudgetExhausted(best=Incumbent() as best):
            made = plan_of(cost_tables, trimmed(cost_tables, best), method=found.method or method, seed=seed)
            return PlanningTimedOut(incumbent=made, bound=found.bound)
        case outcome.Infeasible():
            return _infeasible(found)
        case _:
            raise AssertionError(f"a search answered {found}")


def _infeasible(found: outcome.Infeasible) -> NoPlanExists:
    return NoPlanExists(
        conflict=sentence(found.conflict), facts=found.conflict, is_minimal=found.is_minimal, is_cut=found.is_cut
    )


def sentence(facts: Sequence[Fact]) -> str:
    """Return a conflict as one sentence."""
    return "; and ".join(fact.what.rstrip(".") for fact in facts) or "no placement was found"
