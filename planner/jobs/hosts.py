"""Turn hosts into devices: one device is what one process computes with.

There is one problem for each region that may host the trainer, or two. A region without accelerators is one host, which
runs the trainer next to its rollout workers, if it has the memory for both; a process gets a core there, since it has
one thread by default, or a share of one where there are fewer cores than processes. It also gets the whole host's
memory: what several take together is not a property of a device, so it is checked here instead.

A region with accelerators is planned on these as they are. If it has too few of them for the trainer beside a worker, a
second problem lets the processes share them, and so does a job that wants a number of workers for each region: there a
device is what one process has, all that a worker's engine is divided over or a share of one.
"""

from collections.abc import Iterator
from dataclasses import replace

from periplus.job.train_section import SMALL_MODEL, ShardingChoice
from planner.devices.catalogue import CPU, gpu_types
from planner.jobs.needs import Needs
from planner.jobs.refusals import obstacle
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Machines, Region
from planner.problem.goal import Limits, Problem, Rules
from planner.problem.hardware import GpuType
from planner.problem.workload import Task, Workload

_UNBOUNDED_BYTES = 1 << 50
"""Memory in bytes that is assumed of a host that does not state it."""


def problems(fleet: Fleet, needs: Needs, workload: Workload, limits: Limits) -> Iterator[tuple[str, Problem]]:
    """Yield (region, problem with the trainer there), by name, for each region that may host the trainer.

    Regions that fail a check of `refusals.obstacle` are left out.
    """
    for trainer_region in sorted(fleet.regions, key=lambda region: region.name):
        if not needs.may_train(trainer_region.name) or obstacle(fleet, needs, trainer_region):
            continue
        workers = frozenset(
            region.name
            for region in fleet.regions
            if needs.may_roll_out(region) and needs.has_room(region, trains=region == trainer_region, rolls_out=True)
        )
        there = len(list(_accelerators(fleet, trainer_region)))
        for shares in (False, True) if 0 < there <= max(1, needs.least_worker_devices) else (False,):
            yield trainer_region.name, _problem(fleet, needs, workload, limits, trainer_region.name, workers, shares)


def accelerator(gpu: str) -> str:
    """Return the accelerator's type that a type of these problems is a share or a number of; empty for cores."""
    return "" if gpu.startswith(f"{CPU}-") else gpu.partition("*")[0]


def without_trainer(problem: Problem, trainer_region: str) -> Problem:
    """Return a job's problem without what follows from the region of its trainer.

    Two problems of one job on the same hosts differ in the trainer's process, in the shares of cores, and in the pins
    of what runs with the trainer. Without these they are equal, so that the questions of two plans can be compared.
    A problem that is not a job's is returned as it is.
    """
    fleet = problem.fleet
    # Fleets of jobs have only types that `cpu_type` made, and one entry of machines in each region.
    if not fleet.gpu_types or not all(
        gpu.startswith(f"{CPU}-") and kind.is_cpu for gpu, kind in fleet.gpu_types.items()
    ):
        return problem
    types: dict[str, GpuType] = {}
    regions = []
    for region in fleet.regions:
        if len(region.machines) != 1 or region.fabric_bytes_per_s != ONE_HOST_BYTES_PER_S:
            return problem
        machines = region.machines[0]
        name = f"{CPU} of {region.name}"
        types[name] = _whole_core(fleet.gpu_types[machines.gpu], name, share_of(region, machines.gpus_per_machine))
        # The trainer's processes are further devices of its region's host (`_problem` has set their number).
        num_trainer = problem.limits.max_data if region.name == trainer_region else 0
        num_workers = machines.gpus_per_machine - num_trainer
        regions.append(replace(region, machines=(replace(machines, gpu=name, gpus_per_machine=num_workers),)))
    # Pins of generation are the operator's; those to the trainer's region alone follow from the trainer.
    pins = tuple(pin for pin in problem.rules.pins if pin[0] is Task.GENERATION or pin[1] != {trainer_region})
    return replace(
        problem,
        fleet=replace(fleet, regions=tuple(regions), gpu_types=types),
        rules=replace(problem.rules, pins=pins),
    )


def _problem(
    fleet: Fleet,
    needs: Needs,
    workload: Workload,
    limits: Limits,
    trainer_region: str,
    workers: frozenset[str],
    shares: bool,
) -> Problem:
    # All tasks but generation run in the trainer's process, so they are pinned to its region.
    where = {task: workers if task is Task.GENERATION else frozenset({trainer_region}) for task in workload.tasks}
    rules = Rules(
        pins=tuple(where.items()),
        max_regions=needs.max_regions,
        min_regions=needs.min_regions,
        generating=frozenset(needs.rollout_regions or ()),
    )
    # The job says how many processes train, so a plan spreads training over no more.
    limits = replace(limits, max_data=needs.trainer_devices, fsdp=_fsdp(fleet, needs, workload, trainer_region))
    # A device that stands for all that a worker has, or for a share of one, is joined with no other.
    if shares or needs.workers_per_region is not None:
        limits = replace(limits, engine_tensors=frozenset({1}), turns_on=frozenset())
    elif needs.worker_devices is not None:
        limits = replace(limits, engine_tensors=frozenset({max(1, needs.worker_devices)}))
    fleet = _processes(fleet, needs, trainer_region, shares)
    return Problem(fleet=fleet, workload=workload, goal=needs.goal, rules=rules, limits=limits)


def _fsdp(fleet: Fleet, needs: Needs, workload: Workload, trainer_region: str) -> ShardingChoice:
    # Processes on cores share the memory of their host, which is no device's: so the trainer's own rule counts there.
    region = next(each for each in fleet.regions if each.name == trainer_region)
    if needs.sharding != "auto" or any(_accelerators(fleet, region)):
        return needs.sharding
    return "none" if workload.models[Task.ACTOR_TRAINING].num_params <= SMALL_MODEL else "full"


def _processes(fleet: Fleet, needs: Needs, trainer_region: str, shares: bool) -> Fleet:
    """Return the fleet with what processes compute with as devices, whatever machines its regions have."""
    types: dict[str, GpuType] = {}
    regions = []
    for region in fleet.regions:
        owned = list(_accelerators(fleet, region))
        is_shared = shares and region.name == trainer_region
        if owned and not is_shared and needs.workers_per_region is None:
            machines = tuple(each for each in region.machines if not fleet.gpu_types[each.gpu].is_cpu)
            types |= {each.gpu: fleet.gpu_types[each.gpu] for each in machines}
        else:
            # The trainer's processes are further ones on its host.
            num = needs.least_workers + (needs.trainer_devices if region.name == trainer_region else 0)
            gpu = _on_accelerators(owned, needs, num) if owned else _process(core_of(fleet, region), region, num)
            types[gpu.name] = gpu
            prices = [each.usd_per_gpu_hour for each in region.machines]
            price = prices[0] if len(prices) == 1 else None
            machines = (Machines(gpu=gpu.name, gpus_per_machine=num, num_machines=1, usd_per_gpu_hour=price),)
        has_fabric = sum(each.num_machines for each in machines) > 1
        rate = region.fabric_bytes_per_s if has_fabric else ONE_HOST_BYTES_PER_S
        regions.append(replace(region, machines=machines, fabric_bytes_per_s=rate))
    return Fleet(regions=tuple(regions), links=fleet.links, gpu_types=dict(sorted(types.items())))


def _accelerators(fleet: Fleet, region: Region) -> Iterator[GpuType]:
    """Yield the type of each of a region's accelerators."""
    for each in region.machines:
        if not fleet.gpu_types[each.gpu].is_cpu:
            yield from [fleet.gpu_types[each.gpu]] * each.num_gpus


def _on_accelerators(owned: list[GpuType], needs: Needs, num: int) -> GpuType:
    """Return the device type of one of `num` processes on these accelerators of one machine.

    Which of unlike accelerators a process gets is decided when it is placed, so each may get the slowest.
    """
    slowest = min(owned, key=lambda gpu: gpu.matmul_flop_per_s)
    return _times(slowest, min(float(max(1, needs.least_worker_devices)), len(owned) / num))


def _times(gpu: GpuType, share: float) -> GpuType:
    """Return the type of several of an accelerator, or of a share of one."""
    return replace(
        gpu,
        name=f"{gpu.name}*{share:g}",
        memory_bytes=int(gpu.memory_bytes * share),
        memory_bytes_per_s=gpu.memory_bytes_per_s * share,
        matmul_flop_per_s=gpu.matmul_flop_per_s * share,
    )


def core_of(fleet: Fleet, region: Region) -> GpuType:
    """Return the type of one core of a region's host."""
    return fleet.gpu_types.get(region.core or CPU) or gpu_types()[CPU]


def _process(core: GpuType, region: Region, num: int) -> GpuType:
    """Return the device type of one of `num` processes on a host."""
    share = share_of(region, num)
    # A host without a stated memory has no limit.
    memory = region.memory_bytes or _UNBOUNDED_BYTES
    return replace(
        core,
        name=f"{CPU}-{share:g}c-{memory}b" + (f"@{region.name}" if region.core else ""),
        memory_bytes=memory,
        memory_bytes_per_s=core.memory_bytes_per_s * share,
        matmul_flop_per_s=core.matmul_flop_per_s * share,
        is_cpu=True,
    )


def share_of(region: Region, num: int) -> float:
    """Return the share of a core that each of `num` processes on a host has.

    What regions on one machine take from each other depends on the plan (`shared_hosts`).
    """
    if region.host:
        return 1.0
    return min(1.0, region.num_cores / num) if region.num_cores else 1.0


def _whole_core(process: GpuType, name: str, share: float) -> GpuType:
    """Return the device type of the core that a process has a share of, with rates rounded to compare them."""
    # Nine digits, since dividing by the share leaves rounding errors that would make equal cores differ.
    return replace(
        process,
        name=name,
        memory_bytes_per_s=float(f"{process.memory_bytes_per_s / share:.9g}"),
        matmul_flop_per_s=float(f"{process.matmul_flop_per_s / share:.9g}"),
    )
