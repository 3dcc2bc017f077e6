"""Cost of going from one placement to another, in seconds for which the whole job would stand still.

- Units that start load weights over the link from the trainer's region (or over the fabric) and start an engine. Until
  then their share of the task's rate is missing.
- Units that generate and stop lose the tokens of running groups: half a group's time on average. What is lost with its
  machines is lost in any case and does not count.
- If the mesh of the trainer changes at all, or has lost devices, the trainer stops, its state moves, and it restarts.
"""

from dataclasses import dataclass

from planner.answer.placement import Group, Placement, Pool
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.problem.workload import TRAINING, Task
from planner.replan.moves import Lost, Uses, staying, use_of, uses


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPolicy:
    """When a change is worth its cost, and how much of the job it may touch. The defaults are chosen by hand."""

    horizon_s: float = 3600.0
    """Seconds for which the new placement is expected to stay."""
    hysteresis: float = 0.02
    """Relative gain in steps over the horizon that a change must bring beyond its own costs."""
    max_moved: float = 0.10
    """Largest share of the running plan's devices that may move. It is exceeded only if nothing else runs."""
    unit_start_s: float = 30.0
    """Seconds until an engine has started, with weights on the machine."""
    trainer_restart_s: float = 60.0
    """Seconds until the training processes have restarted, with their state at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Seconds that the whole job loses, by cause."""

    reload_s: float
    lost_s: float
    restart_s: float

    @property
    def total_s(self) -> float:
        """Sum of all causes."""
        return self.reload_s + self.lost_s + self.restart_s


def migration(
    cost_tables: CostTables, running: Placement, target: Placement, policy: MigrationPolicy, lost: Lost | None = None
) -> Migration:
    """Return the cost of going from `running` to `target`.

    Both belong to the problem of `cost_tables`, but `running` may need machines that are gone. `lost` names devices
    that are gone.
    """
    stays, trainer_region = staying(running, lost or {}), trainer_region_of(cost_tables, target)
    # Groups reload side by side, so the longest counts; so do restarts of several meshes.
    reload_s = [
        _reload_s(cost_tables, stays, group, trainer_region, policy) for group in target.groups if not group.trains
    ]
    makes = next((group for group in running.groups if Task.GENERATION in group.tasks and not group.trains), None)
    return Migration(
        reload_s=max(reload_s, default=0.0),
        lost_s=_lost_s(cost_tables, stays, makes, target) if makes else 0.0,
        restart_s=max(
            (restart_s(cost_tables, running, stays, group, policy) for group in target.groups if group.trains),
            default=0.0,
        ),
    )


def unit_start_s(
    cost_tables: CostTables, tasks: tuple[Task, ...], pool: Pool, trainer_region: str, policy: MigrationPolicy
) -> float:
    """Return the seconds until a new unit of that pool works."""
    region = cost_tables.classes[pool.device_class].region.name
    route = cost_tables.network.route(trainer_region, region)
    models = cost_tables.problem.workload.models
    # Two bytes per parameter of each task's model, over the route from the trainer's region.
    size = sum(2.0 * models[task].num_params for task in tasks)
    return policy.unit_start_s + (size / route.bytes_per_s if route else 0.0)


def unit_rate(cost_tables: CostTables, tasks: tuple[Task, ...], pool: Pool) -> float:
    """Return the samples per second of one unit, for the slowest of the group's tasks.

    It is 0 for a class that the fleet does not have.
    """
    price = cost_tables.pool(tasks, pool) if pool.device_class in cost_tables.classes else None
    return min(price.rates[task] for task in tasks) if isinstance(price, UnitCost) else 0.0


def group_rate(cost_tables: CostTables, group: Group) -> float:
    """Return the samples per second of all units of a group without training."""
    return sum(pool.num_units * unit_rate(cost_tables, group.tasks, pool) for pool in group.pools)


def unit_stop_s(cost_tables: CostTables, tasks: tuple[Task, ...], pool: Pool) -> float:
    """Return the seconds of work that a generating unit loses when it stops: half a group's time."""
    price = cost_tables.pool(tasks, pool) if pool.device_class in cost_tables.classes else None
    return price.group_s / 2 if isinstance(price, UnitCost) else 0.0


def restart_s(cost_tables: CostTables, running: Placement, stays: Uses, group: Group, policy: MigrationPolicy) -> float:
    """Return the seconds for which the trainer stands still if its devices become `group`; 0 if nothing changes."""
    before = next((each for each in running.groups if each.tasks == group.tasks), None)
    if before == group and all(_num_staying(stays, group, pool) >= pool.num_gpus for pool in group.pools):
        return 0.0
    workload = cost_tables.problem.workload
    bytes_ = sum(
        workload.train_state_bytes_per_param * workload.models[task].num_params
        for task in group.tasks
        if task in TRAINING
    )
    # The state moves between the first pools' regions. Without a route, or if the old region is gone, the slowest
    # fabric stands in.
    src = _region(cost_tables, before.pools[0]) if before else None
    dst = _region(cost_tables, group.pools[0])
    route = cost_tables.network.route(src, dst) if src and dst else None
    rate = route.bytes_per_s if route else min(at.region.fabric_bytes_per_s for at in cost_tables.classes.values())
    return policy.trainer_restart_s + bytes_ / max(rate, 1e-9)


def _reload_s(
    cost_tables: CostTables, stays: Uses, group: Group, trainer_region: str, policy: MigrationPolicy
) -> float:
    """Return the missing share of a group's rate while new units start, times the seconds that they need."""
    lacking = 0.0
    for pool in group.pools:
        new = max(0, pool.num_gpus - _num_staying(stays, group, pool)) / pool.unit_gpus
        if new > 0:
            rate = unit_rate(cost_tables, group.tasks, pool)
            # Rate that is missing x seconds for which it is missing.
            lacking += new * rate * unit_start_s(cost_tables, group.tasks, pool, trainer_region, policy)
    return lacking / max(group_rate(cost_tables, group), 1e-12)


def _lost_s(cost_tables: CostTables, stays: Uses, group: Group, target: Placement) -> float:
    """Return the share of generation's rate in stopping units, times the seconds that they lose."""
    will, lost = uses(target), 0.0
    for pool in group.pools:
        use = use_of(group.tasks, pool)
        # Devices of this use that go on in the target; what is lost with its machines is not in `stays`.
        left = will.get(pool.device_class, {}).get(use, 0)
        gone = max(0, min(pool.num_gpus, _num_staying(stays, group, pool)) - left) / pool.unit_gpus
        lost += gone * unit_rate(cost_tables, group.tasks, pool) * unit_stop_s(cost_tables, group.tasks, pool)
    return lost / max(group_rate(cost_tables, group), 1e-12)


def _num_staying(stays: Uses, group: Group, pool: Pool) -> int:
    return stays.get(pool.device_class, {}).get(use_of(group.tasks, pool), 0)


def _region(cost_tables: CostTables, pool: Pool) -> str | None:
    at = cost_tables.classes.get(pool.device_class)
    return at.region.name if at else None
