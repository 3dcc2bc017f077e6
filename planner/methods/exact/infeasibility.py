"""Conflict analysis: the smallest set of named facts that together make a problem infeasible.

A fact is something that an operator can change: a class's inventory, a task's memory, a pin, a limit. Leaving one out
gives a problem that is easier in this respect only. A set is minimal if leaving out any one of its facts makes the
problem feasible. QuickXplain (Junker 2004) leaves facts out by halves, so a conflict of k of n facts takes about k
log(n / k) feasibility searches, none of which looks for a good placement.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from periplus.view import units
from planner.answer.outcome import Fact, Incumbent, Infeasible
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.network import Network
from planner.cost.tasks.layer_cuts import TENSOR
from planner.methods.evaluation_budget import ignore
from planner.methods.exact.search import Search
from planner.methods.exact.settings import DEFAULT_SETTINGS
from planner.methods.obstacles import unpriced
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Link, Machines
from planner.problem.goal import STUDY, Goal, Objective, Problem
from planner.problem.workload import Task

_MANY_MACHINES = 16
"""Machines that are added to a class whose inventory is left out."""
_FREE_BYTES_PER_S = 1e15
"""Rate of every link if links are left out; fast enough never to bind."""
_HOPELESS = f"no placement runs this job, even without rules and with {_MANY_MACHINES} machines more of each class"
"""Message if the problem is infeasible even without all facts."""
_SECONDS, _DOLLARS = "s a step", "dollars an hour"
"""Units of a deadline and of a budget in messages."""
_UNLIMITED = {
    "deadline": ("max_step_s", Objective.THROUGHPUT_UNDER_BUDGET, _SECONDS),
    "budget": ("max_usd_per_hour", Objective.COST_AT_THROUGHPUT, _DOLLARS),
}
"""For each kind of limit: field of the goal, objective that is minimised without it where prices count, and unit."""
_MOST_LINKS = 3
"""Missing links that are named one by one; more are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relaxed:
    """A problem with some facts left out."""

    problem: Problem
    without_memory_of: frozenset[Task] = frozenset()
    """Tasks whose memory does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removable:
    """A fact and the function that leaves it out."""

    fact: Fact
    without: Callable[[_Relaxed], _Relaxed]


def conflict(problem: Problem, now_s: Callable[[], float], should_stop: Callable[[], bool]) -> Infeasible:
    """Return a smallest conflict of a problem without placement.

    It is not known to be minimal if `should_stop` ended the analysis or a search was undecided.
    """
    every = list(_facts(problem))
    oracle = _Oracle(problem, every, now_s, should_stop)
    # Infeasible without any fact: nothing that an operator could change helps.
    if not oracle.is_feasible([]):
        facts = (Fact(kind="shape", name="job", what=_HOPELESS),)
        return Infeasible(facts=facts, method="exact")
    least = _quickxplain(oracle, [], every, False)
    is_minimal, is_cut = not (oracle.is_cut or oracle.is_undecided), oracle.is_cut
    found = tuple(_compared(problem, each.fact, now_s, should_stop) for each in reversed(least))
    return Infeasible(facts=found, is_minimal=is_minimal, is_cut=is_cut, method="exact")


def _compared(problem: Problem, fact: Fact, now_s: Callable[[], float], should_stop: Callable[[], bool]) -> Fact:
    """Return a limit's fact with the best value that a search finds without it, to show how far away it is."""
    if fact.kind not in _UNLIMITED or should_stop():
        return fact
    field, objective, unit = _UNLIMITED[fact.kind]
    # What is minimised becomes the quantity that the limit was on.
    goal = replace(problem.goal, **{field: None})  # type: ignore[arg-type]
    if goal.needs_prices:
        goal = replace(goal, objective=objective)
    found = Search(
        cost_tables=CostTables(replace(problem, goal=goal)),
        gap=DEFAULT_SETTINGS.comparison_gap,
        budget_s=DEFAULT_SETTINGS.feasibility_s,
        now_s=now_s,
        report=ignore,
        should_stop=should_stop,
    ).run()
    if isinstance(found, Infeasible) or found.best is None:
        return fact
    value = found.best.value(goal)
    best = f"{value:,.2f}" if unit == _DOLLARS else units.short(value)
    among = " with devices that have a price" if any(unpriced(problem)) else ""
    return replace(fact, what=f"{fact.what} (without this limit, the best found{among} is {best} {unit})")


def is_feasible(cost_tables: CostTables, now_s: Callable[[], float], should_stop: Callable[[], bool]) -> bool | None:
    """Return whether there is any placement; None if `ExactSettings.feasibility_s` seconds did not decide it."""
    found: list[Incumbent] = []
    # A gap of 1 is proved at once, and the first incumbent stops the search: any placement answers the question.
    outcome = Search(
        cost_tables=cost_tables,
        gap=1.0,
        budget_s=DEFAULT_SETTINGS.feasibility_s,
        now_s=now_s,
        report=found.append,
        should_stop=lambda: bool(found) or should_stop(),
    ).run()
    if isinstance(outcome, Infeasible):
        return False
    return True if found or outcome.best is not None else None


class _Oracle:
    """Feasibility of the problem with only some of its facts; undecided counts as feasible."""

    def __init__(
        self,
        problem: Problem,
        every: Sequence[_Removable],
        now_s: Callable[[], float],
        should_stop: Callable[[], bool],
    ) -> None:
        self._problem = problem
        self._every = every
        self._now_s = now_s
        self._should_stop = should_stop
        self._known: dict[frozenset[int], bool] = {}
        """Results by the indices of the kept facts. Names cannot be keys: two pins of one task have the same name."""
        self.is_cut = False
        """Whether time ended before every question was asked."""
        self.is_undecided = False
        """Whether a search for some placement found none and did not prove that there is none."""

    def is_feasible(self, kept: Sequence[_Removable]) -> bool:
        """Return whether there is a placement if only these facts hold."""
        # By identity, since equal facts may appear twice.
        places = frozenset(i for i, each in enumerate(self._every) if any(each is one for one in kept))
        if places not in self._known:
            # Out of time: `True` keeps the fact that is being left out, so the conflict may be larger than needed but
            # is not wrong.
            if self._should_stop():
                self.is_cut = True
                return True
            relaxed = _Relaxed(problem=self._problem)
            for i, each in enumerate(self._every):
                if i not in places:
                    relaxed = each.without(relaxed)
            cost_tables = CostTables(relaxed.problem, relaxed.without_memory_of)
            # Undecided counts as feasible, for the same reason.
            decided = is_feasible(cost_tables, self._now_s, self._should_stop)
            self.is_cut = self.is_cut or (decided is None and self._should_stop())
            self.is_undecided = self.is_undecided or decided is None
            self._known[places] = decided is not False
        return self._known[places]


def _quickxplain(oracle: _Oracle, base: list[_Removable], facts: list[_Removable], is_new: bool) -> list[_Removable]:
    """Return the smallest part of `facts` that conflicts with `base`.

    `is_new` says that base has grown since the last test.
    """
    # The base alone conflicts, so none of these facts is needed.
    if is_new and not oracle.is_feasible(base):
        return []
    if len(facts) <= 1:
        return facts
    half = len(facts) // 2
    first, second = facts[:half], facts[half:]
    # What the second half must contribute if all of the first holds, then what the first must contribute beside that.
    of_second = _quickxplain(oracle, base + first, second, bool(first))
    of_first = _quickxplain(oracle, base + of_second, first, bool(of_second))
    return of_first + of_second


def _facts(problem: Problem) -> Iterator[_Removable]:
    """Yield all facts. Those that an operator is most likely to change come last, because ties name later ones."""
    yield from _limits(problem)
    yield from _fleet(problem)
    yield from _memory(problem)
    yield from _rules(problem)
    for fact, lift in unpriced(problem):
        yield _Removable(fact=fact, without=partial(_lifted, lift))
    yield from _goal(problem)


def _lifted(lift: Callable[[Problem], Problem], of: _Relaxed) -> _Relaxed:
    """Leave out a fact of the problem itself."""
    return replace(of, problem=lift(of.problem))


def _limits(problem: Problem) -> Iterator[_Removable]:
    """Yield the runtime's limits."""
    names = ("max_tensor", "max_pipeline", "max_data", "max_train_blocks", "colocates", "roles_on_trainer")
    free_of = {name: getattr(STUDY, name) for name in names} | {"engine_tensors": frozenset(TENSOR)}
    for name, free in free_of.items():
        value = getattr(problem.limits, name)
        if value not in (free, None):
            yield _Removable(
                fact=Fact(kind="limits", name=f"limits:{name}", what=f"the runtime's {name} is {_words(value)}"),
                without=partial(_with_limit, name, free),
            )


def _fleet(problem: Problem) -> Iterator[_Removable]:
    """Yield the inventory of each class, and the links."""
    for at in classes_of(problem.fleet):
        yield _Removable(
            fact=Fact(
                kind="inventory",
                name=f"inventory:{at.key}",
                what=f"{at.key} has {at.num_machines} machines of {at.gpus_per_machine}",
            ),
            without=partial(_more_machines, at),
        )
    # All links are one fact: without it every pair of regions has a fast one.
    if len(problem.fleet.regions) > 1:
        yield _Removable(
            fact=Fact(kind="link", name="links", what=_links_words(problem)),
            without=_all_linked,
        )


def _links_words(problem: Problem) -> str:
    """Return which routes are missing, in as much detail as one would read."""
    network, names = Network(problem.fleet), sorted(region.name for region in problem.fleet.regions)
    pairs = [(a, b) for a in names for b in names if a != b]
    missing = [f"from {a} to {b}" for a, b in pairs if network.route(a, b) is None]
    # Every pair has a route, so it is the rates that are too low.
    if not missing:
        return "links between regions are no faster than measured"
    if len(missing) > _MOST_LINKS:
        return f"no links were measured for {len(missing):,} of the {len(pairs):,} ways between regions"
    return f"no link was measured {' nor '.join(missing)}"


def _memory(problem: Problem) -> Iterator[_Removable]:
    """Yield the memory of each task."""
    for task in problem.workload.tasks:
        model = problem.workload.models[task].name
        yield _Removable(
            fact=Fact(
                kind="memory", name=f"memory:{task}", what=f"{_named(task)} of {model} needs memory on each device"
            ),
            without=partial(_without_memory, task),
        )


def _rules(problem: Problem) -> Iterator[_Removable]:
    """Yield the operator's rules."""
    rules = problem.rules

    # Rules that are one value. Entries of lists are dropped one by one below, so that a conflict names the entry.
    def changed(name: str, what: str, **fields: object) -> _Removable:
        return _Removable(
            fact=Fact(kind="rules", name=name, what=what),
            without=partial(_with_rules, fields),
        )

    for pin in rules.pins:
        yield _without_item("pins", pin, f"pin:{pin[0]}", f"{_named(pin[0])} may use only {_words(pin[1])}")
    for item in rules.forbidden:
        yield _without_item("forbidden", item, f"forbid:{item[0]}", f"{_named(item[0])} must not use {_words(item[1])}")
    for region in sorted(rules.forbidden_regions):
        yield _without_name("forbidden_regions", region, f"forbid:{region}", f"{region} must not be used")
    for region in sorted(rules.generating):
        yield _without_name("generating", region, f"generating:{region}", f"{region} must generate")
    if rules.max_regions is not None:
        yield changed("max_regions", f"at most {rules.max_regions} regions", max_regions=None)
    if rules.min_regions > 1:
        yield changed("min_regions", f"at least {rules.min_regions} regions", min_regions=1)
    if rules.spot_for_rollouts_only and any(m.is_spot for r in problem.fleet.regions for m in r.machines):
        yield changed("spot", "spot machines are for generation only", spot_for_rollouts_only=False)


def _goal(problem: Problem) -> Iterator[_Removable]:
    """Yield the deadline and the budget."""
    for kind, (name, _, unit) in _UNLIMITED.items():
        value = getattr(problem.goal, name)
        if value is not None:
            yield _Removable(
                fact=Fact(kind=kind, name=kind, what=f"at most {value:,g} {unit}{_planned(problem.goal, kind, unit)}"),
                without=partial(_without_goal, name),
            )


def _planned(goal: Goal, kind: str, unit: str) -> str:
    """Return words on the tighter limit that a margin leaves; empty without a margin."""
    margin, planned = {
        "deadline": (goal.step_margin, goal.planned_step_s),
        "budget": (goal.usd_margin, goal.planned_usd_per_hour),
    }[kind]
    if not margin or planned is None:
        return ""
    return f", planned within {units.short(planned)} {unit} for a margin of {margin * 100:g} %"


def _without_item(field: str, item: object, name: str, what: str) -> _Removable:
    """Return a fact for one entry of a tuple of rules."""

    def without(of: _Relaxed) -> _Relaxed:
        rest = tuple(each for each in getattr(of.problem.rules, field) if each != item)
        return _with_rules({field: rest}, of)

    return _Removable(fact=Fact(kind="rules", name=name, what=what), without=without)


def _without_name(field: str, region: str, name: str, what: str) -> _Removable:
    """Return a fact for one region of a set of rules."""

    def without(of: _Relaxed) -> _Relaxed:
        return _with_rules({field: getattr(of.problem.rules, field) - {region}}, of)

    return _Removable(fact=Fact(kind="rules", name=name, what=what), without=without)


def _with_limit(name: str, value: object, of: _Relaxed) -> _Relaxed:
    """Return the problem with one limit of the runtime changed."""
    limits = replace(of.problem.limits, **{name: value})  # type: ignore[arg-type]
    return replace(of, problem=replace(of.problem, limits=limits))


def _with_rules(fields: Mapping[str, object], of: _Relaxed) -> _Relaxed:
    """Return the problem with some rules changed."""
    return replace(of, problem=replace(of.problem, rules=replace(of.problem.rules, **fields)))  # type: ignore[arg-type]


def _without_memory(task: Task, of: _Relaxed) -> _Relaxed:
    """Return the problem in which the task needs no memory."""
    return replace(of, without_memory_of=of.without_memory_of | {task})


def _without_goal(name: str, of: _Relaxed) -> _Relaxed:
    """Return the problem without one limit of the goal."""
    goal = replace(of.problem.goal, **{name: None})  # type: ignore[arg-type]
    return replace(of, problem=replace(of.problem, goal=goal))


def _more_machines(at: DeviceClass, of: _Relaxed) -> _Relaxed:
    """Return the problem with more machines of the class."""
    fleet = of.problem.fleet
    regions = tuple(
        replace(each, machines=tuple(_more(m, at) for m in each.machines)) if each.name == at.region.name else each
        for each in fleet.regions
    )
    return replace(of, problem=replace(of.problem, fleet=replace(fleet, regions=regions)))


def _more(machines: Machines, at: DeviceClass) -> Machines:
    """Return the machines, with more of them if they belong to the class."""
    is_of = (machines.gpu, machines.gpus_per_machine, machines.is_spot, machines.fabric, machines.usd_per_gpu_hour) == (
        at.gpu.name,
        at.gpus_per_machine,
        at.is_spot,
        at.fabric,
        at.usd_per_gpu_hour,
    )
    rate = machines.network_bytes_per_s or at.region.fabric_bytes_per_s
    if not is_of or min(rate, at.region.fabric_bytes_per_s) != at.fabric_bytes_per_s:
        return machines
    return replace(machines, num_machines=machines.num_machines + _MANY_MACHINES)


def _all_linked(of: _Relaxed) -> _Relaxed:
    """Return the problem with fast links between all regions."""
    fleet = of.problem.fleet
    names = [region.name for region in fleet.regions]
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.0, bytes_per_s=_FREE_BYTES_PER_S)
        for a in names
        for b in names
        if a != b
    )
    regions = tuple(
        replace(region, is_public=True, wan_up_bytes_per_s=None, wan_down_bytes_per_s=None) for region in fleet.regions
    )
    return replace(of, problem=replace(of.problem, fleet=replace(fleet, links=links, regions=regions)))


def _words(value: object) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)


def _named(task: Task) -> str:
    return task.value.replace("_", " ")
