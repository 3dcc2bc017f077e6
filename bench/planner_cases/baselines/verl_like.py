"""`verl`: one pool of devices on which all roles take turns, with one (tensor, pipeline, data) per role.

Source: verl's default `RayResourcePool` with all roles mapped to it (`single_controller/ray/base.py`,
`trainer/main_ppo.py`). The user writes the pool down, each role has one parallelism, and all phases follow each other.

*Family*: placements of one group with all tasks, on devices of one class or several, as many as
`Limits.max_train_blocks`, in one region or several. All classes run the same layouts; only the number of data-parallel
replicas differs. For one or two classes every number of replicas is tried, for more classes the largest that fits. The
whole family is searched for the best placement under the oracle: what a user would find who tries every pool and every
parallelism.

*Better than the original*: samples are split by speed, not evenly (`meshes`), and the pool is the best one. *Worse*:
the plan space has meshes of at most two classes. Comparisons raise the limit for this family, so that its pool may be
the whole fleet.
"""

from collections.abc import Callable

from bench.planner_cases.baselines.meshes import MeshSearch, SearchedMesh, class_sets, most_s
from bench.planner_cases.baselines.templates import Templates
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never
from planner.problem.goal import Objective


def search(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
    """Search the whole family, or as much as time allows. Nothing is random, so `seed` has no effect."""
    budget = EvaluationBudget(cost_tables, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop)
    templates, tasks = Templates(cost_tables), cost_tables.problem.workload.tasks
    meshes = MeshSearch(cost_tables, templates, tasks)
    for classes in class_sets(cost_tables, templates, tasks):
        if budget.is_over:
            break
        for mesh in meshes.best(classes, most_s(budget)):
            for pools in orders(cost_tables, mesh):
                # Meshes were listed for an older incumbent; it may have improved since.
                if least_value(cost_tables, mesh) < budget.best_loss:
                    budget.evaluate(Placement(groups=(Group(tasks=tasks, pools=pools),)))
    return budget.outcome("verl")


def least_value(cost_tables: CostTables, mesh: SearchedMesh) -> float:
    """Return a lower bound on the objective value of placements with that mesh, if its tasks are all of the job's."""
    if cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT:
        return sum(
            pool.num_gpus * (cost_tables.classes[pool.device_class].usd_per_gpu_hour or 0.0) for pool in mesh.pools
        )
    return mesh.total_s


def orders(cost_tables: CostTables, mesh: SearchedMesh) -> tuple[tuple[Pool, ...], ...]:
    """Return the mesh's pools once for each of its regions, with a pool of that region first.

    Versions are published from the region of the first pool.
    """
    firsts = {
        cost_tables.classes[pool.device_class].region.name: i for i, pool in reversed(tuple(enumerate(mesh.pools)))
    }
    return tuple((mesh.pools[i], *mesh.pools[:i], *mesh.pools[i + 1 :]) for i in sorted(firsts.values()))
