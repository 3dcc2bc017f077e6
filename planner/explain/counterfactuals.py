"""What if: one more machine, a faster link, a larger bound, a region that is not used. Each question is planned anew.

A resource more never makes the best placement worse, so what the plan does with the changed resources counts as well as
what a short search finds: a gain is never negative, and one that is smaller than the searches' gap may be none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.answer import outcome
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent, objective_value
from planner.answer.placement import Placement
from planner.classes import DeviceClass, classes_of
from planner.cost.network import Network
from planner.cost.oracle import evaluate
from planner.cost.placed import trainer_region
from planner.cost.pools import Prices
from planner.explain.binding import seconds
from planner.margins import with_margin
from planner.obstacles import allowed
from planner.propose import rollout_replicas
from planner.question.fleet import Fleet, Machines
from planner.question.goal import Goal, Problem
from planner.question.workload import Task

Solve = Callable[[Problem], outcome.Outcome]

MAX_MACHINES, MAX_LINKS, MAX_REGIONS = 12, 12, 12
"""Questions of one kind; those about what is in use come first."""
UNANSWERED = "no placement was found in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One question: the problem with one thing changed."""

    kind: str
    """`machine`, `link`, `eta`, `limit` or `region`."""
    subject: str
    what: str
    """For a person."""
    problem: Problem
    keeps: bool
    """Whether every placement stays feasible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The answer. `value` is the objective's; None where there is no placement, and `why` says why.

    `bound`: proved, with the change nothing is less; None where nothing is proved.
    """

    kind: str
    subject: str
    what: str
    value: float | None
    gain: float | None
    """1 - value / the plan's: at least so much."""
    why: str = ""
    bound: float | None = None
    room: float | None = None
    """1 - bound / the plan's: at most so much."""


def lifts(problem: Problem, placement: Placement) -> tuple[Change, ...]:
    """More of each thing that might bind."""
    return (
        *_machines(problem, placement),
        *_links(problem, placement),
        *_looser(problem),
    )


def unused_regions(problem: Problem, placement: Placement) -> tuple[Change, ...]:
    """Each region that the placement leaves out, made to generate."""
    regions = {each.key: each.region.name for each in classes_of(problem.fleet)}
    used = {regions[pool.device_class] for group in placement.groups for pool in group.pools}
    changes = []
    for name in sorted({region.name for region in problem.fleet.regions} - used)[:MAX_REGIONS]:
        rules = replace(problem.rules, generating=problem.rules.generating | {name})
        changes.append(
            Change(
                kind="region", subject=name, what=f"generating in {name} too",
                problem=replace(problem, rules=rules), keeps=False,
            )
        )  # fmt: skip
    return tuple(changes)


def effect(change: Change, placement: Placement, base: float, solve: Solve) -> Effect:
    """What the change would do to a plan whose objective value is `base`."""
    goal = change.problem.goal
    values = []
    if change.keeps:
        judged = evaluate(Prices(change.problem), placement)
        values += [objective_value(goal, judged)] if isinstance(judged, Evaluation) else []
    why, bound = _forbidden(change, placement) if change.kind == "region" else "", None
    if not why:
        found = solve(change.problem)
        bound = _bound(found)
        match found:
            case outcome.Found(best=best) | outcome.BudgetExhausted(best=Incumbent() as best):
                values.append(best.value(goal))
            case outcome.Infeasible(conflict=conflict):
                why = "; and ".join(fact.what for fact in conflict)
            case _:
                why = UNANSWERED
    value = min(values, default=None)
    return Effect(
        kind=change.kind, subject=change.subject, what=change.what, value=value, gain=_less(value, base),
        why=why if value is None else "", bound=bound, room=_less(bound, base),
    )  # fmt: skip


def _less(value: float | None, base: float) -> float | None:
    return None if value is None else 1 - value / base if base > 0 else 0.0


def _bound(found: outcome.Outcome) -> float | None:
    match found:
        case outcome.Found(best=best):
            return best.bound
        case outcome.BudgetExhausted(best=best, bound=bound):
            return best.bound if bound is None and best else bound
        case _:
            return None


def unanswered(change: Change) -> Effect:
    """Of a question whose search did not end."""
    return Effect(
        kind=change.kind, subject=change.subject, what=change.what, value=None, gain=None,
        why=UNANSWERED,
    )  # fmt: skip


def _forbidden(change: Change, placement: Placement) -> str:
    """What keeps a region from generating whatever a search finds: a rule, a missing price, a missing link."""
    problem, name = change.problem, change.subject
    classes = [each for each in classes_of(problem.fleet) if each.region.name == name]
    if not any(problem.rules.allows(Task.GENERATION, name, each.is_spot) for each in classes):
        return "generation is not allowed there"
    if not any(each.region.name == name for each in allowed(problem, Task.GENERATION)):
        return "its machines have no price (add usd_per_gpu_hour)"
    return _unlinked(problem, trainer_region(Prices(problem), placement), name)


def _unlinked(problem: Problem, home: str, name: str) -> str:
    """The missing ways between a region and the trainer's, where it has none to any other that may train either."""
    network = Network(problem.fleet)
    homes = {each.region.name for each in allowed(problem, Task.ACTOR_TRAINING)} | {home}
    if any(network.joins(each, name) for each in homes):
        return ""
    ways = [f"from {a} to {b}" for a, b in ((home, name), (name, home)) if network.route(a, b) is None]
    return f"no link was measured {' nor '.join(ways)}"


def _machines(problem: Problem, placement: Placement) -> Iterator[Change]:
    used = {pool.device_class for group in placement.groups for pool in group.pools}
    classes = sorted(classes_of(problem.fleet), key=lambda at: (at.key not in used, at.key))
    for at in classes[:MAX_MACHINES]:
        more = Machines(
            gpu=at.gpu.name, gpus_per_machine=at.gpus_per_machine, num_machines=1, is_spot=at.is_spot, fabric=at.fabric,
            usd_per_gpu_hour=at.usd_per_gpu_hour, network_bytes_per_s=at.fabric_bytes_per_s,
        )  # fmt: skip
        yield Change(
            kind="machine", subject=at.key, what=f"one more machine of {_machine_words(at)} in {at.region.name}",
            problem=replace(problem, fleet=with_machine(problem.fleet, at.region.name, more)), keeps=True,
        )  # fmt: skip


def _machine_words(at: DeviceClass) -> str:
    """No two classes of a region have the same."""
    size = "one device" if at.gpus_per_machine == 1 else f"{at.gpus_per_machine} devices"
    name = "CPU" if at.gpu.is_cpu else at.gpu.name
    kind = f"{size} {name}{' spot' if at.is_spot else ''}{f' of {at.fabric}' if at.fabric else ''}"
    return kind if "#" not in at.key else f"{kind} (#{at.key.rpartition('#')[2]})"


def with_machine(fleet: Fleet, region: str, machines: Machines) -> Fleet:
    """A fleet with these machines beside the region's own."""
    regions = (
        replace(each, machines=(*each.machines, machines)) if each.name == region else each for each in fleet.regions
    )
    return replace(fleet, regions=tuple(regions))


def _links(problem: Problem, placement: Placement) -> Iterator[Change]:
    prices = Prices(problem)
    home = trainer_region(prices, placement)
    away = {region for region in rollout_replicas(prices, placement) if region != home}
    for src, dst in sorted([*((home, region) for region in away), *((region, home) for region in away)])[:MAX_LINKS]:
        links = tuple(
            replace(link, bytes_per_s=2 * link.bytes_per_s)
            if (link.src_region, link.dst_region) == (src, dst)
            else link
            for link in problem.fleet.links
        )
        if links != problem.fleet.links:
            yield Change(
                kind="link", subject=f"{src}>{dst}", what=f"twice the rate from {src} to {dst}",
                problem=replace(problem, fleet=replace(problem.fleet, links=links)), keeps=True,
            )  # fmt: skip
    if away and prices.network.up_bytes_per_s(home):
        regions = tuple(
            replace(each, wan_up_bytes_per_s=2 * each.wan_up_bytes_per_s)
            if each.name == home and each.wan_up_bytes_per_s
            else each
            for each in problem.fleet.regions
        )
        yield Change(
            kind="link", subject=f"{home}>", what=f"twice the uplink of {home}",
            problem=replace(problem, fleet=replace(problem.fleet, regions=regions)), keeps=True,
        )  # fmt: skip


def _looser(problem: Problem) -> Iterator[Change]:
    eta, goal = problem.workload.eta, problem.goal
    if eta < problem.limits.max_eta:
        later = replace(problem, workload=replace(problem.workload, eta=eta + 1))
        yield Change(
            kind="eta", subject=str(eta + 1), what=f"a staleness bound of {eta + 1}", keeps=eta > 0,
            problem=with_margin(later) if goal.step_margin else later,
        )  # fmt: skip
    if goal.max_step_s is not None:
        looser: Goal = replace(goal, max_step_s=1.1 * goal.max_step_s)
        what = f"{seconds(looser.max_step_s or 0.0)} a step allowed"
        yield Change(kind="limit", subject="max_step_s", what=what, problem=replace(problem, goal=looser), keeps=True)
    if goal.max_usd_per_hour is not None:
        richer: Goal = replace(goal, max_usd_per_hour=1.1 * goal.max_usd_per_hour)
        what = f"{richer.max_usd_per_hour:,.2f} dollars an hour allowed"
        yield Change(
            kind="limit", subject="max_usd_per_hour", what=what, problem=replace(problem, goal=richer), keeps=True
        )
