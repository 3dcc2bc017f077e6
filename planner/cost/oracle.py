"""The oracle: seconds a step and dollars an hour of one placement, or why it is none. It alone judges every method.

Terms, with tau = seconds a step, and what tau must hold:

- T_t, busy seconds of task t: samples a step over the sum of its units' rates; on a mesh, the mesh's time.
- group: the sum of T_t over a group's tasks <= tau.
- path, where generation has devices of its own: in its window each region makes samples; tau is at least what all
  regions need to make a step's together. A window has (eta + 1) tau - training - scoring - weights - trajectories -
  others seconds, others being what else generation's group does at eta >= 1; engines work tau - others seconds of a
  step at most. Training and scoring are each the longest over groups of the sum of their tasks; a group that trains in
  another region adds the samples' way there, one that scores there the way there and back. At eta 0 this is the
  synchronous critical path, and the groups' condition follows from it.
- path, where generation takes turns with training: training + scoring + weights + trajectories + generation's whole
  phase <= (eta + 1) tau.
- path:critic, where critic inference is not in critic training's group: training + the critic's weights + scoring of
  the group that infers with it <= (eta + 1) tau. Generation and other groups' scoring go on while the weights travel.
- link, up: one version's bytes over each link, and all regions' over the trainer's uplink, within tau.
- budget: with so many dollars an hour left for egress, so many steps an hour at most.

Which pools generate, and which idle and are paid: `planner.cost.judged`.
"""

import numpy as np

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.placement import Placement
from planner.cost.judged import judge
from planner.cost.placed import place
from planner.cost.pools import Prices
from planner.question.goal import Goal, Objective
from planner.question.workload import Task


def evaluate(prices: Prices, placement: Placement, *, goal: Goal | None = None) -> Evaluation | Violation:
    """Judge one placement, by the problem's goal or another."""
    placed = place(prices, placement)
    if isinstance(placed, Violation):
        return placed
    goal = goal or prices.problem.goal
    best = judge(prices, placed)
    rent = rent_usd_per_hour(prices, placement)
    binding, step_s = best.binding, best.step_s
    most_s, most_usd = goal.planned_step_s, goal.planned_usd_per_hour
    slowest = np.inf if most_s is None else most_s * (1 + 1e-9)
    if step_s > slowest:
        return Violation(kind="deadline", what=f"{step_s:.3f} s a step, {most_s:.3f} are allowed")
    if most_usd is not None:
        throttled_s = throttle_s(most_usd, rent, best.usd_per_step)
        if throttled_s > slowest or throttled_s == np.inf:
            return Violation(kind="budget", what=f"{rent:.2f} dollars an hour, {most_usd:.2f} are allowed")
        if throttled_s > step_s:
            binding, step_s = "budget", throttled_s
    hourly_s = step_s
    if goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is not None:
        hourly_s = goal.max_step_s  # no more steps are made than are asked for
    egress = best.usd_per_step * 3600 / hourly_s
    busy = {**placed.busy_s, Task.GENERATION: best.generation_s}
    places = {id(each): i for i, each in enumerate(placed.making)}
    return Evaluation(
        step_s=step_s, usd_per_hour=rent + egress, usd_egress_per_hour=egress, regions=best.regions,
        binding=binding, task_s=tuple((task, busy[task]) for task in prices.problem.workload.tasks),
        idle=tuple(i for i, each in enumerate(placed.making) if not any(each is used for used in best.active)),
        limited=tuple((places[id(each)], made) for each, made in best.limited),
    )  # fmt: skip


def throttle_s(max_usd_per_hour: float, rent: float, usd_per_step: float) -> float:
    """Seconds a step that what is left of a budget beside the rent allows; infinity where it pays no step."""
    left = max_usd_per_hour * (1 + 1e-9) - rent
    if left < 0 or (left == 0 and usd_per_step > 0):
        return np.inf
    return usd_per_step * 3600 / left if usd_per_step > 0 else 0.0


def rent_usd_per_hour(prices: Prices, placement: Placement) -> float:
    return sum(
        pool.num_gpus * (prices.classes[pool.device_class].usd_per_gpu_hour or 0.0)
        for group in placement.groups
        for pool in group.pools
    )
