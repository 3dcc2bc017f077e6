"""The oracle: seconds a step and dollars an hour of one placement, or why it is none. It alone judges every method.

Terms, with tau = seconds a step, and what tau must hold:

- T_t, busy seconds of task t: samples a step over the sum of its units' rates; on a mesh, the mesh's time. Generation:
  a region makes no faster than its way home carries, nor do all remote ones than the trainer's downlink.
- group: the sum of T_t over a group's tasks <= tau.
- path, for each region that generates: training + scoring + weights + trajectories + generation <= (eta + 1) tau.
  Training and scoring are each the longest over groups of the sum of their tasks; a group that trains in another region
  adds the samples' way there, one that scores there the way there and back. Generation is the whole phase at eta 0 and
  where it takes turns with training, else the 99th percentile of a group.
- path:critic, where critic inference is not in critic training's group: training + the critic's weights + scoring <=
  (eta + 1) tau.
- link, up: one version's bytes over each link, and all regions' over the trainer's uplink, within tau.
- budget: with so many dollars an hour left for egress, so many steps an hour at most.

With eta >= 1 a pool that generates too slowly for its path or its link does not hold up the others: it idles, and is
paid. So of the pools that generate by themselves, in the order of what each alone would need, the best first few count.
At eta 0 those idle whose first sample comes after the phase's end; the path is the synchronous critical path, and the
groups' condition follows from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.answer.evaluation import Evaluation, RegionTimes, Violation
from planner.answer.placement import Group, Placement
from planner.cost import shape
from planner.cost.phases import KNOT, end_s
from planner.cost.pools import PoolPrice, Prices
from planner.cost.ways import CriticWay, Home, critic_way, home
from planner.question.goal import Goal, Objective
from planner.question.workload import SCORING, TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """One pool that generates."""

    region: str
    num_units: int
    price: PoolPrice
    has_version: bool
    """Whether it is a pool of the actor's own mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement whose pools all fit, and what its terms are made of but generation."""

    placement: Placement
    home: Home
    making: tuple[Making, ...]
    busy_s: Mapping[Task, float]
    """Of each task but generation."""
    training_s: float
    scoring_s: float
    critics: Mapping[tuple[str, str], CriticWay]
    """Ways of the critic's weights."""

    @property
    def generating(self) -> Group:
        return self.placement.group_of(Task.GENERATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a placement needs with some of its pools generating."""

    active: tuple[Making, ...]
    generation_s: float
    regions: tuple[RegionTimes, ...]
    needs: Sequence[tuple[str, float]]
    """What tau must be at least, each with its name; budget apart."""
    usd_per_step: float
    binding: str = field(init=False)
    step_s: float = field(init=False)

    def __post_init__(self) -> None:
        binding, step_s = max(self.needs, key=lambda need: need[1])
        object.__setattr__(self, "binding", binding)
        object.__setattr__(self, "step_s", step_s)


def evaluate(prices: Prices, placement: Placement, *, goal: Goal | None = None) -> Evaluation | Violation:
    """Judge one placement, by the problem's goal or another."""
    placed = place(prices, placement)
    if isinstance(placed, Violation):
        return placed
    goal = goal or prices.problem.goal
    best = judge(prices, placed)
    rent = rent_usd_per_hour(prices, placement)
    binding, step_s = best.binding, best.step_s
    slowest = np.inf if goal.max_step_s is None else goal.max_step_s * (1 + 1e-9)
    if step_s > slowest:
        return Violation(kind="deadline", what=f"{step_s:.3f} s a step, {goal.max_step_s:.3f} are allowed")
    if goal.max_usd_per_hour is not None:
        throttled_s = throttle_s(goal.max_usd_per_hour, rent, best.usd_per_step)
        if throttled_s > slowest or throttled_s == np.inf:
            return Violation(kind="budget", what=f"{rent:.2f} dollars an hour, {goal.max_usd_per_hour:.2f} are allowed")
        if throttled_s > step_s:
            binding, step_s = "budget", throttled_s
    hourly_s = step_s
    if goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is not None:
        hourly_s = goal.max_step_s  # no more steps are made than are asked for
    egress = best.usd_per_step * 3600 / hourly_s
    busy = {**placed.busy_s, Task.GENERATION: best.generation_s}
    return Evaluation(
        step_s=step_s, usd_per_hour=rent + egress, usd_egress_per_hour=egress, regions=best.regions,
        binding=binding, task_s=tuple((task, busy[task]) for task in prices.problem.workload.tasks),
        idle=tuple(i for i, each in enumerate(placed.making) if not any(each is used for used in best.active)),
    )  # fmt: skip


def throttle_s(max_usd_per_hour: float, rent: float, usd_per_step: float) -> float:
    """Seconds a step that what is left of a budget beside the rent allows; infinity where it pays no step."""
    left = max_usd_per_hour * (1 + 1e-9) - rent
    if left < 0 or (left == 0 and usd_per_step > 0):
        return np.inf
    return usd_per_step * 3600 / left if usd_per_step > 0 else 0.0


def rent_usd_per_hour(prices: Prices, placement: Placement) -> float:
    return sum(
        pool.num_gpus * (prices.classes[pool.device_class].usd_per_gpu_hour or 0.0)
        for group in placement.groups
        for pool in group.pools
    )


def place(prices: Prices, placement: Placement) -> Placed | Violation:
    """Shape, rules, inventory, memory and routes; and the terms without generation."""
    if found := shape.violation(prices, placement):
        return found
    priced: list[list[PoolPrice]] = []
    for group in placement.groups:
        of_group = [prices.pool(group.tasks, pool) for pool in group.pools]
        if refused := next((each for each in of_group if isinstance(each, Violation)), None):
            return refused
        priced.append([each for each in of_group if isinstance(each, PoolPrice)])
    start = home(prices, trainer_region(prices, placement))
    for name in (name for group in placement.groups for name in regions_of(prices, group)):
        if name not in start.ways:
            return Violation(kind="link", what=f"no route from {start.name} to {name} and back")
    critics = _critics(prices, placement)
    if isinstance(critics, Violation):
        return critics
    busy = _busy_s(prices, placement, priced)
    training_s, scoring_s = _phases_s(prices, placement, start, busy)
    making = tuple(
        Making(
            region=prices.classes[pool.device_class].region.name, num_units=pool.num_units, price=price,
            has_version=Task.ACTOR_TRAINING in group.tasks,
        )
        for group, of_group in zip(placement.groups, priced, strict=True) if Task.GENERATION in group.tasks
        for pool, price in zip(group.pools, of_group, strict=True)
    )  # fmt: skip
    return Placed(
        placement=placement, home=start, making=making, busy_s=busy, training_s=training_s, scoring_s=scoring_s,
        critics=critics,
    )  # fmt: skip


def trainer_region(prices: Prices, placement: Placement) -> str:
    """Where versions are published: the region of the actor mesh's first pool."""
    return prices.classes[placement.group_of(Task.ACTOR_TRAINING).pools[0].device_class].region.name


def regions_of(prices: Prices, group: Group) -> list[str]:
    return sorted({prices.classes[pool.device_class].region.name for pool in group.pools})


def judge(prices: Prices, placed: Placed) -> Judged:
    """With the best of the placement's generating pools; with all of them where the operator demands regions."""
    best = judged(prices, placed, placed.making)
    if prices.problem.rules.demands_regions:
        return best
    if placed.making[0].price.phase is not None:
        active = tuple(each for each in placed.making if _makes_any(each, best.generation_s))
        return best if len(active) == len(placed.making) else judged(prices, placed, active)
    alone = sorted((_alone_s(prices, placed, each), i) for i, each in enumerate(placed.making))
    for count in range(1, len(alone)):
        some = judged(prices, placed, tuple(placed.making[i] for i in sorted(i for _, i in alone[:count])))
        if some.step_s < best.step_s:
            best = some
    return best


def judged(prices: Prices, placed: Placed, active: tuple[Making, ...]) -> Judged:
    """With these pools generating."""
    ends = prices.problem.workload.eta + 1
    generation_s = _generation_s(prices, placed.home, active)
    regions = _region_times(placed, active, generation_s)
    busy = {**placed.busy_s, Task.GENERATION: generation_s}
    before_s = placed.training_s + placed.scoring_s
    needs = [
        (f"path:{each.region}", (before_s + each.weights_s + each.trajectories_s + each.group_s) / ends)
        for each in regions
    ]
    needs += [
        ("group:" + "+".join(group.tasks), sum(busy[task] for task in group.tasks)) for group in placed.placement.groups
    ]
    needs += _link_needs(placed, _receiving(placed, active))
    needs += [("path:critic", (before_s + way.weights_s) / ends) for way in placed.critics.values()]
    usd = _usd_per_step(prices, placed, active)
    return Judged(active=active, generation_s=generation_s, regions=regions, needs=needs, usd_per_step=usd)


def _makes_any(each: Making, phase_s: float) -> bool:
    """Whether its first sample is done when the phase ends."""
    phase = each.price.phase
    return phase is None or phase.within(phase_s * (1 + KNOT)) > 0


def _alone_s(prices: Prices, placed: Placed, each: Making) -> float:
    """What the path and the link of one pool need, as if only it generated."""
    region = _region_times(placed, (each,), 0.0)[0]
    path_s = placed.training_s + placed.scoring_s + region.weights_s + region.trajectories_s + region.group_s
    links = [need for _, need in _link_needs(placed, _receiving(placed, (each,)), with_critics=False)]
    return max([path_s / (prices.problem.workload.eta + 1), *links])


def _critics(prices: Prices, placement: Placement) -> dict[tuple[str, str], CriticWay] | Violation:
    """From where to where the critic's weights go each step."""
    if not {Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE} <= set(prices.problem.workload.models):
        return {}
    trains, scores = placement.group_of(Task.CRITIC_TRAINING), placement.group_of(Task.CRITIC_INFERENCE)
    if trains is scores:
        return {}
    src = prices.classes[trains.pools[0].device_class].region.name
    found = {}
    for dst in regions_of(prices, scores):
        way = critic_way(prices, src, dst)
        if way is None:
            return Violation(kind="link", what=f"no route from {src} to {dst} for the critic's weights")
        found[src, dst] = way
    return found


def _busy_s(prices: Prices, placement: Placement, priced: Sequence[Sequence[PoolPrice]]) -> dict[Task, float]:
    samples = prices.problem.workload.samples_per_step
    busy: dict[Task, float] = {}
    for group, of_group in zip(placement.groups, priced, strict=True):
        if group.trains:
            busy |= {task: each.total_s for task, each in prices.mesh(group.tasks, group.pools).times.items()}
        for task in (task for task in group.tasks if task in SCORING):
            rate = sum(p.num_units * price.rates[task] for p, price in zip(group.pools, of_group, strict=True))
            busy[task] = samples / rate
    return busy


def _phases_s(prices: Prices, placement: Placement, start: Home, busy: Mapping[Task, float]) -> tuple[float, float]:
    """(training, scoring): each the longest over groups, ways included."""
    training_s, scoring_s = 0.0, 0.0
    for group in placement.groups:
        ways = [start.ways[name] for name in regions_of(prices, group)]
        if group.trains:
            away_s = max(way.training_s for way in ways)
            training_s = max(training_s, away_s + sum(busy[task] for task in group.tasks if task in TRAINING))
        if any(task in SCORING for task in group.tasks):
            away_s = max(way.scoring_s for way in ways)
            scoring_s = max(scoring_s, away_s + sum(busy[task] for task in group.tasks if task in SCORING))
    return training_s, scoring_s


def _generation_s(prices: Prices, start: Home, active: Sequence[Making]) -> float:
    """Busy seconds a step, or the whole phase."""
    samples = float(prices.problem.workload.samples_per_step)
    regions = sorted({each.region for each in active})
    if active[0].price.phase is None:
        here, far = 0.0, 0.0
        for name in regions:
            rate = sum(m.num_units * m.price.rates[Task.GENERATION] for m in active if m.region == name)
            if name == start.name:
                here = rate
            else:
                far += min(rate, start.ways[name].samples_per_s)
        return samples / (here + min(far, start.samples_per_s))
    seconds = prices.phase_seconds
    whole, remote = np.zeros(len(seconds)), np.zeros(len(seconds))
    for name in regions:
        made = np.zeros(len(seconds))
        for each in (m for m in active if m.region == name):
            assert each.price.phase is not None
            made = made + each.num_units * each.price.phase.samples
        if name == start.name:
            whole = made
        else:
            remote = remote + np.minimum(made, seconds * start.ways[name].samples_per_s)
    if remote.any():
        whole = whole + np.minimum(remote, seconds * start.samples_per_s)
    return end_s(seconds, whole, samples)


def _region_times(placed: Placed, active: Sequence[Making], phase_s: float) -> tuple[RegionTimes, ...]:
    """Of each region that generates, by name."""
    receives = _receiving(placed, active)
    found = []
    for name in sorted({each.region for each in active}):
        way, here = placed.home.ways[name], [each for each in active if each.region == name]
        weights_s = 0.0
        if name in receives:
            critic = placed.critics.get((placed.home.name, name))
            alone_s = way.link_s + (critic.link_s if critic else 0.0)
            weights_s = max(alone_s, placed.home.uplink_s * len(receives)) + way.weights_s - way.link_s
        found.append(
            RegionTimes(
                region=name,
                weights_s=weights_s,
                trajectories_s=way.trajectories_s,
                group_s=max(each.price.group_s for each in here) if here[0].price.phase is None else phase_s,
            )
        )
    return tuple(found)


def _receiving(placed: Placed, active: Sequence[Making]) -> list[str]:
    """Regions that are sent each version."""
    return sorted({each.region for each in active if not each.has_version and each.region != placed.home.name})


def _link_needs(placed: Placed, receives: Sequence[str], *, with_critics: bool = True) -> Iterator[tuple[str, float]]:
    """`with_critics`: links that only the critic's weights use, too."""
    links = {(placed.home.name, name): placed.home.ways[name].link_s for name in receives}
    for ends, way in placed.critics.items():
        if with_critics or ends in links:
            links[ends] = links.get(ends, 0.0) + way.link_s
    for (src, dst), link_s in sorted(links.items()):
        if src != dst:
            yield f"link:{src}>{dst}", link_s
    if receives and placed.home.uplink_s:
        yield f"up:{placed.home.name}", placed.home.uplink_s * len(receives)


def _usd_per_step(prices: Prices, placed: Placed, active: Sequence[Making]) -> float:
    """Egress: versions to each region; samples home at the dearest way among them, and to where they are scored and
    trained on; the critic's weights; gradients between a mesh's regions."""
    ways = placed.home.ways
    usd = sum(ways[name].usd_per_version for name in _receiving(placed, active))
    usd += max(ways[each.region].usd_per_step_home for each in active)
    for group in placed.placement.groups:
        here = [ways[name] for name in regions_of(prices, group) if name != placed.home.name]
        if any(task in SCORING for task in group.tasks):
            usd += max((way.usd_per_step_there + way.usd_per_step_home for way in here), default=0.0)
        if group.trains:
            usd += max((way.usd_per_step_there for way in here), default=0.0)
            ring = prices.ring_usd_per_gbyte([prices.classes[p.device_class].region.name for p in group.pools])
            usd += ring * prices.gradient_bytes(group.tasks) / 1e9
    return usd + sum(way.usd_per_version for way in placed.critics.values())
