"""Entry points of the planner: `plan` for any problem, `plan_job` for a job that this runtime is to execute.

Both return a `PlanOutcome`: a plan, a proof that there is none, or the best plan when the time budget ended. They read
nothing but their arguments; the clock is one of these. The same problem with the same seed gets the same plan, whatever
the order of regions and links, as long as no search (openings included) runs out of time.

`plan` gives the problem to one method of `planner.methods.portfolio`. `plan_job` first rejects what the runtime cannot
execute, so no method sees it. It then searches one problem for each region that may host the trainer, and returns the
best of the resulting plans.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.values.machine import DeviceCount
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome, RefutedBound
from planner.cost.tables.cost_tables import CostTables
from planner.files.capabilities import Capabilities
from planner.files.workload_file import FULL_COPY_BYTES
from planner.jobs import hosts
from planner.jobs.host_memory import within_memory
from planner.jobs.job_workload import UNMEASURED_WEIGHTS, workload_of_job
from planner.jobs.needs import Needs, needs_of
from planner.jobs.processes import checked_plan, executable
from planner.jobs.refusals import refusal
from planner.jobs.shared_hosts import slowdowns, slowed
from planner.jobs.spare_workers import needs_s, polished
from planner.jobs.static_layout import METHOD as STATIC
from planner.jobs.static_layout import plan_static
from planner.methods.idle_pools import trimmed
from planner.methods.obstacles import obstacle
from planner.plan import Plan, PlanOutcome
from planner.plan_of_placement import plan_of
from planner.problem.architecture import Architecture
from planner.problem.fleet import Fleet
from planner.problem.goal import Problem
from planner.problem.margins import with_margin
from planner.problem.workload import Task, WeightTransfer

AUTO = "auto"
"""Name of the default method, a portfolio of the exact method and heuristics."""

_EXTRAS = {"ortools": "planner", "pymetis": "metis"}
"""Optional dependency group of this package that installs a module; the key is the module's import name."""

Method = Callable[..., Outcome]
"""A search function with the interface of `planner.methods.portfolio.Method`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Time budget, clock, seed and callbacks of one search."""

    budget_s: float
    """Seconds after which the search ends with the best placement found by then."""
    now_s: Callable[[], float]
    """Monotonic clock in seconds."""
    seed: int = 0
    """Seed of every random choice of the search."""
    report: Callable[[Incumbent], None] = lambda _: None
    """Function that receives each better incumbent."""
    should_stop: Callable[[], bool] = lambda: False
    """Function that the search polls; it ends early once this returns True."""


def plan(problem: Problem, thinking: Thinking, method: str = AUTO) -> PlanOutcome:
    """Return the best plan of the plan space whose predictions keep the goal's limits with a margin.

    The margins of `planner.problem.margins` are added if the problem lacks them. Raises: ValueError for an unknown
    method, ConfigError for one whose optional dependency is missing.
    """
    cost_tables = CostTables(with_margin(problem))
    # Problems that cannot have a placement for a simple reason are refused without a search.
    if found := obstacle(cost_tables):
        return found
    return _as_plan(cost_tables, searched(cost_tables, thinking, method), method, thinking.seed)


def searched(cost_tables: CostTables, thinking: Thinking, method: str) -> Outcome:
    """Return the outcome of one method's search.

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
        # Methods import their optional libraries when they are called. Any other missing module is a bug.
        package = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(package, "")
        if not extra:
            raise
        raise ConfigError(
            f"the method {method} needs {package}, which is not installed here; pip install 'periplus[{extra}]'"
        ) from error


def method_of(name: str) -> Method:
    """Return the method of that name. Raises: ValueError if there is none."""
    from planner.methods.portfolio import METHODS  # the solver takes a second to load

    if name not in METHODS:
        raise ValueError(f"{name!r} is not a planning method; choose one of {', '.join(METHODS)}")
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
    devices: Mapping[str, DeviceCount] | None = None,
    method: str = "",
    by_hand: Plan | None = None,
    delta_bytes_per_param: float | None = None,
) -> PlanOutcome:
    """Return the best plan that the runtime can execute on a fleet of hosts.

    `architecture` is that of the job's model. It is None if the model's configuration is not visible here; then only
    the static layout is possible. `model_bytes` is the size of one uncompressed version, or None if it is unknown.
    `devices` has the free devices of each region; without them they are no limit.
    `method` overrides the job's `plan.method`. `by_hand` is a plan that is checked in place of a search.
    `delta_bytes_per_param` are those of a version as they were measured; without them a full copy counts.

    Raises: ValueError and ConfigError as `searched` and `paces.with_pace` do.
    """
    needs = needs_of(job, model_bytes, devices)
    weights = UNMEASURED_WEIGHTS
    if delta_bytes_per_param is not None:
        weights = WeightTransfer(bytes_per_param=min(FULL_COPY_BYTES, delta_bytes_per_param), is_delta=True)
    workload = None if architecture is None else workload_of_job(job, architecture, weights=weights)
    if by_hand is not None:
        return checked_plan(by_hand, fleet, needs, workload, capabilities)
    # Refused before any search, so that the reason is the same for every method.
    if refused := refusal(fleet, needs, capabilities):
        return refused
    method = method or job.plan.method
    # Without the model's configuration nothing can be predicted, and only the static layout needs no prediction.
    if workload is None or method == STATIC:
        return Found(best=executable(plan_static(fleet, needs), fleet, needs, workload))
    limits = capabilities.limits_of(needs.engine, workload.models[Task.GENERATION])
    end_s = thinking.now_s() + thinking.budget_s

    def best(fleet: Fleet) -> tuple[PlanOutcome, "_Answer | None"]:
        left = replace(thinking, budget_s=max(0.0, end_s - thinking.now_s()))
        questions = list(hosts.problems(fleet, needs, workload, limits))
        return _best_over_trainer_regions(fleet, needs, questions, method, left)

    outcome, answer = best(fleet)
    if answer is None or isinstance(outcome, Infeasible) or (plan := outcome.best) is None:
        return outcome
    # Regions on one machine share its cores: how much longer all takes for that is known once there is a plan.
    if longer := slowdowns(fleet, answer.cost_tables, answer.best, plan):
        again, found = best(slowed(fleet, longer, training=workload.eta > 0))
        # A plan whose figures are too good is better than none, if the time is up.
        outcome = outcome if found is None else again
    return outcome


@dataclass(frozen=True, slots=True)
class _Answer:
    """Best placement for one region of the trainer, with the cost tables of the problem in which it trains there.

    `bound` is the lower bound that the search proved for this problem. It is None if nothing is proved.
    """

    cost_tables: CostTables
    best: Incumbent
    bound: float | None


def _best_over_trainer_regions(
    fleet: Fleet, needs: Needs, questions: Sequence[tuple[str, Problem]], method: str, thinking: Thinking
) -> "tuple[PlanOutcome, _Answer | None]":
    """Return the best plan over all regions that may host the trainer, and what it is made of.

    `questions` has (region, problem) pairs.

    Plans are ranked by six keys: least value of what the goal minimises, least seconds per step, most regions that
    generate without lengthening the step, least sum of the steps that these regions need (short paths first), most
    cores in the trainer's region, name of the trainer's region.
    """
    # Cores are known per region of hosts; they decide between answers of equal speed.
    cores = {region.name: region.num_cores for region in fleet.regions}
    answers: list[tuple[tuple[float, float, int, float, int, str], _Answer]] = []
    conflicts: list[Infeasible] = []
    complete, end_s = True, thinking.now_s() + thinking.budget_s
    refuted: RefutedBound | None = None
    for i, (trainer_name, problem) in enumerate(questions):
        cost_tables = CostTables(problem)
        # Each problem gets an equal share of the time that is left.
        share_s = max(0.0, end_s - thinking.now_s()) / (len(questions) - i)
        found = searched(cost_tables, replace(thinking, budget_s=share_s), method)
        match found:
            case Infeasible():
                conflicts.append(found)
                continue
            case BudgetExhausted(best=None):
                complete = False
                continue
            case BudgetExhausted(best=Incumbent() as best):
                complete, refuted = False, refuted or found.refuted
            case Found(best=best):
                pass
            case _:
                raise AssertionError(f"a search returned {found}")
        # Add workers on cores that do not lengthen the step, unless dollars count, and give back accelerators that do
        # not shorten it, or whose workers find no memory; then rank by values rounded to six digits.
        best = trimmed(cost_tables, best if needs.goal.counts_usd else polished(cost_tables, best, needs))
        best = within_memory(cost_tables, best, fleet, needs)
        value, step_s = (float(f"{each:.6g}") for each in (best.value(needs.goal), best.evaluation.step_s))
        of_regions = needs_s(cost_tables, best.placement)
        # Regions whose own path ends within the step: they help without lengthening it. The tolerance covers the
        # rounding of `step_s`.
        helping = [need_s for need_s in of_regions.values() if need_s <= step_s * (1 + 1e-6)]
        rank = (value, step_s, -len(helping), sum(helping), -cores[trainer_name], trainer_name)
        # The bound is that of the search, since `polished` only replaces the placement.
        answers.append((rank, _Answer(cost_tables, best, found.best.bound if found.best else None)))
    if not answers:
        if complete and conflicts:
            # Every region was proved impossible: the smallest conflict is the easiest to understand. One unfinished
            # search leaves the question open.
            return min(conflicts, key=lambda each: len(each.facts)), None
        return BudgetExhausted(best=None, bound=None), None
    chosen = min(answers, key=lambda pair: pair[0])[1]
    # The least of the bounds holds for every region of the trainer, but only if each problem was searched to its end.
    bounds = [answer.bound for _, answer in answers]
    bound = None if None in bounds or not complete else min(b for b in bounds if b is not None)
    made = plan_of(chosen.cost_tables, replace(chosen.best, bound=bound), method=method, seed=thinking.seed)
    made = executable(made, fleet, needs, chosen.cost_tables.problem.workload)
    made = replace(made, figures=tuple(_figures(chosen)))
    outcome = Found(best=made) if complete else BudgetExhausted(best=made, bound=bound, refuted=refuted)
    return outcome, chosen


def _figures(answer: _Answer) -> Iterator[str]:
    """Yield for each kind of device of an answer which measurement its efficiencies are from."""
    groups = answer.best.placement.groups
    used = {answer.cost_tables.classes[pool.device_class] for group in groups for pool in group.pools}
    found: dict[tuple[str, str], list[str]] = {}
    for at in sorted(used, key=lambda at: at.key):
        names = found.setdefault(("cores" if at.gpu.is_cpu else at.gpu.name, at.gpu.source), [])
        names.append(at.region.name)
    for (device, source), names in found.items():
        yield f"{device} of {', '.join(dict.fromkeys(names))}: {source or 'packaged figures, measured on no machine'}"


def _as_plan(cost_tables: CostTables, found: Outcome, method: str, seed: int) -> PlanOutcome:
    """Return a search's outcome with a plan in place of its best placement."""

    def made(best: Incumbent) -> Plan:
        # Units that do not shorten the step are given back first.
        return plan_of(cost_tables, trimmed(cost_tables, best), method=found.method or method, seed=seed)

    match found:
        case Found(best=best):
            return Found(best=made(best))
        case BudgetExhausted(best=best, bound=bound, refuted=refuted):
            return BudgetExhausted(best=None if best is None else made(best), bound=bound, refuted=refuted)
        case Infeasible():
            return found
