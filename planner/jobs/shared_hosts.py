"""Regions on one machine: how much longer their processes take because they share its cores.

The system gives a core to whoever needs one. So processes of one machine are no slower than alone until all of them
together need more core seconds in a step than the step has. Then the step is as long as their core seconds on all
cores.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from planner.answer.outcome import Incumbent
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.jobs.hosts import core_of
from planner.plan import Plan, TaskKind
from planner.problem.fleet import Fleet
from planner.problem.workload import Task


def slowdowns(fleet: Fleet, cost_tables: CostTables, found: Incumbent, plan: Plan) -> Mapping[str, float]:
    """Return how many times longer than alone the processes on each shared machine take under a plan; 1 is left out.

    In a synchronous job the workers share the cores with each other alone, since the trainer waits meanwhile.
    """
    workload, evaluation = cost_tables.problem.workload, found.evaluation
    hosts = {region.name: region.host for region in fleet.regions if region.host}
    cores = {region.host: region.num_cores for region in fleet.regions if region.host and region.num_cores}
    busy_s, workers = defaultdict[str, float](float), defaultdict[str, int](int)
    group = found.placement.group_of(Task.GENERATION)
    rates = {}
    for pool in group.pools:
        cost, at = cost_tables.pool(group.tasks, pool), cost_tables.classes[pool.device_class]
        if isinstance(cost, UnitCost) and at.gpu.is_cpu:
            rates[at.region.name] = cost.rates[Task.GENERATION]
    for each in plan.assignments:
        host = hosts.get(each.region, "")
        if each.task is TaskKind.ROLLOUT and each.region in rates:
            busy_s[host] += (each.share or 0.0) * workload.samples_per_step / rates[each.region]
            workers[host] += each.num_workers
        elif each.task is TaskKind.TRAINER and not each.device and workload.eta:
            trained_s = sum(seconds for task, seconds in evaluation.task_s if task is not Task.GENERATION)
            busy_s[host] += trained_s * each.data
    if not workload.eta:
        longer = {host: workers[host] / num for host, num in cores.items()}
    else:
        longer = {host: busy_s[host] / (num * evaluation.step_s) for host, num in cores.items()}
    return {host: by for host, by in longer.items() if by > 1.0}


def slowed(fleet: Fleet, by: Mapping[str, float], *, training: bool) -> Fleet:
    """Return the fleet with cores that take so many times longer, by machine; without `training` for generation."""
    types, regions = dict(fleet.gpu_types), []
    for region in fleet.regions:
        if region.host not in by:
            regions.append(region)
            continue
        core, name, longer = core_of(fleet, region), f"core of {region.name}", by[region.host]
        trains = core.for_training.efficiency
        types[name] = replace(
            core,
            name=name,
            efficiency=core.efficiency.slowed(longer),
            training=trains.slowed(longer) if training else trains,
        )
        regions.append(replace(region, core=name))
    return replace(fleet, regions=tuple(regions), gpu_types=types)
