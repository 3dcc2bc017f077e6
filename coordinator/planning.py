"""Translates between the coordinator's state and the planner.

A snapshot of the free regions and of their measured links goes in as a `Fleet`; a placement, a proof that none exists,
or a failure comes out as a `PlanFinished` event. A crash of the planner fails the job and leaves the coordinator
running.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from coordinator.events import PlanFinished, PlannerFailed, RunPlanner
from coordinator.reservations import free_devices
from coordinator.state import JobRequest, PlacedRoles, State
from periplus.errors import ConfigError, PeriplusError, explained_error
from periplus.process.telemetry import event as log_event
from periplus.values.machine import DeviceCount
from planner.answer.outcome import BudgetExhausted, Found, Infeasible
from planner.devices.catalogue import gpu_name, gpu_types
from planner.plan import Plan, PlanOutcome, TaskKind
from planner.plan_of_placement import without_question
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Link, Machines, Region
from planner.problem.hardware import GpuType

log = logging.getLogger(__name__)

Ask = Callable[[Fleet, Mapping[str, DeviceCount], JobRequest], PlanOutcome]
"""A function that plans a job on the devices of a fleet that are free, by region."""


def planned(state: State, order: RunPlanner, ask: Ask) -> PlanFinished:
    """Run the planner for one RunPlanner effect and return its answer. Never raises: a crash becomes PlannerFailed."""
    try:
        outcome = placement(ask(fleet_of(state, frozenset(order.free)), order.free, state.jobs[order.job_id].request))
    except (PeriplusError, ValueError) as error:
        log_event(log, logging.ERROR, "planner_failed", job=order.job_id, why=error)
        outcome = PlannerFailed(str(error))
    except Exception as error:  # the root of the planner's task: a bug in a search fails the job, not the coordinator
        log.exception("planner_crashed")
        outcome = PlannerFailed(explained_error(error))
    return PlanFinished(order.job_id, order.free, outcome)


def fleet_of(state: State, regions: frozenset[str]) -> Fleet:
    """Return the fleet of these regions: the agents' machines with their free accelerators, and the measured links.

    An accelerator whose type the planner does not know is left out: processes there are planned as if on cores.
    """
    types: dict[str, GpuType] = {}
    inventories = {name: state.regions[name].hello.inventory for name in sorted(regions)}
    return Fleet(
        regions=tuple(
            Region(
                name=name,
                machines=_accelerators(state, name, types),
                fabric_bytes_per_s=ONE_HOST_BYTES_PER_S,
                num_cores=inventory.own.num_cores,
                memory_bytes=inventory.own.memory_bytes,
                engines=tuple(engine.name for engine in inventory.own.engines),
                allows_own_code=inventory.allows_own_code,
            )
            for name, inventory in inventories.items()
        ),
        links=tuple(
            Link(src_region=src, dst_region=dst, rtt_s=link.rtt_s, bytes_per_s=link.throughput_bits_per_s / 8)
            for (src, dst), link in sorted(state.links.items())
            if {src, dst} <= regions
        ),
        gpu_types=types,
    )


def _accelerators(state: State, region: str, types: dict[str, GpuType]) -> tuple[Machines, ...]:
    """Return a region's free accelerators by type, and add the types to `types`."""
    found: Counter[str] = Counter()
    for device in free_devices(state, region):
        if not device.is_accelerator:
            continue
        try:
            gpu = gpu_types()[gpu_name(device.model)]
        except ConfigError as error:
            log_event(log, logging.WARNING, "accelerator_unknown", region=region, device=device.index, why=error)
            continue
        types[gpu.name] = replace(gpu, memory_bytes=min(gpu.memory_bytes, device.memory_bytes))
        found[gpu.name] += 1
    return tuple(Machines(gpu=name, gpus_per_machine=number, num_machines=1) for name, number in sorted(found.items()))


def placement(outcome: PlanOutcome) -> PlacedRoles | Infeasible | PlannerFailed:
    """Reduce the planner's answer to what the machine uses. The best plan when time ended is as good as any."""
    match outcome:
        # A plan that is not proved best is used as well: waiting for a better one would cost more than it saves.
        case Found(best=plan) | BudgetExhausted(best=Plan() as plan):
            rollouts = {a.region: a.num_workers for a in plan.assignments if a.task is TaskKind.ROLLOUT}
            return PlacedRoles(
                trainer_region=plan.trainer_region,
                num_rollout_workers=rollouts,
                plan_json=without_question(plan).to_json(),
            )
        case Infeasible():
            return outcome
        case BudgetExhausted():
            return PlannerFailed("it found no plan in time; submit again, or allow fewer regions")
