"""Translates between the coordinator's state and the planner.

A snapshot of the free regions and of their measured links goes in as a `Fleet`; a placement, a proof that none exists,
or a failure comes out as a `PlanFinished` event. A crash of the planner fails the job and leaves the coordinator
running.
"""

import logging
from collections.abc import Callable, Mapping

from coordinator.events import PlanFinished, PlannerFailed, RunPlanner
from coordinator.state import JobRequest, PlacedRoles, State
from periplus.errors import PeriplusError, explained_error
from periplus.process.telemetry import event as log_event
from periplus.values.machine import DeviceCount
from planner.answer.outcome import BudgetExhausted, Found, Infeasible
from planner.plan import Plan, PlanOutcome, TaskKind
from planner.plan_of_placement import without_question
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Link, Region

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
    """Return the fleet of these regions: cores, memory and engines of the agents' machines, and the measured links.

    It lists no accelerators, since the coordinator places jobs on cores and memory.
    """
    inventories = {name: state.regions[name].hello.inventory for name in sorted(regions)}
    return Fleet(
        regions=tuple(
            Region(
                name=name,
                machines=(),
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
        gpu_types={},
    )


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
