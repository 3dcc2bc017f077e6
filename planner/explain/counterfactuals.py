"""Counterfactuals: plan a problem again with one thing changed, to find what would shorten the step.

A change is one more machine, a faster link, a larger staleness bound, a looser limit, or an unused region that must
generate. More of a resource never makes the best placement worse. So the plan's own value with the changed resource
counts as well as what a short search finds. A gain is therefore never negative, and one below the searches' gap may be
none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome, objective_value
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.step.binding import seconds
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.network import Network
from planner.methods.obstacles import allowed
from planner.plan_of_placement import generating_beside
from planner.problem.device_classes import DeviceClass, classes_of
from planner.problem.fleet import Fleet, Machines
from planner.problem.goal import Goal, Problem
from planner.problem.margins import with_margin
from planner.problem.workload import Task

Solve = Callable[[Problem], Outcome]
"""Function that searches a problem for the best placement."""

MAX_MACHINES, MAX_LINKS, MAX_REGIONS = 12, 12, 12
"""Largest number of changes of one kind (machines, `MAX_LINKS`, `MAX_REGIONS`). Resources in use come first."""
UNANSWERED = "no placement was found in time"
"""Reason of an effect whose search found nothing in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change: the problem with one thing changed."""

    kind: str
    """One of `machine`, `link`, `eta`, `limit`, `region`."""
    subject: str
    what: str
    """Description of the change for a person."""
    problem: Problem
    keeps: bool
    """Whether every placement stays feasible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of a change on the objective value.

    `value` is None if there is no placement; `why` says why. `bound` is a proved lower bound with the change, or None.
    """

    kind: str
    subject: str
    what: str
    value: float | None
    gain: float | None
    """1 - value / the plan's value: a lower bound on the gain."""
    why: str = ""
    bound: float | None = None
    room: float | None = None
    """1 - bound / the plan's value: an upper bound on the gain."""


def lifts(problem: Problem, placement: Placement) -> tuple[WhatIf, ...]:
    """Return changes that add a little of each thing that may bind."""
    return (
        *_machines(problem, placement),
        *_links(problem, placement),
        *_looser(problem),
    )


def unused_regions(problem: Problem, placement: Placement) -> tuple[WhatIf, ...]:
    """Return, for each region that the placement leaves out, the change in which it must generate."""
    regions = {each.key: each.region.name for each in classes_of(problem.fleet)}
    used = {regions[pool.device_class] for group in placement.groups for pool in group.pools}
    changes = []
    for name in sorted({region.name for region in problem.fleet.regions} - used)[:MAX_REGIONS]:
        # Generation is forced there: a free search would leave the region out again.
        rules = replace(problem.rules, generating=problem.rules.generating | {name})
        changes.append(
            WhatIf(
                kind="region",
                subject=name,
                what=f"generating in {name} too",
                problem=replace(problem, rules=rules),
                keeps=False,
            )
        )
    return tuple(changes)


def effect(change: WhatIf, placement: Placement, base: float, solve: Solve) -> Effect:
    """Return the effect of a change on a plan whose objective value is `base`."""
    goal = change.problem.goal
    values = []
    # The plan itself, with the changed resource, is one candidate. So a search that finds nothing better cannot make a
    # helpful change look harmful.
    if change.keeps:
        estimate = evaluate(CostTables(change.problem), placement)
        values += [objective_value(goal, estimate)] if isinstance(estimate, Evaluation) else []
    # A region that cannot generate under any placement needs no search.
    why, bound = _forbidden(change, placement) if change.kind == "region" else "", None
    if not why:
        found = solve(change.problem)
        bound = _bound(found)
        match found:
            # A search that ended without a placement gives its conflict as the reason. One that ran out of time gives
            # no answer.
            case Found(best=best) | BudgetExhausted(best=Incumbent() as best):
                values.append(best.value(goal))
            case Infeasible(conflict=conflict):
                why = conflict
            case _:
                why = UNANSWERED
    value = min(values, default=None)
    return Effect(
        kind=change.kind,
        subject=change.subject,
        what=change.what,
        value=value,
        gain=_improvement(value, base),
        why=why if value is None else "",
        bound=bound,
        room=_improvement(bound, base),
    )


def _improvement(value: float | None, base: float) -> float | None:
    """Return 1 - value / base: the relative improvement."""
    # A plan that costs nothing cannot be improved.
    return None if value is None else 1 - value / base if base > 0 else 0.0


def _bound(found: Outcome) -> float | None:
    """Return the lower bound that an outcome proves, or None."""
    match found:
        case Found(best=best):
            return best.bound
        case BudgetExhausted(best=best, bound=bound):
            return best.bound if bound is None and best else bound
        case _:
            return None


def unanswered(change: WhatIf) -> Effect:
    """Return the effect of a change whose search did not end."""
    return Effect(
        kind=change.kind,
        subject=change.subject,
        what=change.what,
        value=None,
        gain=None,
        why=UNANSWERED,
    )


def _forbidden(change: WhatIf, placement: Placement) -> str:
    """Return what keeps a region from generating in any case: a rule, a missing price or a missing link; else empty."""
    problem, name = change.problem, change.subject
    classes = [each for each in classes_of(problem.fleet) if each.region.name == name]
    # In the order in which a person would have to fix them: the rule, then the price, then the link.
    if not any(problem.rules.allows(Task.GENERATION, name, each.is_spot) for each in classes):
        return "generation is not allowed there"
    if not any(each.region.name == name for each in allowed(problem, Task.GENERATION)):
        return "its machines have no price (add usd_per_gpu_hour)"
    return _unlinked(problem, trainer_region_of(CostTables(problem), placement), name)


def _unlinked(problem: Problem, trainer_region: str, name: str) -> str:
    """Return the missing routes between a region and the trainer's.

    The result is empty if the region has routes to and from any region that may train.
    """
    network = Network(problem.fleet)
    trainer_regions = {each.region.name for each in allowed(problem, Task.ACTOR_TRAINING)} | {trainer_region}
    # Another region could train instead, so a route to any of these is enough.
    if any(network.joins(each, name) for each in trainer_regions):
        return ""
    missing = [
        f"from {a} to {b}" for a, b in ((trainer_region, name), (name, trainer_region)) if network.route(a, b) is None
    ]
    return f"no link was measured {' nor '.join(missing)}"


def _machines(problem: Problem, placement: Placement) -> Iterator[WhatIf]:
    """Yield one more machine of each class, classes in use first."""
    used = {pool.device_class for group in placement.groups for pool in group.pools}
    # Classes in use come first because only a limited number is tried.
    classes = sorted(classes_of(problem.fleet), key=lambda at: (at.key not in used, at.key))
    for at in classes[:MAX_MACHINES]:
        # Equal to the machines of the class in everything, so that it joins the class instead of making a new one.
        more = Machines(
            gpu=at.gpu.name,
            gpus_per_machine=at.gpus_per_machine,
            num_machines=1,
            is_spot=at.is_spot,
            fabric=at.fabric,
            usd_per_gpu_hour=at.usd_per_gpu_hour,
            network_bytes_per_s=at.fabric_bytes_per_s,
        )
        yield WhatIf(
            kind="machine",
            subject=at.key,
            what=f"one more machine of {_machine_words(at)} in {at.region.name}",
            problem=replace(problem, fleet=with_machine(problem.fleet, at.region.name, more)),
            keeps=True,
        )


def _machine_words(at: DeviceClass) -> str:
    """Describe a class in words that differ between any two classes of a region."""
    size = "one device" if at.gpus_per_machine == 1 else f"{at.gpus_per_machine} devices"
    name = "CPU" if at.gpu.is_cpu else at.gpu.name
    kind = f"{size} {name}{' spot' if at.is_spot else ''}{f' of {at.fabric}' if at.fabric else ''}"
    return kind if "#" not in at.key else f"{kind} (#{at.key.rpartition('#')[2]})"


def with_machine(fleet: Fleet, region: str, machines: Machines) -> Fleet:
    """Return the fleet with these machines added to a region."""
    regions = (
        replace(each, machines=(*each.machines, machines)) if each.name == region else each for each in fleet.regions
    )
    return replace(fleet, regions=tuple(regions))


def _links(problem: Problem, placement: Placement) -> Iterator[WhatIf]:
    """Yield each used link and the trainer's uplink at twice the rate."""
    cost_tables = CostTables(problem)
    trainer_region = trainer_region_of(cost_tables, placement)
    # Weights go to the remote regions that generate, and trajectories come back.
    away = generating_beside(cost_tables, placement, trainer_region)
    for src, dst in sorted(
        [*((trainer_region, region) for region in away), *((region, trainer_region) for region in away)]
    )[:MAX_LINKS]:
        # Only the link between exactly these regions. A route over a relay has none, and then nothing is yielded.
        links = tuple(
            replace(link, bytes_per_s=2 * link.bytes_per_s)
            if (link.src_region, link.dst_region) == (src, dst)
            else link
            for link in problem.fleet.links
        )
        if links != problem.fleet.links:
            yield WhatIf(
                kind="link",
                subject=f"{src}>{dst}",
                what=f"twice the rate from {src} to {dst}",
                problem=replace(problem, fleet=replace(problem.fleet, links=links)),
                keeps=True,
            )
    # All versions leave over this uplink, however many links carry them on.
    if away and cost_tables.network.up_bytes_per_s(trainer_region):
        regions = tuple(
            replace(each, wan_up_bytes_per_s=2 * each.wan_up_bytes_per_s)
            if each.name == trainer_region and each.wan_up_bytes_per_s
            else each
            for each in problem.fleet.regions
        )
        yield WhatIf(
            kind="link",
            subject=f"{trainer_region}>",
            what=f"twice the uplink of {trainer_region}",
            problem=replace(problem, fleet=replace(problem.fleet, regions=regions)),
            keeps=True,
        )


def _looser(problem: Problem) -> Iterator[WhatIf]:
    """Yield a larger staleness bound, and each limit of the goal loosened by 10 %."""
    eta, goal = problem.workload.eta, problem.goal
    if eta < problem.limits.max_eta:
        # The margin on a step limit depends on the staleness bound, so it is chosen again below.
        later = replace(problem, workload=replace(problem.workload, eta=eta + 1))
        yield WhatIf(
            kind="eta",
            subject=str(eta + 1),
            what=f"a staleness bound of {eta + 1}",
            keeps=eta > 0,
            problem=with_margin(later) if goal.step_margin else later,
        )
    if goal.max_step_s is not None:
        looser: Goal = replace(goal, max_step_s=1.1 * goal.max_step_s)
        what = f"{seconds(looser.max_step_s or 0.0)} a step allowed"
        yield WhatIf(kind="limit", subject="max_step_s", what=what, problem=replace(problem, goal=looser), keeps=True)
    if goal.max_usd_per_hour is not None:
        richer: Goal = replace(goal, max_usd_per_hour=1.1 * goal.max_usd_per_hour)
        what = f"{richer.max_usd_per_hour:,.2f} dollars an hour allowed"
        yield WhatIf(
            kind="limit", subject="max_usd_per_hour", what=what, problem=replace(problem, goal=richer), keeps=True
        )
