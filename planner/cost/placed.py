"""A placement taken apart: whether its pools fit, and every term that does not depend on how generation goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Placement
from planner.cost import shape
from planner.cost.pools import PoolPrice, Prices
from planner.cost.ways import CriticWay, Home, critic_way, home
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
    critic_scoring_s: float
    """Of the group that infers with the critic."""
    critics: Mapping[tuple[str, str], CriticWay]
    """Ways of the critic's weights."""

    @property
    def generating(self) -> Group:
        return self.placement.group_of(Task.GENERATION)


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
    training_s, scoring_s, critic_scoring_s = _phases_s(prices, placement, start, busy)
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
        critic_scoring_s=critic_scoring_s, critics=critics,
    )  # fmt: skip


def trainer_region(prices: Prices, placement: Placement) -> str:
    """Where versions are published: the region of the actor mesh's first pool."""
    return prices.classes[placement.group_of(Task.ACTOR_TRAINING).pools[0].device_class].region.name


def regions_of(prices: Prices, group: Group) -> list[str]:
    return sorted({prices.classes[pool.device_class].region.name for pool in group.pools})


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


def _phases_s(
    prices: Prices, placement: Placement, start: Home, busy: Mapping[Task, float]
) -> tuple[float, float, float]:
    """(training, scoring, scoring of the group that infers with the critic), ways included: the longest over groups."""
    training_s, scoring_s, critic_s = 0.0, 0.0, 0.0
    for group in placement.groups:
        ways = [start.ways[name] for name in regions_of(prices, group)]
        if group.trains:
            away_s = max(way.training_s for way in ways)
            training_s = max(training_s, away_s + sum(busy[task] for task in group.tasks if task in TRAINING))
        if any(task in SCORING for task in group.tasks):
            away_s = max(way.scoring_s for way in ways)
            group_s = away_s + sum(busy[task] for task in group.tasks if task in SCORING)
            scoring_s = max(scoring_s, group_s)
            critic_s = group_s if Task.CRITIC_INFERENCE in group.tasks else critic_s
    return training_s, scoring_s, critic_s
