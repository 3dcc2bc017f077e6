"""Conflicts that need no search: a task that nothing may do or that fits nowhere, and regions that cannot reach each
other.

They are the commonest, and found in milliseconds where proving the same by search may take minutes. What passes may
still have no placement. A conflict is minimal: facts are left out one by one as long as the rest still contradicts
itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from planner.answer.outcome import Fact, Infeasible
from planner.answer.placement import Layout
from planner.classes import DeviceClass, classes_of
from planner.cost.columns import mesh_columns, unit_columns
from planner.cost.memory import resident_bytes, usable_bytes
from planner.cost.network import Network
from planner.cost.pools import Prices
from planner.question.fleet import Machines
from planner.question.goal import Problem
from planner.question.workload import TRAINING, Task

MOST_GPUS = 2048
"""Of a fleet whose memory is looked at before a search: listing what fits takes seconds for more."""

_Conflict = tuple[Fact, ...]
_Liftable = tuple[Fact, Callable[[Problem], Problem]]
"""A fact, and how to leave it out of a problem."""


def obstacle(prices: Prices) -> Infeasible | None:
    """The first conflict that is found; None if there is none of these kinds. Each is proved, but what fits where is
    not asked again without each of the rules that a conflict over memory names."""
    problem = prices.problem
    for task in problem.workload.tasks:
        if not allowed(problem, task):
            return Infeasible(conflict=_least(problem, partial(_is_homeless, task), _nowhere(task)))
    if not _joined(problem):
        return Infeasible(conflict=_least(problem, lambda of: not _joined(of), _apart(problem)))
    facts = memory_obstacle(prices) if problem.fleet.num_gpus <= MOST_GPUS else ()
    return Infeasible(conflict=facts, is_minimal=len(facts) == 1) if facts else None


def _is_homeless(task: Task, problem: Problem) -> bool:
    return not allowed(problem, task)


def memory_obstacle(prices: Prices) -> _Conflict:
    """A task that alone fits on nothing that it may use."""
    problem = prices.problem
    for task in problem.workload.tasks:
        if not _fits(prices, task):
            fact = Fact(kind="memory", name=f"memory:{task.value}", what=_shortage(problem, task))
            rules = [each for each, _ in _liftables(problem) if _concerns(each, task)]
            return (fact, *rules, *_missing_prices(problem, task))
    return _crowd(prices)


def _missing_prices(problem: Problem, task: Task) -> list[Fact]:
    """Of devices that the task would fit on: of any one class, else of all together."""
    lifts = list(unpriced(problem))
    enough = [fact for fact, lift in lifts if _fits(Prices(lift(problem)), task)]
    if enough or len(lifts) < 2:
        return enough
    for _, lift in lifts:
        problem = lift(problem)
    return [fact for fact, _ in lifts] if _fits(Prices(problem), task) else []


def _crowd(prices: Prices) -> _Conflict:
    """Tasks of which one copy each is more than all devices together hold: the fewest, the largest first."""
    workload, held = prices.problem.workload, 0.0
    usable = sum(at.num_gpus * max(0.0, usable_bytes(at.gpu)) for at in prices.classes.values())
    sizes = {task: resident_bytes(workload, task, Layout(tensor=1), 1) for task in workload.tasks}
    facts: list[Fact] = []
    for task in sorted(sizes, key=lambda task: (-sizes[task], task)):
        held += sizes[task]
        name, model = task.value.replace("_", " "), workload.models[task].name
        what = f"{name} of {model} keeps {sizes[task] / 1e9:,.0f} GB"
        facts.append(Fact(kind="memory", name=f"memory:{task.value}", what=what))
        if held > usable:
            num, have = prices.problem.fleet.num_gpus, usable / 1e9
            what = f"the fleet's {num:,} devices have {have:,.0f} GB for it all"
            return (*facts, Fact(kind="inventory", name="inventory", what=what))
    return ()


def _fits(prices: Prices, task: Task) -> bool:
    if task not in TRAINING:
        return bool(unit_columns(prices, (task,)))
    # where tasks do not take turns at will, the trainer's roles still share its devices: alone, each of them must fit
    return bool(mesh_columns(prices, (task,), blocks=1)) or bool(mesh_columns(prices, (task,), blocks=2))


def _shortage(problem: Problem, task: Task) -> str:
    model = problem.workload.models[task]
    classes = sorted(allowed(problem, task), key=lambda at: (-at.num_gpus * at.gpu.memory_bytes, at.key))
    largest = classes[0]
    what = f"{task.value.replace('_', ' ')} of {model.name} ({model.num_params / 1e9:.3g} B parameters)"
    return (
        f"{what} fits on no devices that it may use; "
        f"the most memory is in {largest.region.name}: {largest.num_gpus:,} {largest.gpu.name} of "
        f"{largest.gpu.memory_bytes / 1e9:.3g} GB"
    )


def allowed(problem: Problem, task: Task) -> list[DeviceClass]:
    """Classes whose devices may do that task, by the rules and for lack of a price."""
    return [
        at
        for at in classes_of(problem.fleet)
        if problem.rules.allows(task, at.region.name, at.is_spot)
        and not (problem.goal.needs_prices and at.usd_per_gpu_hour is None)
    ]


def _joined(problem: Problem) -> bool:
    """Whether some region that may train reaches one that may generate, and all that must, there and back."""
    network = Network(problem.fleet)
    homes = {at.region.name for at in allowed(problem, Task.ACTOR_TRAINING)}
    makers = {at.region.name for at in allowed(problem, Task.GENERATION)}

    def reach(a: str, b: str) -> bool:
        return network.route(a, b) is not None and network.route(b, a) is not None

    return any(
        any(reach(home, name) for name in makers) and all(reach(home, name) for name in problem.rules.generating)
        for home in homes
    )


def _apart(problem: Problem) -> Fact:
    homes = sorted({at.region.name for at in allowed(problem, Task.ACTOR_TRAINING)})
    makers = problem.rules.generating or {at.region.name for at in allowed(problem, Task.GENERATION)}
    network = Network(problem.fleet)
    for home in homes:
        for name in sorted(makers):
            for src, dst in ((home, name), (name, home)):
                if network.route(src, dst) is None:
                    more = " nor between other regions that could be used" if len(homes) * len(makers) > 1 else ""
                    what = f"no link was measured from {src} to {dst}{more}"
                    return Fact(kind="link", name=f"link:{src}>{dst}", what=what)
    raise AssertionError("regions that are apart have a pair without a way")


def _nowhere(task: Task) -> Fact:
    name = task.value.replace("_", " ")
    return Fact(kind="inventory", name=f"devices:{task.value}", what=f"{name} has no devices that it may use")


def _least(problem: Problem, fails: Callable[[Problem], bool], fact: Fact) -> _Conflict:
    """The fact with those rules without which there would be no conflict, rather the operator's own than defaults."""
    kept = []
    for each, lift in reversed(list(_liftables(problem))):
        candidate = lift(problem)
        if fails(candidate):
            problem = candidate
        else:
            kept.append(each)
    return (fact, *reversed(kept))


def unpriced(problem: Problem) -> Iterator[_Liftable]:
    """Classes that a goal in dollars cannot use, since nobody said what they cost; without the fact they are free."""
    for at in classes_of(problem.fleet) if problem.goal.needs_prices else ():
        if at.usd_per_gpu_hour is None:
            what = f"{at.key} has no price (add usd_per_gpu_hour)"
            yield Fact(kind="price", name=f"price:{at.key}", what=what), partial(_free, at)


def _free(at: DeviceClass, problem: Problem) -> Problem:
    """With machines of that class for nothing."""

    def paid(machines: Machines) -> Machines:
        of = (machines.gpu, machines.gpus_per_machine, machines.is_spot, machines.fabric, machines.usd_per_gpu_hour)
        is_it = of == (at.gpu.name, at.gpus_per_machine, at.is_spot, at.fabric, None)
        return replace(machines, usd_per_gpu_hour=0.0) if is_it else machines

    regions = tuple(
        replace(each, machines=tuple(map(paid, each.machines))) if each.name == at.region.name else each
        for each in problem.fleet.regions
    )
    return replace(problem, fleet=replace(problem.fleet, regions=regions))


def _liftables(problem: Problem) -> Iterator[_Liftable]:
    rules = problem.rules
    for i, pair in enumerate(rules.pins):
        fact = Fact(kind="rules", name=f"pins:{pair[0].value}:{i}", what=_says(pair[0], "is pinned to", pair[1]))
        yield fact, partial(_without_pair, "pins", pair)
    for i, pair in enumerate(rules.forbidden):
        what = _says(pair[0], "is forbidden in", pair[1])
        fact = Fact(kind="rules", name=f"forbidden:{pair[0].value}:{i}", what=what)
        yield fact, partial(_without_pair, "forbidden", pair)
    if rules.forbidden_regions:
        what = f"nothing may run in {', '.join(sorted(rules.forbidden_regions))}"
        fact = Fact(kind="rules", name="forbidden_regions", what=what)
        yield fact, partial(_ruled, forbidden_regions=frozenset[str]())
    if rules.generating:
        what = f"generation must run in {', '.join(sorted(rules.generating))}"
        yield Fact(kind="rules", name="generating", what=what), partial(_ruled, generating=frozenset[str]())
    yield from unpriced(problem)
    if rules.spot_for_rollouts_only:
        fact = Fact(kind="rules", name="spot_for_rollouts_only", what="spot machines may only generate")
        yield fact, partial(_ruled, spot_for_rollouts_only=False)


def _without_pair(field: str, pair: tuple[Task, frozenset[str]], problem: Problem) -> Problem:
    return _ruled(problem, **{field: tuple(each for each in getattr(problem.rules, field) if each != pair)})


def _ruled(problem: Problem, **fields: Any) -> Problem:
    return replace(problem, rules=replace(problem.rules, **fields))


def _says(task: Task, verb: str, regions: frozenset[str]) -> str:
    return f"{task.value.replace('_', ' ')} {verb} {', '.join(sorted(regions))}"


def _concerns(fact: Fact, task: Task) -> bool:
    """Of a task that fits nowhere: its pins, which keep it from other devices."""
    return fact.name.startswith((f"pins:{task.value}:", f"forbidden:{task.value}:")) or fact.name == "forbidden_regions"
