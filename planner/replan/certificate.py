"""Carry a lower bound that was proved for one fleet over to a changed fleet.

*Links.* Suppose no link, round trip or gateway of the new fleet is more than f times as good as before (f >= 1). Every
time in the oracle is a sum of computing, which stays the same, and of transfers, which take at least 1 / f of what they
took. So within f times a step of the new fleet, the old fleet makes the step's samples too. No step on the new fleet is
below bound / f.

*Machines.* Fewer machines only remove placements. Pools that idle may be left out of a placement, so a different order
in which regions idle makes no placement better than all old ones. With more machines nothing is known.

*Tables.* Phase tables are interpolated on a grid of seconds that depends on the kinds of machines in the fleet. On
another grid, f is at least the factor that compensates for the difference (`planner.replan.stretch`).

If dollars count, nothing is claimed when a price fell. If dollars are minimised at a given throughput, the objective
does not shrink with times, so the bound holds only for f = 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.network import Route
from planner.problem.fleet import Fleet, Machines, Region
from planner.problem.goal import Objective
from planner.replan.stretch import stretch


def carried(bound: float | None, was: CostTables, now: CostTables) -> float | None:
    """Return a lower bound on the objective value on `now`'s fleet, if `bound` holds on `was`'s fleet.

    None means that nothing is known.
    """
    old, new = was.problem, now.problem
    # Anything but the fleet has changed: another goal, rule or workload has another optimum.
    if bound is None or replace(old, fleet=new.fleet) != new:
        return None
    # New machines could make placements that the old bound never saw.
    if not now.classes or not _has_no_more(old.fleet, new.fleet):
        return None
    faster = max(stretch(was, now), *_ratios(was, now, {region.name for region in new.fleet.regions}))
    # Nothing became faster, so every placement takes at least what it took before.
    if faster <= 1.0:
        return bound
    if faster == np.inf or new.goal.objective is Objective.COST_AT_THROUGHPUT:
        return None
    return bound / faster


def _has_no_more(was: Fleet, now: Fleet) -> bool:
    """Return whether every machine of `now` is one of `was`."""
    before = {region.name: region for region in was.regions}
    if any(was.gpu_types.get(name) != each for name, each in now.gpu_types.items()):
        return False
    return all(
        (old := before.get(region.name)) is not None
        and _plain(old) == _plain(region)
        and _is_within(_counts(region), _counts(old))
        for region in now.regions
    )


def _plain(region: Region) -> Region:
    """Return the region without its machines and gateways."""
    return replace(region, machines=(), wan_up_bytes_per_s=None, wan_down_bytes_per_s=None, is_public=True)


def _counts(region: Region) -> Mapping[Machines, int]:
    found: dict[Machines, int] = {}
    for machines in region.machines:
        one = replace(machines, num_machines=1)
        found[one] = found.get(one, 0) + machines.num_machines
    return found


def _is_within(few: Mapping[Machines, int], many: Mapping[Machines, int]) -> bool:
    return all(num <= many.get(machines, 0) for machines, num in few.items())


def _ratios(was: CostTables, now: CostTables, names: set[str]) -> Iterator[float]:
    """Yield by which factor each route and gateway between regions got better."""
    for src in sorted(names):
        yield _cap(was.network.up_bytes_per_s(src), now.network.up_bytes_per_s(src))
        yield _cap(was.network.down_bytes_per_s(src), now.network.down_bytes_per_s(src))
        for dst in sorted(names - {src}):
            yield _route(was.network.route(src, dst), now.network.route(src, dst), was.problem.goal.counts_usd)


def _cap(was: float | None, now: float | None) -> float:
    """Return the factor by which a cap was raised; inf if it was lifted."""
    if not was or was == now:  # a gateway without a cap cannot get better
        return 1.0
    return now / was if now else np.inf


def _route(was: Route | None, now: Route | None, counts_dollars: bool) -> float:
    """Return the factor by which a route got better; inf if it is new, or cheaper where dollars count."""
    if now is None or was == now:
        return 1.0
    if was is None or (counts_dollars and now.usd_per_gbyte < was.usd_per_gbyte):
        return np.inf
    rtt = was.rtt_s / now.rtt_s if now.rtt_s > 0 else 1.0 if was.rtt_s == 0 else np.inf
    return max(now.bytes_per_s / was.bytes_per_s, rtt)
