"""`streamrl`: two pools, of which one generates and all other roles take turns on the other; the best split.

Source: StreamRL (arXiv 2504.15930) separates a generation stage from a training stage, which may have other devices and
be in another data centre. It streams samples between them and chooses the number of devices of each stage.

*Family*: placements of two groups, generation alone and all other tasks. Each has devices of one class or two, or of as
many as a raised `Limits.max_train_blocks` allows, and one layout for each role. The second group is as in `verl`
(`meshes`). Generation has one tensor-parallel degree on all replicas and runs as many sequences as fit; fewer are never
better. For throughput every split of the fleet's devices is searched: generation gets all that is left of its classes,
since more never hurts. In dollars its size is a power of two or all that is left; with three or more classes it is
always all that is left.

*Better than the original*: as for `verl`; and samples are split as in the plan space, so nothing is lost to skew.
*Worse*: as for `verl`; comparisons raise the limit for this family too, so that both stages together may use the whole
fleet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from bench.planner_cases.baselines.genome import room
from bench.planner_cases.baselines.meshes import MANY, MeshSearch, SearchedMesh, class_sets, most_s
from bench.planner_cases.baselines.templates import Template, Templates
from bench.planner_cases.baselines.verl_like import orders
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables.cost_tables import CostTables, UnitCost, phase_end_s
from planner.cost.tables.transfers import trainer_transfers
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import Objective
from planner.problem.workload import Task

_GENERATION = (Task.GENERATION,)


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
    templates = Templates(cost_tables)
    rest = tuple(task for task in cost_tables.problem.workload.tasks if task is not Task.GENERATION)
    meshes, rollouts = MeshSearch(cost_tables, templates, rest), _Rollouts(cost_tables, templates)
    for classes in class_sets(cost_tables, templates, rest):
        # `most_s` falls as better placements are found, so later classes list fewer meshes.
        for mesh in meshes.best(classes, most_s(budget)):
            if budget.is_over:
                return budget.outcome("streamrl")
            _split(budget, rollouts, rest, mesh)
    return budget.outcome("streamrl")


def _split(budget: EvaluationBudget, rollouts: "_Rollouts", rest: tuple[Task, ...], mesh: SearchedMesh) -> None:
    """Try the generation pools beside one mesh, by ascending lower bounds, until none can beat the incumbent."""
    # Neither a mesh that costs more than the best placement nor one that is slower can be part of a better one.
    if _least_usd(budget.cost_tables, mesh.pools) >= budget.best_loss or mesh.total_s >= most_s(budget):
        return
    options = [
        (least, pools, ordered)
        for ordered in orders(budget.cost_tables, mesh)
        for pools in rollouts.pools_beside(mesh)
        if (least := rollouts.least_value(mesh.total_s, ordered, pools)) < budget.best_loss
    ]
    options.sort(key=lambda option: option[0])
    for least, pools, ordered in options:
        # Bounds ascend, so no later option can be better either.
        if least >= budget.best_loss:
            return
        groups = (Group(tasks=_GENERATION, pools=pools), Group(tasks=rest, pools=ordered))
        budget.evaluate(Placement(groups=groups))


def _least_usd(cost_tables: CostTables, pools: tuple[Pool, ...]) -> float:
    """Return a lower bound on the dollars per hour of placements with these pools; 0 if dollars are not minimised."""
    if cost_tables.problem.goal.objective is not Objective.COST_AT_THROUGHPUT:
        return 0.0
    return sum(pool.num_gpus * (cost_tables.classes[pool.device_class].usd_per_gpu_hour or 0.0) for pool in pools)


@dataclass(slots=True)
class _Rollouts:
    """Candidates for the pools that generate."""

    cost_tables: CostTables
    templates: Templates
    _sets: list[tuple[tuple[DeviceClass, Template], ...]] = field(init=False)
    _times: dict[tuple[Pool, ...], tuple[float, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._sets = list(self._list_sets())

    def _list_sets(self) -> Iterator[tuple[tuple[DeviceClass, Template], ...]]:
        """Yield sets of classes with the same layout, up to as many as a mesh may have; a unit is one replica."""
        most = max(2, self.cost_tables.problem.limits.max_train_blocks)
        single: dict[object, list[tuple[DeviceClass, Template]]] = {}
        for _, at in sorted(self.cost_tables.classes.items()):
            if self.cost_tables.problem.allows(_GENERATION, at):
                for template in self.templates.of(_GENERATION, at):
                    layout = template.layouts[0][1]
                    # One replica is a whole unit, and batch 0 runs as many sequences as memory holds.
                    if layout.tensor == template.unit_gpus and not layout.batch:
                        single.setdefault(template.layouts, []).append((at, template))
        for each in single.values():
            for size in range(1, min(most, len(each)) + 1):
                yield from combinations(each, size)

    def pools_beside(self, mesh: SearchedMesh) -> Iterator[tuple[Pool, ...]]:
        """Yield the pools that generate in the devices that a mesh leaves."""
        held = {pool.device_class: {pool.unit_gpus: pool.num_units} for pool in mesh.pools}
        is_dollars = self.cost_tables.problem.goal.needs_prices
        for chosen in self._sets:
            sizes = []
            for at, template in chosen:
                most = room(at, held.get(at.key, {}), template.unit_gpus)
                # For throughput more devices never hurt. In dollars smaller pools matter, but with many classes there
                # are too many.
                is_few = is_dollars and len(chosen) < MANY
                fewer = [2**i for i in range(most.bit_length()) if 2**i < most] if is_few else []
                sizes.append([*fewer, most] if most else [])
            for counts in product(*sizes):
                yield tuple(template.pool(at.key, n) for (at, template), n in zip(chosen, counts, strict=True))

    def least_value(self, rest_s: float, mesh: tuple[Pool, ...], pools: tuple[Pool, ...]) -> float:
        """Return a lower bound on the objective value of placements of this mesh and these pools."""
        if self.cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT:
            return _least_usd(self.cost_tables, mesh + pools)
        workload = self.cost_tables.problem.workload
        busy_s, phase_s = self._generation_s(pools)
        transfers = trainer_transfers(
            self.cost_tables, self.cost_tables.classes[mesh[0].device_class].region.name
        ).transfers
        # The version and its samples take at least as long as for the nearest pool; inf if no pool has a route.
        there = [transfers.get(self.cost_tables.classes[pool.device_class].region.name) for pool in pools]
        lag_s = min((each.weights_s + each.trajectories_s for each in there if each), default=float("inf"))
        # The path of a step (`planner.cost.oracle`). At eta >= 1 engines also work at most one step per step.
        path = (rest_s + lag_s + phase_s) / (workload.eta + 1)
        return max(rest_s, path) if workload.eta == 0 else max(rest_s, path, busy_s)

    def _generation_s(self, pools: tuple[Pool, ...]) -> tuple[float, float]:
        """Return (busy seconds per step, least window in which the pools make a step's samples)."""
        if pools not in self._times:
            samples = self.cost_tables.problem.workload.samples_per_step
            priced = [
                (pool, price)
                for pool in pools
                if isinstance(price := self.cost_tables.pool(_GENERATION, pool), UnitCost)
            ]
            # A pool without a price does not fit into memory.
            tables = [(float(pool.num_units), price.phase) for pool, price in priced if price.phase is not None]
            if len(priced) < len(pools):
                times = (float("inf"), float("inf"))
            else:
                rate = sum(pool.num_units * price.rates[Task.GENERATION] for pool, price in priced)
                times = (samples / rate, phase_end_s(tables, samples))
            self._times[pools] = times
        return self._times[pools]
