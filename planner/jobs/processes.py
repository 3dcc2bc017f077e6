"""The processes of a job's plan as the runtime starts them, and the check of a plan that was made by hand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from periplus.errors import ConfigError
from planner.answer.outcome import Fact, Found, Infeasible
from planner.cost.tables.network import Network
from planner.files.capabilities import Capabilities
from planner.jobs.hosts import accelerator
from planner.jobs.needs import Needs
from planner.jobs.paces import with_pace
from planner.plan import Assignment, Plan, PlanOutcome, TaskKind
from planner.problem.fleet import Fleet, Region
from planner.problem.hardware import EMULATED
from planner.problem.workload import Workload

MOST_WORKERS = 1 << 16
"""Most rollout workers of a plan by hand: the coordinator keeps each as a value. Chosen by hand."""


def executable(plan: Plan, fleet: Fleet, needs: Needs, workload: Workload | None) -> Plan:
    """Return the plan with its processes in the runtime's terms: device types, engines, degrees, paces and memory.

    Raises: ConfigError as `paces.with_pace` does, and for a fixed number of workers on unlike emulated devices.
    """
    rows = [with_pace(_executable(each, fleet, needs), fleet, workload) for each in plan.assignments]
    return replace(plan, assignments=tuple(rows))


def _executable(each: Assignment, fleet: Fleet, needs: Needs) -> Assignment:
    region = fleet.region(each.region)
    assert region is not None
    device, there = accelerator(each.device), {machines.gpu for machines in region.machines}
    # A fixed number of processes was planned on the slowest type: any of the region's accelerators will do.
    if needs.workers_per_region is not None and len(there) > 1:
        if any(gpu.startswith(EMULATED) for gpu in there):
            raise ConfigError(
                f"{region.name} has unlike emulated devices, whose paces differ; leave plan.workers_per_region out"
            )
        device = ""
    if each.task is TaskKind.TRAINER:
        # On cores, and where processes share a device, a plan does not count the trainer's processes one by one.
        data = needs.trainer_devices if device == "" or device != each.device else each.data
        return replace(each, device=device, tensor=1, data=data, memory_bytes=needs.trainer_memory_bytes)
    tensor = each.tensor if needs.worker_devices is None else needs.worker_devices
    memory_bytes = needs.rollout_memory_bytes
    return replace(each, device=device, engine=needs.engine or "", tensor=tensor, data=1, memory_bytes=memory_bytes)


def checked_plan(
    plan: Plan, fleet: Fleet, needs: Needs, workload: Workload | None, capabilities: Capabilities
) -> PlanOutcome:
    """Return a plan that was made by hand, completed for the runtime, or why the runtime cannot run it on this fleet.

    The fleet's devices may be in use. Raises: ConfigError as `paces.with_pace` does.
    """
    if found := _first_disagreement(plan, fleet, needs, capabilities):
        return Infeasible(facts=(Fact(kind="plan", name="processes", what=found),))
    rows = [with_pace(_completed(each, needs, fleet), fleet, workload) for each in plan.assignments]
    return Found(best=replace(plan, assignments=tuple(rows)))


def _completed(each: Assignment, needs: Needs, fleet: Fleet) -> Assignment:
    region = fleet.region(each.region)
    assert region is not None
    prices = [machines.usd_per_gpu_hour for machines in region.machines if machines.gpu == each.device]
    known = [price for price in prices if price is not None]
    if each.by_turns:
        each = replace(each, usd_per_hour=0.0)
    if each.usd_per_hour is None and known and len(known) == len(prices):
        # Of one type at several prices: nobody knows which will be free.
        each = replace(each, usd_per_hour=max(known) * each.num_workers * max(each.tensor, each.data))
    if each.task is TaskKind.TRAINER:
        return replace(each, engine="", memory_bytes=each.memory_bytes or needs.trainer_memory_bytes)
    memory_bytes = each.memory_bytes or needs.rollout_memory_bytes
    return replace(each, engine=each.engine or needs.engine or "", memory_bytes=memory_bytes)


def _first_disagreement(plan: Plan, fleet: Fleet, needs: Needs, capabilities: Capabilities) -> str:
    trainers = [each for each in plan.assignments if each.task is TaskKind.TRAINER]
    num_workers = sum(each.num_workers for each in plan.assignments if each.task is TaskKind.ROLLOUT)
    if len(trainers) != 1 or trainers[0].num_workers != 1 or num_workers < 1:
        return "the plan needs one trainer and at least one rollout worker"
    if num_workers > MOST_WORKERS:
        return f"the plan has {num_workers:,} rollout workers, and a job has at most {MOST_WORKERS:,}"
    if trainers[0].region != plan.trainer_region:
        return f"the plan's trainer is in {trainers[0].region}, but its trainer_region is {plan.trainer_region}"
    network, wanted = Network(fleet), Counter[tuple[str, str, str]]()
    for each in plan.assignments:
        region = fleet.region(each.region)
        if region is None:
            names = ", ".join(sorted(one.name for one in fleet.regions))
            return f"the plan uses the region {each.region}, and the fleet has {names}"
        if not each.by_turns:
            wanted[each.region, each.machine, each.device] += each.num_workers * max(each.tensor, each.data)
        if what := _of_process(each, region, needs, capabilities):
            return what
        for src, dst in ((plan.trainer_region, each.region), (each.region, plan.trainer_region)):
            if network.route(src, dst) is None:
                return f"no link was measured from {src} to {dst}"
    if what := _of_turns(trainers[0], [each for each in plan.assignments if each.by_turns]):
        return what
    for (name, _, device), number in sorted(wanted.items()):
        region = fleet.region(name)
        assert region is not None
        there = sum(each.num_gpus for each in region.machines if each.gpu == device)
        if device and number > there:
            return f"the plan uses {number} {device} in {name}, which has {there}"
    return ""


def _of_turns(trainer: Assignment, workers: Sequence[Assignment]) -> str:
    """Say what keeps workers from using the trainer's devices by turns with it; empty if nothing does."""
    number = sum(each.num_workers * each.tensor for each in workers)
    if any(
        each.task is TaskKind.TRAINER or (each.region, each.device) != (trainer.region, trainer.device)
        for each in workers
    ):
        return "only rollout workers in the trainer's region, on devices of its type, use its devices by turns with it"
    if any(each.devices or not each.tensor for each in workers) or number > trainer.data:
        return (
            f"the workers that use the trainer's {trainer.data} devices by turns take {number}; they can have at most "
            "as many, are not servers that run already, and name no devices of their own"
        )
    return ""


def _of_process(each: Assignment, region: Region, needs: Needs, capabilities: Capabilities) -> str:
    where = f"the {each.task} in {region.name}"
    if each.devices and (each.num_workers != 1 or len(each.devices) != max(each.tensor, each.data)):
        return f"{where} names {len(each.devices)} devices, but has {each.num_workers * max(each.tensor, each.data)}"
    if each.task is TaskKind.TRAINER:
        if not needs.may_train(region.name):
            return f"{where} is where the job's regions do not allow it"
        if each.tensor > 1 or each.data > capabilities.limits.max_data:
            return (
                f"{where} has tensor {each.tensor} and data {each.data}, and the runtime executes trainers with "
                f"tensor 1 and data up to {capabilities.limits.max_data}"
            )
        return ""
    engine = each.engine or needs.engine
    if engine is None:
        return ""
    degrees = capabilities.degrees.get(engine, frozenset())
    if each.tensor not in degrees or each.data > 1:
        known = ", ".join(map(str, sorted(degrees))) or "none"
        return f"{where} has the engine {engine} with tensor {each.tensor}, and the runtime executes {known}"
    if region.engines is not None and engine not in region.engines:
        return f"{where} has the engine {engine}, and {region.name} has {', '.join(region.engines) or 'none'}"
    if not replace(needs, engine=engine).may_roll_out(region):
        return f"{where} is where the job's regions or its own code do not allow it"
    return ""
