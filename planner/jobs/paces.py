"""The paces of emulated devices: how long the accelerator that cores stand in for takes for a token of a job."""

from dataclasses import replace
from itertools import product

from periplus.errors import ConfigError
from periplus.values.machine import Pace
from planner.answer.placement import Layout, Pool
from planner.calibration.profiled_fleet import without_overheads
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tasks.layer_cuts import MICRO_BATCH, shardings
from planner.plan import Assignment, TaskKind
from planner.problem.device_classes import DeviceClass
from planner.problem.fleet import Fleet, Machines
from planner.problem.goal import Problem
from planner.problem.hardware import EMULATED, GpuType
from planner.problem.workload import Task, Workload


def with_pace(each: Assignment, fleet: Fleet, workload: Workload | None) -> Assignment:
    """Return the processes with the pace of their devices, if these are emulated.

    Raises: ConfigError if the model's configuration is not known, or does not fit the accelerator.
    """
    if not each.device.startswith(EMULATED):
        return each
    if workload is None:
        raise ConfigError(f"{each.device} in {each.region} can only be emulated for a model whose config.json is known")
    region = fleet.region(each.region)
    assert region is not None
    num = each.data if each.task is TaskKind.TRAINER else each.tensor
    machines = Machines(gpu=each.device, gpus_per_machine=num, num_machines=1)
    # What a process does beside the model takes its time on the cores that run it, and is not emulated.
    types = {each.device: without_overheads(fleet.gpu_types[each.device])}
    alone = Fleet(regions=(replace(region, machines=(machines,)),), links=(), gpu_types=types)
    cost_tables = CostTables(Problem(fleet=alone, workload=workload))
    (at,) = cost_tables.classes.values()
    return replace(each, pace=_pace(cost_tables, at, each, at.gpu))


def _pace(cost_tables: CostTables, at: DeviceClass, each: Assignment, gpu: GpuType) -> Pace:
    workload = cost_tables.problem.workload
    if each.task is TaskKind.TRAINER:
        tokens = workload.samples_per_step * workload.tokens_per_sample * workload.epochs_per_step
        return Pace(prefill_s=0.0, decode_s=0.0, training_s=_training_s(cost_tables, at, each) / tokens)
    layouts = ((Task.GENERATION, Layout(tensor=each.tensor)),)
    pool = Pool(device_class=at.key, unit_gpus=each.tensor, num_units=1, layouts=layouts)
    cost = cost_tables.pool((Task.GENERATION,), pool)
    if not isinstance(cost, UnitCost):
        raise ConfigError(f"{each.device} in {each.region} cannot be emulated: {cost.what}")
    prefill_s = cost_tables.replica(gpu, each.tensor).prefill_s
    decode_s = 1 / cost.rates[Task.GENERATION] - prefill_s
    return Pace(
        prefill_s=prefill_s / workload.prompt_tokens.mean,
        decode_s=decode_s / workload.completion_tokens.mean,
        training_s=0.0,
    )


def _training_s(cost_tables: CostTables, at: DeviceClass, each: Assignment) -> float:
    """Return the seconds of training in a step, with the fastest layout that fits into the trainer's devices."""
    tasks, found = (Task.ACTOR_TRAINING,), []
    modes = shardings(1, each.data, at.gpus_per_machine, each.sharding or "auto")
    for (sharding, copies), recompute, micro_batch in product(modes, (False, True), MICRO_BATCH):
        layout = Layout(tensor=1, sharding=sharding, copies=copies, micro_batch=micro_batch, recompute=recompute)
        pool = Pool(device_class=at.key, unit_gpus=1, num_units=each.data, layouts=((tasks[0], layout),))
        if isinstance(cost_tables.pool(tasks, pool), UnitCost):
            found.append(cost_tables.mesh(tasks, (pool,)).times[tasks[0]].total_s)
    if not found:
        raise ConfigError(
            f"{each.device} in {each.region} cannot be emulated: the trainer does not fit into its memory"
        )
    return min(found)
