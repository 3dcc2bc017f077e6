"""What it costs to go from one placement to another, in seconds in which the whole job would stand still.

- Units that start: they load weights over the link from the trainer's region (or the region's fabric) and start an
  engine; meanwhile their part of the task's rate is missing.
- Units that generate and stop: the tokens of running groups are made again, half a group's time on average.
- The trainer: if its mesh changes at all, it stops, its state goes where it must, and it starts again.
"""

from dataclasses import dataclass

from planner.answer.placement import Group, Placement, Pool
from planner.cost.oracle import trainer_region
from planner.cost.pools import PoolPrice, Prices
from planner.question.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a change is worth its price."""

    horizon_s: float = 3600.0
    """So long the new placement is expected to stay."""
    hysteresis: float = 0.02
    """Part of the steps within the horizon that a change must add beyond its own costs."""
    unit_start_s: float = 30.0
    """Of an engine, with weights on the machine."""
    trainer_restart_s: float = 60.0
    """Of the training processes, with their state at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Seconds of the whole job, by cause."""

    reload_s: float
    lost_s: float
    restart_s: float

    @property
    def total_s(self) -> float:
        return self.reload_s + self.lost_s + self.restart_s


def migration(prices: Prices, a: Placement, b: Placement, policy: Policy) -> Migration:
    """From `a` to `b`; both of the problem of `prices`, though `a` may need machines that are gone."""
    home = trainer_region(prices, b)
    reload_s = lost_s = 0.0
    for group in b.groups:
        if not group.trains:
            reload_s = max(reload_s, _reload_s(prices, a, group, home, policy))
    for group in a.groups:
        if Task.GENERATION in group.tasks and not group.trains:
            lost_s += _lost_s(prices, group, b)
    return Migration(reload_s=reload_s, lost_s=lost_s, restart_s=_restart_s(prices, a, b, policy))


def unit_reload_s(prices: Prices, tasks: tuple[Task, ...], pool: Pool, home: str, policy: Policy) -> float:
    """Until a new unit of that pool works."""
    region = prices.classes[pool.device_class].region.name
    route = prices.network.route(home, region)
    models = prices.problem.workload.models
    size = sum(2.0 * models[task].num_params for task in tasks)
    return policy.unit_start_s + (size / route.bytes_per_s if route else 0.0)


def _reload_s(prices: Prices, a: Placement, group: Group, home: str, policy: Policy) -> float:
    lacking = 0.0
    rates = _rates(prices, group)
    for pool, rate in zip(group.pools, rates, strict=True):
        new = pool.num_units - _units_in(a, group.tasks, pool)
        if new > 0:
            lacking += new / pool.num_units * rate * unit_reload_s(prices, group.tasks, pool, home, policy)
    return lacking / max(sum(rates), 1e-12)


def _lost_s(prices: Prices, group: Group, b: Placement) -> float:
    lost, total = 0.0, 0.0
    for pool in group.pools:
        price = prices.pool(group.tasks, pool) if pool.device_class in prices.classes else None
        if not isinstance(price, PoolPrice):
            continue
        gone = max(0, pool.num_units - _units_in(b, group.tasks, pool))
        rate = price.rates[Task.GENERATION]
        total += pool.num_units * rate
        lost += gone * rate * price.group_s / 2
    return lost / total if total else 0.0


def _restart_s(prices: Prices, a: Placement, b: Placement, policy: Policy) -> float:
    """Of the training processes of all groups whose mesh changes; they restart at once."""
    longest = 0.0
    workload = prices.problem.workload
    for group in b.groups:
        before = next((each for each in a.groups if each.tasks == group.tasks), None)
        if not group.trains or before == group:
            continue
        bytes_ = sum(
            workload.train_state_bytes_per_param * workload.models[task].num_params
            for task in group.tasks
            if task in TRAINING
        )
        src = _region(prices, before.pools[0]) if before else None
        dst = _region(prices, group.pools[0])
        route = prices.network.route(src, dst) if src and dst else None
        rate = route.bytes_per_s if route else min(at.region.fabric_bytes_per_s for at in prices.classes.values())
        longest = max(longest, policy.trainer_restart_s + _transfer_s(bytes_, rate))
    return longest


def _transfer_s(size_bytes: float, bytes_per_s: float) -> float:
    return size_bytes / max(bytes_per_s, 1e-9)


def _region(prices: Prices, pool: Pool) -> str | None:
    at = prices.classes.get(pool.device_class)
    return at.region.name if at else None


def _rates(prices: Prices, group: Group) -> list[float]:
    found = []
    for pool in group.pools:
        price = prices.pool(group.tasks, pool)
        assert isinstance(price, PoolPrice)
        found.append(pool.num_units * min(price.rates[task] for task in group.tasks))
    return found


def _units_in(placement: Placement, tasks: tuple[Task, ...], pool: Pool) -> int:
    return sum(
        each.num_units
        for group in placement.groups
        if group.tasks == tasks
        for each in group.pools
        if (each.device_class, each.unit_gpus, each.layouts) == (pool.device_class, pool.unit_gpus, pool.layouts)
    )
