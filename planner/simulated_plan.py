"""Simulation of a plan: a plan with the figures of a short run of its placement (`planner.simulate`)."""

import math
from collections.abc import Callable
from dataclasses import replace

from periplus.view.terms import TRAINER_TASKS
from planner.plan import Plan, SimulatedFigures, SimulatedRegion
from planner.plan_of_placement import idle_pools, limited_pools
from planner.simulate.network.links import NoRoute
from planner.simulate.run_record import Simulated
from planner.simulate.simulator import TooLarge, simulate

SAMPLE_S = 1e-4
"""Most seconds that the simulation of a sample takes (planner/simulate/simulator.py). Samples of a few tokens take a
tenth of that."""


def simulated_plan(plan: Plan, *, num_steps: int, seed: int, budget_s: float, now_s: Callable[[], float]) -> Plan:
    """Return the plan with the figures of `num_steps` simulated steps.

    Return it without them if it has no placement, if it cannot be simulated, if the run stalls, or if it takes more
    than `budget_s` seconds of the clock `now_s`.
    """
    problem, placement, until_s = plan.question, plan.placement, now_s() + budget_s
    if problem is None or placement is None:
        return plan
    # The clock is looked at after each step only, so that a step itself must fit.
    if problem.workload.samples_per_step * SAMPLE_S > budget_s:
        return plan
    try:
        found = simulate(
            problem,
            placement,
            seed=seed,
            num_steps=num_steps,
            idle=idle_pools(plan),
            at_most=limited_pools(plan),
            should_stop=lambda: now_s() > until_s,
        )
    except (NoRoute, TooLarge):
        return plan
    if found.stalled or found.num_played < num_steps:
        return plan
    return replace(plan, simulated=simulated_figures(found, num_steps, seed))


def simulated_figures(found: Simulated, num_steps: int, seed: int) -> SimulatedFigures:
    """Return the figures of a simulated run that a plan keeps."""
    is_whole = math.isfinite(found.step_s)
    training_s = sum(seconds for task, seconds in found.task_busy_s if task in TRAINER_TASKS)
    return SimulatedFigures(
        step_s=found.step_s if is_whole else None,
        samples_per_s=found.samples_per_s,
        max_age=max(found.max_age, 0),
        num_steps=num_steps,
        seed=seed,
        stalled=found.stalled,
        training_s=training_s if is_whole else None,
        waiting_s=max(0.0, round(found.step_s - training_s, 9)) if is_whole else None,
        regions=tuple(
            SimulatedRegion(region=each.region, weights_s=each.weights_s, generation_s=each.generation_s)
            for each in found.regions
            if is_whole
        ),
    )
