"""Units that a re-plan chooses among, for groups of the running plan without training.

These are all units that no other unit dominates, and the running plan's own units even if they are dominated.
"""

from dataclasses import replace

from planner.answer.placement import Group, Pool
from planner.cost.candidates.columns import UnitColumn, unit_columns
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.validity import of_group


def units_for(cost_tables: CostTables, group: Group) -> tuple[UnitColumn, ...]:
    """Return the units of a group without training, sorted by class."""
    listed = unit_columns(cost_tables, group.tasks)
    known = {(each.unit.device_class, each.unit.unit_gpus, each.unit.layouts) for each in listed}
    own = [pool for pool in group.pools if (pool.device_class, pool.unit_gpus, pool.layouts) not in known]
    found = (*listed, *(column for pool in own if (column := _unit(cost_tables, group, pool)) is not None))
    return tuple(sorted(found, key=lambda column: column.unit.device_class))


def _unit(cost_tables: CostTables, group: Group, pool: Pool) -> UnitColumn | None:
    at, one = cost_tables.classes.get(pool.device_class), replace(pool, num_units=1)
    # The class may be gone, and rules may have changed, so the running unit is checked like any other.
    if at is None or any(of_group(cost_tables, replace(group, pools=(one,)))):
        return None
    price = cost_tables.pool(group.tasks, one)
    if not isinstance(price, UnitCost):
        return None
    return UnitColumn(
        unit=one,
        region=at.region.name,
        rates=price.rates,
        phase=price.phase,
        usd_per_hour=one.num_gpus * (at.usd_per_gpu_hour or 0.0),
    )
