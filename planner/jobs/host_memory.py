"""Removal of rollout workers for which a host has no memory.

A device is one process's own, but the host's memory is what several take together. A job that fits a host with its
fewest workers (`Needs.has_room`) may be given one for each accelerator there, and so more than the memory allows.
"""

from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Incumbent
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.jobs.needs import Needs
from planner.problem.fleet import Fleet
from planner.problem.workload import Task


def within_memory(cost_tables: CostTables, found: Incumbent, fleet: Fleet, needs: Needs) -> Incumbent:
    """Return the placement with as many workers as the hosts of `fleet` have memory for, beside the trainer.

    It stays as it is if that leaves no valid placement.
    """
    trainer_region, left = trainer_region_of(cost_tables, found.placement), dict[str, int]()
    for region in fleet.regions:
        if region.memory_bytes:
            beside_bytes = needs.trainer_memory_bytes if region.name == trainer_region else 0
            left[region.name] = max(0, region.memory_bytes - beside_bytes) // needs.rollout_memory_bytes
    group, pools = found.placement.group_of(Task.GENERATION), []
    for pool in group.pools:
        name = cost_tables.classes[pool.device_class].region.name
        workers_per_unit = pool.unit_gpus // pool.layout(Task.GENERATION).tensor
        num_units = min(pool.num_units, left.get(name, pool.num_units * workers_per_unit) // workers_per_unit)
        if name in left:
            left[name] -= num_units * workers_per_unit
        if num_units:
            pools.append(pool.resized(num_units))
    fewer = replace(group, pools=tuple(pools))
    # The units of a group that trains are its mesh as well.
    if fewer == group or not pools or group.trains:
        return found
    placement = Placement(groups=tuple(fewer if each is group else each for each in found.placement.groups))
    evaluation = evaluate(cost_tables, placement)
    return replace(found, placement=placement, evaluation=evaluation) if isinstance(evaluation, Evaluation) else found
