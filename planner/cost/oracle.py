"""The oracle: seconds per step and dollars per hour of one placement, or the constraint that it violates.

All search methods are compared by `evaluate` alone. With tau = seconds per step, each of the following is at most
tau, and the largest one is the step time (docs/planner-model.md, "The step time"):

- T_t, busy seconds of task t: samples per step over the sum of its units' rates; on a mesh, the mesh's time.
- group: the sum of T_t over the tasks of a group.
- path, if generation has devices of its own: the least tau at which all regions together make a step's samples, each
  within its window of (eta + 1) tau - training - scoring - weights - trajectories - others seconds. `others` is the
  rest of generation's group at eta >= 1; engines work at most tau - others seconds of a step. Training and scoring are
  each the longest over all groups. A group that trains in another region adds the transfer of samples to it, one that
  scores there the transfer to it and back. At eta 0 this is the synchronous critical path.
- path, if generation takes turns with training: (training + scoring + weights + trajectories + phase) / (eta + 1).
- path:critic, if another group than the one that trains the critic infers with it: (training + the critic's weights +
  scoring of that group) / (eta + 1). Generation and other scoring continue while these weights travel.
- link, up: one version over each link, and all regions' versions over the trainer's uplink.
- budget: the egress of a step over the dollars that the budget leaves beside the rent.

Which pools generate, and which idle and are paid for, is decided in `planner.cost.step.step_estimate`.
"""

from dataclasses import replace

import numpy as np

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Placement
from planner.cost.step.fixed_terms import fixed_terms
from planner.cost.step.step_estimate import estimate_step
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Goal, Objective
from planner.problem.workload import Task


def evaluate(cost_tables: CostTables, placement: Placement, *, goal: Goal | None = None) -> Evaluation | Violation:
    """Return the evaluation of one placement, or the first constraint that it violates.

    `goal` replaces the problem's goal; its deadline and budget count as constraints.
    """
    placed = fixed_terms(cost_tables, placement)
    if isinstance(placed, Violation):
        return placed
    goal = goal or cost_tables.problem.goal
    best = estimate_step(cost_tables, placed)
    rent = rent_usd_per_hour(cost_tables, placement)
    binding, step_s = best.binding, best.step_s
    most_s, most_usd = goal.planned_step_s, goal.planned_usd_per_hour
    slowest = np.inf if most_s is None else most_s * (1 + 1e-9)
    if step_s > slowest:
        return Violation(kind="deadline", what=f"a step takes {step_s:.3f} s, the goal allows {most_s:.3f} s")
    # A budget below rent plus egress at full speed makes steps longer, until egress fits beside the rent.
    if most_usd is not None:
        throttled_s = throttle_s(most_usd, rent, best.usd_per_step)
        if throttled_s > slowest or throttled_s == np.inf:
            return Violation(kind="budget", what=f"rent is {rent:.2f} USD/h, the goal allows {most_usd:.2f}")
        if throttled_s > step_s:
            binding, step_s = "budget", throttled_s
    hourly_s = step_s
    if goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is not None:
        # If a throughput is asked for, no more steps per hour are made than that.
        hourly_s = goal.max_step_s
    egress = best.usd_per_step * 3600 / hourly_s
    busy = {**placed.busy_s, Task.GENERATION: best.generation_s}
    limited = best.limited(samples := cost_tables.problem.workload.samples_per_step)
    generating_s = best.generating_s(limited, samples)
    # `limited` and `idle` name pools by their index among those that generate. Equal pools differ by identity only.
    places = {id(each): i for i, each in enumerate(placed.making)}
    return Evaluation(
        step_s=step_s,
        usd_per_hour=rent + egress,
        usd_egress_per_hour=egress,
        regions=tuple(replace(each, generation_s=generating_s.get(each.region, 0.0)) for each in best.regions),
        binding=binding,
        task_s=tuple((task, busy[task]) for task in cost_tables.problem.workload.tasks),
        idle=tuple(i for i, each in enumerate(placed.making) if not any(each is used for used in best.active)),
        limited=tuple((places[id(each)], made) for each, made in limited),
    )


def throttle_s(max_usd_per_hour: float, rent: float, usd_per_step: float) -> float:
    """Return the seconds per step at which egress fits into what a budget leaves beside the rent.

    The result is inf if the budget pays for no step.
    """
    left = max_usd_per_hour * (1 + 1e-9) - rent
    if left < 0 or (left == 0 and usd_per_step > 0):
        return np.inf
    return usd_per_step * 3600 / left if usd_per_step > 0 else 0.0


def rent_usd_per_hour(cost_tables: CostTables, placement: Placement) -> float:
    """Return the rent of all devices of the placement; devices without a price count as free."""
    return sum(
        pool.num_gpus * (cost_tables.classes[pool.device_class].usd_per_gpu_hour or 0.0)
        for group in placement.groups
        for pool in group.pools
    )
