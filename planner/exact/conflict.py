"""Why there is no placement: the smallest set of named facts that contradict each other.

Facts are what an operator can change: a class's inventory, a task's memory, a pin, a limit. Leaving one out gives a
problem that is easier in that respect only. A set is minimal when there is a placement without any one of it; facts are
left out by halves (QuickXplain, Junker 2004), so a conflict of k of n facts takes about k log(n / k) searches for some
placement. None of them looks for a good one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.answer.outcome import Fact, Incumbent, Infeasible
from planner.classes import classes_of
from planner.cost.pools import Prices
from planner.exact.search import Search
from planner.question.fleet import Link
from planner.question.goal import STUDY, Problem
from planner.question.workload import Task

_MANY_MACHINES = 16
"""A class without its inventory has so many machines more."""
_FREE_BYTES_PER_S = 1e15
_HOPELESS = f"no placement runs this job, even without rules and with {_MANY_MACHINES} machines more of each class"
_FEASIBLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relaxed:
    """A problem, and the tasks whose memory does not count."""

    problem: Problem
    without_memory_of: frozenset[Task] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removable:
    fact: Fact
    without: Callable[[_Relaxed], _Relaxed]


def conflict(problem: Problem, now_s: Callable[[], float], should_stop: Callable[[], bool]) -> Infeasible:
    """Of a problem without a placement; not known to be minimal if `should_stop` ends it or a search is undecided."""
    every = list(_facts(problem))
    oracle = _Oracle(problem, every, now_s, should_stop)
    if not oracle.is_feasible([]):
        facts = (Fact(kind="shape", name="job", what=_HOPELESS),)
        return Infeasible(conflict=facts, method="exact")
    least = _quick(oracle, [], every, False)
    return Infeasible(conflict=tuple(each.fact for each in least), is_minimal=not oracle.is_cut, method="exact")


def is_feasible(prices: Prices, now_s: Callable[[], float], should_stop: Callable[[], bool]) -> bool | None:
    """Whether there is any placement; None where that could not be decided in `_FEASIBLE_S`."""
    found: list[Incumbent] = []
    outcome = Search(
        prices=prices,
        gap=1.0,
        budget_s=_FEASIBLE_S,
        now_s=now_s,
        report=found.append,
        should_stop=lambda: bool(found) or should_stop(),
    ).run()
    if isinstance(outcome, Infeasible):
        return False
    return True if found or outcome.best is not None else None


class _Oracle:
    """Says whether the problem with only some of its facts has a placement; what time does not decide counts as one."""

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
        self._known: dict[frozenset[str], bool] = {}
        self.is_cut = False

    def is_feasible(self, kept: Sequence[_Removable]) -> bool:
        names = frozenset(each.fact.name for each in kept)
        if names not in self._known:
            if self._should_stop():
                self.is_cut = True
                return True
            relaxed = _Relaxed(problem=self._problem)
            for each in self._every:
                if each.fact.name not in names:
                    relaxed = each.without(relaxed)
            prices = Prices(relaxed.problem, relaxed.without_memory_of)
            decided = is_feasible(prices, self._now_s, self._should_stop)
            self.is_cut = self.is_cut or decided is None
            self._known[names] = decided is not False
        return self._known[names]


def _quick(oracle: _Oracle, base: list[_Removable], facts: list[_Removable], is_new: bool) -> list[_Removable]:
    """The least part of `facts` that contradicts `base`; `is_new`: whether base grew since it was last asked about."""
    if is_new and not oracle.is_feasible(base):
        return []
    if len(facts) <= 1:
        return facts
    half = len(facts) // 2
    first, second = facts[:half], facts[half:]
    of_second = _quick(oracle, base + first, second, bool(first))
    of_first = _quick(oracle, base + of_second, first, bool(of_second))
    return of_first + of_second


def _facts(problem: Problem) -> Iterator[_Removable]:
    """Those an operator is likeliest to change come last: the conflict names them in doubt."""
    yield from _limits(problem)
    yield from _fleet(problem)
    yield from _memory(problem)
    yield from _rules(problem)
    yield from _goal(problem)


def _limits(problem: Problem) -> Iterator[_Removable]:
    for name in ("max_tensor", "max_pipeline", "max_data", "max_train_blocks", "colocates", "roles_on_trainer"):
        value, free = getattr(problem.limits, name), getattr(STUDY, name)
        if value != free:
            yield _Removable(
                fact=Fact(kind="limits", name=f"limits:{name}", what=f"the runtime's {name} is {_said(value)}"),
                without=partial(_with_limit, name, free),
            )  # fmt: skip


def _fleet(problem: Problem) -> Iterator[_Removable]:
    for at in classes_of(problem.fleet):
        yield _Removable(
            fact=Fact(
                kind="inventory", name=f"inventory:{at.key}",
                what=f"{at.key} has {at.num_machines} machines of {at.gpus_per_machine}",
            ),
            without=partial(_more_machines, at.region.name, at.gpu.name, at.gpus_per_machine),
        )  # fmt: skip
    if len(problem.fleet.regions) > 1:
        yield _Removable(
            fact=Fact(kind="link", name="links", what="regions reach each other over the measured links only"),
            without=_all_linked,
        )


def _memory(problem: Problem) -> Iterator[_Removable]:
    for task in problem.workload.tasks:
        model = problem.workload.models[task].name
        yield _Removable(
            fact=Fact(kind="memory", name=f"memory:{task}", what=f"{task} of {model} needs memory on each device"),
            without=partial(_without_memory, task),
        )


def _rules(problem: Problem) -> Iterator[_Removable]:
    rules = problem.rules

    def changed(name: str, what: str, **fields: object) -> _Removable:
        return _Removable(
            fact=Fact(kind="rules", name=name, what=what),
            without=partial(_with_rules, fields),
        )

    for pin in rules.pins:
        yield _without_item("pins", pin, f"pin:{pin[0]}", f"{pin[0]} may use only {_said(pin[1])}")
    for item in rules.forbidden:
        yield _without_item("forbidden", item, f"forbid:{item[0]}", f"{item[0]} must not use {_said(item[1])}")
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
    for name, kind, unit in (("max_step_s", "deadline", "s a step"), ("max_usd_per_hour", "budget", "dollars an hour")):
        value = getattr(problem.goal, name)
        if value is not None:
            yield _Removable(
                fact=Fact(kind=kind, name=kind, what=f"at most {value:g} {unit}"),
                without=partial(_without_goal, name),
            )  # fmt: skip


def _without_item(field: str, item: object, name: str, what: str) -> _Removable:
    def without(of: _Relaxed) -> _Relaxed:
        rest = tuple(each for each in getattr(of.problem.rules, field) if each != item)
        return _with_rules({field: rest}, of)

    return _Removable(fact=Fact(kind="rules", name=name, what=what), without=without)


def _without_name(field: str, region: str, name: str, what: str) -> _Removable:
    def without(of: _Relaxed) -> _Relaxed:
        return _with_rules({field: getattr(of.problem.rules, field) - {region}}, of)

    return _Removable(fact=Fact(kind="rules", name=name, what=what), without=without)


def _with_limit(name: str, value: object, of: _Relaxed) -> _Relaxed:
    limits = replace(of.problem.limits, **{name: value})  # type: ignore[arg-type]
    return replace(of, problem=replace(of.problem, limits=limits))


def _with_rules(fields: Mapping[str, object], of: _Relaxed) -> _Relaxed:
    return replace(of, problem=replace(of.problem, rules=replace(of.problem.rules, **fields)))  # type: ignore[arg-type]


def _without_memory(task: Task, of: _Relaxed) -> _Relaxed:
    return replace(of, without_memory_of=of.without_memory_of | {task})


def _without_goal(name: str, of: _Relaxed) -> _Relaxed:
    goal = replace(of.problem.goal, **{name: None})  # type: ignore[arg-type]
    return replace(of, problem=replace(of.problem, goal=goal))


def _more_machines(region: str, gpu: str, size: int, of: _Relaxed) -> _Relaxed:
    fleet = of.problem.fleet
    regions = tuple(
        replace(
            each,
            machines=tuple(
                replace(m, num_machines=m.num_machines + _MANY_MACHINES)
                if (m.gpu, m.gpus_per_machine) == (gpu, size)
                else m
                for m in each.machines
            ),
        )
        if each.name == region
        else each
        for each in fleet.regions
    )
    return replace(of, problem=replace(of.problem, fleet=replace(fleet, regions=regions)))


def _all_linked(of: _Relaxed) -> _Relaxed:
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


def _said(value: object) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)
