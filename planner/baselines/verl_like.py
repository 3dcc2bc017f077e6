"""`verl`: one pool of devices, all roles take turns on it, one (tensor, pipeline, data) a role.

Source: verl's default `RayResourcePool` with all roles mapped to it (`single_controller/ray/base.py`,
`trainer/main_ppo.py`): the user writes the pool down, each role has one parallelism, all phases follow each other.

*Family*: placements of one group that has all tasks, on devices of one class or of several, as many as
`Limits.max_train_blocks`, in one region or several. All classes run the same layouts, only the number of data-parallel
replicas differs. Of one class or two every number of devices is tried, of more of them all devices. All of these are
searched, and the best under the oracle is taken: what a user would find who tries every pool and every parallelism.

*Kinder than the system*: samples are split by speed, not evenly (`meshes`), and the pool is chosen best. *Less*: the
plan space has meshes of at most two classes; comparisons raise the limit for this family, so that its pool may be the
whole fleet.
"""

from collections.abc import Callable

from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.answer.placement import Group, Placement, Pool
from planner.baselines.meshes import Mesh, Meshes, class_sets
from planner.baselines.templates import Templates
from planner.cost.pools import Prices
from planner.judge import Judge, ignore, never
from planner.question.goal import Objective


def search(
    prices: Prices,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> Found | BudgetExhausted:
    """All of the family, or what time allows; `seed` changes nothing."""
    judge = Judge(prices, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop)
    templates, tasks = Templates(prices), prices.problem.workload.tasks
    meshes = Meshes(prices, templates, tasks)
    for classes in class_sets(prices, templates, tasks):
        if judge.is_over:
            break
        for mesh in meshes.best(classes, judge.ceiling_s):
            for pools in orders(prices, mesh):
                if least_value(prices, mesh) < judge.best_loss:
                    judge.judge(Placement(groups=(Group(tasks=tasks, pools=pools),)))
    return judge.outcome("verl")


def least_value(prices: Prices, mesh: Mesh) -> float:
    """No placement with that mesh has a lower objective value, if its tasks are all of the job's."""
    if prices.problem.goal.objective is Objective.COST_AT_THROUGHPUT:
        return sum(pool.num_gpus * (prices.classes[pool.device_class].usd_per_gpu_hour or 0.0) for pool in mesh.pools)
    return mesh.total_s


def orders(prices: Prices, mesh: Mesh) -> tuple[tuple[Pool, ...], ...]:
    """The mesh's pools with each of its regions as the one where versions are published."""
    firsts = {prices.classes[pool.device_class].region.name: i for i, pool in reversed(tuple(enumerate(mesh.pools)))}
    return tuple((mesh.pools[i], *mesh.pools[:i], *mesh.pools[i + 1 :]) for i in sorted(firsts.values()))
