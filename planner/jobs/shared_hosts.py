"""Machines whose cores many processes share: how much longer these take because of each other.

The system gives a core to whoever needs one. So processes of one machine are no slower than alone until all of them
together need more core seconds in a step than the step has. Then the step is as long as their core seconds on all
cores. Beside trainer and workers, gateways and threads of the trainer need cores for each sample and each version. This
counts where regions share a machine, and where a region's cores were measured.

A worker's slots are not always full: each version frees as many samples as a step has, these start together, and a
decoding step of few sequences takes nearly as long as one of many. So a worker computes for the seconds of such a
phase, or all the time where phases overlap.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from planner.answer.outcome import Incumbent
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.generation import SLOTS, Replica
from planner.jobs.hosts import core_of
from planner.plan import Plan, TaskKind
from planner.problem.fleet import Fleet, Region
from planner.problem.workload import Task

BUSY_SHARE = 0.94
"""Share of the time for which all cores are busy where they bind. Measured: 0.92 to 0.96 on two cores
(bench/results/2026-11-27-end-to-end.md)."""
OTHERS_PER_SAMPLE = 0.2
"""Core seconds that gateways spend on a sample, over those of its worker beside the model. Measured there for the demo:
0.25 ms over 0.97."""
OTHERS_PER_VERSION = 1.2
"""Core seconds of the trainer's other threads and of gateways for a version, over the seconds until it is held.
Measured there, for the demo and 4.7 M parameters."""


def slowdowns(fleet: Fleet, cost_tables: CostTables, found: Incumbent, plan: Plan) -> Mapping[str, float]:
    """Return how many times longer than alone the processes on each machine take under a plan; 1 is left out.

    Machines have the name of their `host_of`. In a synchronous job the workers share the cores with each other alone,
    since the trainer waits meanwhile.
    """
    workload, step_s = cost_tables.problem.workload, found.evaluation.step_s
    regions = {region.name: region for region in fleet.regions}
    cores = {host: region.num_cores for region in fleet.regions if region.num_cores and (host := host_of(region))}
    busy_s, workers = defaultdict[str, float](float), defaultdict[str, int](int)
    trained_s = sum(seconds for task, seconds in found.evaluation.task_s if task is not Task.GENERATION)
    for each in plan.assignments:
        # A plan may leave open which of a region's accelerators a process gets.
        if each.device or not all(fleet.gpu_types[kind.gpu].is_cpu for kind in regions[each.region].machines):
            continue
        core = core_of(fleet, regions[each.region])
        host, fit = host_of(regions[each.region]), core.efficiency
        if each.task is TaskKind.ROLLOUT and each.share:
            samples = each.share * workload.samples_per_step / each.num_workers
            phase_s = Replica(workload, core, 1).phase_s(samples, len(SLOTS) - 1)
            busy_s[host] += fit.busy_cores * each.num_workers * min(phase_s, step_s)
            workers[host] += each.num_workers
        elif each.task is TaskKind.TRAINER:
            busy_s[host] += trained_s * each.data
            busy_s[host] += OTHERS_PER_SAMPLE * fit.sample_overhead_s * workload.samples_per_step
            busy_s[host] += OTHERS_PER_VERSION * fit.version_overhead_s
    if not workload.eta:
        longer = {host: workers[host] / num for host, num in cores.items()}
    else:
        longer = {host: busy_s[host] / (num * step_s * BUSY_SHARE) for host, num in cores.items()}
    return {host: by for host, by in longer.items() if by > 1.0}


def host_of(region: Region) -> str:
    """Return the name of the machine whose cores the region's processes share; empty if that is not counted."""
    return region.host or (f"host of {region.name}" if region.core else "")


def slowed(fleet: Fleet, by: Mapping[str, float], *, training: bool) -> Fleet:
    """Return the fleet with cores that take so many times longer, by machine; without `training` for generation."""
    types, regions = dict(fleet.gpu_types), []
    for region in fleet.regions:
        longer = by.get(host_of(region))
        if longer is None:
            regions.append(region)
            continue
        core, name = core_of(fleet, region), f"core of {region.name}"
        trains = core.for_training.efficiency
        types[name] = replace(
            core,
            name=name,
            efficiency=core.efficiency.slowed(longer),
            training=trains.slowed(longer) if training else trains,
        )
        regions.append(replace(region, core=name))
    return replace(fleet, regions=tuple(regions), gpu_types=types)
