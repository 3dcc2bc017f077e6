"""From offered hosts to the planner's devices: one device is what one worker process computes with.

There is one question for each region that may host the trainer: there, the host runs the trainer beside its rollout
workers, if it has the memory for both; the others run workers alone. A process has one thread by default, so a device
is one core, or less where a host has fewer cores than processes. Its memory is the host's: what processes take
together is no property of a device, and is held here.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.catalogue import CPU, gpu_types
from planner.jobs.needs import Needs
from planner.jobs.refusals import obstacle
from planner.question.fleet import ONE_HOST_BYTES_PER_S, Fleet, Machines, Region
from planner.question.goal import Goal, Limits, Problem, Rules
from planner.question.hardware import GpuType
from planner.question.workload import Task, Workload

_UNBOUNDED_BYTES = 1 << 50
"""Memory of a host that does not say how much it has."""


def regions_without_cores(fleet: Fleet, needs: Needs) -> tuple[str, ...]:
    """Regions that a job may use but that say nothing of their hosts: neither cores nor machines of cores."""
    return tuple(
        region.name
        for region in fleet.regions
        if (needs.may_train(region.name) or needs.may_roll_out(region.name))
        and not region.num_cores
        and not any(fleet.gpu_types[machines.gpu].is_cpu for machines in region.machines)
    )


def problems(fleet: Fleet, needs: Needs, workload: Workload, limits: Limits) -> Iterator[tuple[str, Problem]]:
    """Each region that the trainer fits into, by name, and the question with the trainer there."""
    for home in sorted(fleet.regions, key=lambda region: region.name):
        if not needs.may_train(home.name) or obstacle(fleet, needs, home):
            continue
        workers = frozenset(
            region.name
            for region in fleet.regions
            if needs.may_roll_out(region.name) and needs.has_room(region, trains=region == home, rolls_out=True)
        )
        yield home.name, _problem(fleet, needs, workload, limits, home.name, workers)


def _problem(
    fleet: Fleet, needs: Needs, workload: Workload, limits: Limits, home: str, workers: frozenset[str]
) -> Problem:
    where = {task: workers if task is Task.GENERATION else frozenset({home}) for task in workload.tasks}
    rules = Rules(
        pins=tuple(where.items()),
        max_regions=needs.max_regions,
        min_regions=needs.min_regions,
        generating=frozenset(needs.rollout_regions or ()),
    )
    return Problem(fleet=_processes(fleet, needs, home), workload=workload, goal=Goal(), rules=rules, limits=limits)


def _processes(fleet: Fleet, needs: Needs, home: str) -> Fleet:
    """The fleet with worker processes for devices, whatever machines its regions have."""
    types: dict[str, GpuType] = {}
    core = fleet.gpu_types.get(CPU) or gpu_types()[CPU]
    regions = []
    for region in fleet.regions:
        num = needs.workers_per_region + (region.name == home)
        gpu = _process(core, region, num)
        types[gpu.name] = gpu
        machines = Machines(gpu=gpu.name, gpus_per_machine=num, num_machines=1)
        regions.append(replace(region, machines=(machines,), fabric_bytes_per_s=ONE_HOST_BYTES_PER_S))
    return Fleet(regions=tuple(regions), links=fleet.links, gpu_types=dict(sorted(types.items())))


def _process(core: GpuType, region: Region, num: int) -> GpuType:
    """What each of `num` processes has of the host."""
    share = min(1.0, region.num_cores / num) if region.num_cores else 1.0
    memory = region.memory_bytes or _UNBOUNDED_BYTES
    return replace(
        core,
        name=f"{CPU}-{share:g}c-{memory}b",
        memory_bytes=memory,
        memory_bytes_per_s=core.memory_bytes_per_s * share,
        matmul_flop_per_s=core.matmul_flop_per_s * share,
        is_cpu=True,
    )
