"""Conflicts that are found without a search: tasks that may run nowhere or fit nowhere, and regions without routes.

They are the most common ones, and are found in milliseconds where a search may need minutes to prove the same. A
problem that passes may still have no placement. Conflicts are minimal: facts are dropped one by one as long as the
remaining ones still contradict each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from planner.answer.outcome import Fact, Infeasible
from planner.answer.placement import Layout
from planner.cost.candidates.columns import mesh_columns, unit_columns
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.network import Network
from planner.cost.tasks.memory import resident_bytes, usable_bytes
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Machines
from planner.problem.goal import Problem
from planner.problem.workload import TRAINING, Task

MOST_GPUS = 2048
"""Largest fleet, in devices, whose memory is checked before a search. For larger fleets, listing what fits takes
seconds."""

_Conflict = tuple[Fact, ...]
"""Facts that contradict each other; empty if there is no conflict."""
_Liftable = tuple[Fact, Callable[[Problem], Problem]]
"""A fact, with a function that returns the problem without it."""


def obstacle(cost_tables: CostTables) -> Infeasible | None:
    """Return the first conflict that is found; None if there is none of these kinds.

    Each conflict is proved. A conflict over memory may name more rules than are needed: it is not tested without each.
    """
    problem = cost_tables.problem
    for task in problem.workload.tasks:
        if not allowed(problem, task):
            return Infeasible(facts=_minimal_conflict(problem, partial(_has_no_devices, task), _no_devices_fact(task)))
    if not _is_connected(problem):
        return Infeasible(
            facts=_minimal_conflict(problem, lambda relaxed: not _is_connected(relaxed), _missing_route(problem))
        )
    facts = memory_obstacle(cost_tables) if problem.fleet.num_gpus <= MOST_GPUS else ()
    return Infeasible(facts=facts, is_minimal=len(facts) == 1) if facts else None


def _has_no_devices(task: Task, problem: Problem) -> bool:
    return not allowed(problem, task)


def memory_obstacle(cost_tables: CostTables) -> _Conflict:
    """Return the conflict of a task that by itself fits on no devices that it may use, or of all tasks together."""
    problem = cost_tables.problem
    for task in problem.workload.tasks:
        if not _fits(cost_tables, task):
            fact = Fact(kind="memory", name=f"memory:{task.value}", what=_shortage(problem, task))
            rules = [each for each, _ in _liftables(problem) if _concerns(each, task)]
            return (fact, *rules, *_missing_prices(problem, task))
    return _over_total_memory(cost_tables)


def _missing_prices(problem: Problem, task: Task) -> list[Fact]:
    """Return the missing prices that keep a task from devices on which it fits.

    They are those of single classes, or of all together if no single class is enough.
    """
    lifts = list(unpriced(problem))
    enough = [fact for fact, lift in lifts if _fits(CostTables(lift(problem)), task)]
    if enough or len(lifts) < 2:
        return enough
    for _, lift in lifts:
        problem = lift(problem)
    return [fact for fact, _ in lifts] if _fits(CostTables(problem), task) else []


def _over_total_memory(cost_tables: CostTables) -> _Conflict:
    """Return the fewest tasks, largest first, of which one copy each exceeds the memory of all devices together."""
    workload, held = cost_tables.problem.workload, 0.0
    # One copy of each task, not split and without activations, is the least that any placement holds. So what exceeds
    # the sum over all devices fits nowhere. A device smaller than its reserve counts as 0.
    usable = sum(at.num_gpus * max(0.0, usable_bytes(at.gpu)) for at in cost_tables.classes.values())
    sizes = {task: resident_bytes(workload, task, Layout(tensor=1), 1) for task in workload.tasks}
    facts: list[Fact] = []
    for task in sorted(sizes, key=lambda task: (-sizes[task], task)):
        held += sizes[task]
        name, model = task.value.replace("_", " "), workload.models[task].name
        what = f"{name} of {model} keeps {sizes[task] / 1e9:,.0f} GB"
        facts.append(Fact(kind="memory", name=f"memory:{task.value}", what=what))
        if held > usable:
            num, have = cost_tables.problem.fleet.num_gpus, usable / 1e9
            what = f"the fleet's {num:,} devices have {have:,.0f} GB for it all"
            return (*facts, Fact(kind="inventory", name="inventory", what=what))
    return ()


def _fits(cost_tables: CostTables, task: Task) -> bool:
    if task not in TRAINING:
        return bool(unit_columns(cost_tables, (task,)))
    # If tasks may not share devices freely, the trainer's roles still share its devices. Each must fit by itself.
    return bool(mesh_columns(cost_tables, (task,), blocks=1)) or bool(mesh_columns(cost_tables, (task,), blocks=2))


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
    """Return the classes whose devices may run that task, by rules and by prices."""
    return [at for at in classes_of(problem.fleet) if problem.allows((task,), at)]


def _is_connected(problem: Problem) -> bool:
    """Return whether some region that may train has routes to and from one that may generate.

    The routes must exist to all regions in which generation is demanded.
    """
    network = Network(problem.fleet)
    trainer_regions = {at.region.name for at in allowed(problem, Task.ACTOR_TRAINING)}
    generating_regions = {at.region.name for at in allowed(problem, Task.GENERATION)}

    def reach(src: str, dst: str) -> bool:
        return network.route(src, dst) is not None and network.route(dst, src) is not None

    return any(
        any(reach(trainer_region, name) for name in generating_regions)
        and all(reach(trainer_region, name) for name in problem.rules.generating)
        for trainer_region in trainer_regions
    )


def _missing_route(problem: Problem) -> Fact:
    trainer_regions = sorted({at.region.name for at in allowed(problem, Task.ACTOR_TRAINING)})
    generating_regions = problem.rules.generating or {at.region.name for at in allowed(problem, Task.GENERATION)}
    network = Network(problem.fleet)
    # The first missing direction in sorted order is named, so that the message is repeatable.
    for trainer_region in trainer_regions:
        for name in sorted(generating_regions):
            for src, dst in ((trainer_region, name), (name, trainer_region)):
                if network.route(src, dst) is None:
                    more = (
                        " nor between other regions that could be used"
                        if len(trainer_regions) * len(generating_regions) > 1
                        else ""
                    )
                    what = f"no link was measured from {src} to {dst}{more}"
                    return Fact(kind="link", name=f"link:{src}>{dst}", what=what)
    raise AssertionError("regions that are not joined have a pair without a route")


def _no_devices_fact(task: Task) -> Fact:
    name = task.value.replace("_", " ")
    return Fact(kind="inventory", name=f"devices:{task.value}", what=f"{name} has no devices that it may use")


def _minimal_conflict(problem: Problem, fails: Callable[[Problem], bool], fact: Fact) -> _Conflict:
    """Return the fact with those rules without which there is no conflict.

    Rules are dropped from the last on, so that the operator's own rules are kept rather than defaults.
    """
    kept = []
    for each, lift in reversed(list(_liftables(problem))):
        candidate = lift(problem)
        if fails(candidate):
            problem = candidate
        else:
            kept.append(each)
    return (fact, *reversed(kept))


def unpriced(problem: Problem) -> Iterator[_Liftable]:
    """Yield the classes that a goal in dollars cannot use because their price is unknown.

    Without the fact they are free.
    """
    for at in classes_of(problem.fleet) if problem.goal.needs_prices else ():
        if at.usd_per_gpu_hour is None:
            what = f"{at.key} has no price (add usd_per_gpu_hour)"
            yield Fact(kind="price", name=f"price:{at.key}", what=what), partial(_with_free_machines, at)


def _with_free_machines(at: DeviceClass, problem: Problem) -> Problem:
    """Return the problem with machines of that class for free."""

    def paid(machines: Machines) -> Machines:
        # A class has no list of its machines: these properties tell which entries it was merged from (`classes_of`).
        identity = (
            machines.gpu,
            machines.gpus_per_machine,
            machines.is_spot,
            machines.fabric,
            machines.usd_per_gpu_hour,
        )
        is_this_class = identity == (at.gpu.name, at.gpus_per_machine, at.is_spot, at.fabric, None)
        return replace(machines, usd_per_gpu_hour=0.0) if is_this_class else machines

    regions = tuple(
        replace(each, machines=tuple(map(paid, each.machines))) if each.name == at.region.name else each
        for each in problem.fleet.regions
    )
    return replace(problem, fleet=replace(problem.fleet, regions=regions))


def _liftables(problem: Problem) -> Iterator[_Liftable]:
    """Yield the rules and missing prices that can be dropped."""
    rules = problem.rules
    # One fact for each entry, so that a conflict names the entry to change; two entries of one task differ in their
    # index. `_minimal_conflict` drops facts from the last on, so rules that are often mere defaults come last.
    for i, pair in enumerate(rules.pins):
        fact = Fact(
            kind="rules", name=f"pins:{pair[0].value}:{i}", what=_rule_sentence(pair[0], "is pinned to", pair[1])
        )
        yield fact, partial(_without_pair, "pins", pair)
    for i, pair in enumerate(rules.forbidden):
        what = _rule_sentence(pair[0], "is forbidden in", pair[1])
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


def _rule_sentence(task: Task, verb: str, regions: frozenset[str]) -> str:
    return f"{task.value.replace('_', ' ')} {verb} {', '.join(sorted(regions))}"


def _concerns(fact: Fact, task: Task) -> bool:
    """Return whether the fact is a rule that keeps the task from other devices."""
    return fact.name.startswith((f"pins:{task.value}:", f"forbidden:{task.value}:")) or fact.name == "forbidden_regions"
