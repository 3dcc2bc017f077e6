"""Good placements of each part of the plan space (a grouping and the trainer's region), whoever found them.

Bounds are close to the best placement of their part: only good ones can show that a bound is too high. Heuristics look
over all parts, the exact method's own incumbents are added, and the best placement of each part then climbs to the best
of its neighbours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from bench.planner_cases.baselines.genome import PlacementGenome
from planner.answer.outcome import Incumbent
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.batched.evaluate_many import PlacementVerdict, evaluate_many
from planner.cost.step.fixed_terms import trainer_region_of
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tables.validity import MICRO_BATCH, PIPELINE, TENSOR, of_group
from planner.methods.evaluation_budget import EvaluationBudget
from planner.methods.exact.method import search
from planner.methods.opening.greedy_descent import Descent
from planner.problem.goal import Goal, Objective, Problem
from planner.problem.groupings import Grouping, groupings
from planner.problem.workload import TRAINING, Task
from tests.support.planner.searches import still

_DRAWN, _DESCENDED, _LOOKS = 60, 200, 25
"""Placements drawn by chance and judged by the descent; how often the exact method asks whether to go on."""
_CLIMBS, _CLIMBED_PARTS = 2, 4

Part = tuple[Grouping, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The best placement that is known of a part."""

    value: float
    """The goal's."""
    step_s: float
    usd_per_hour: float
    placement: Placement


@dataclass(slots=True)
class KnownParts:
    """What is known of one problem."""

    cost_tables: CostTables
    best: dict[Part, Known] = field(init=False, default_factory=dict)
    _groupings: dict[frozenset[tuple[Task, ...]], Grouping] = field(init=False)

    def __post_init__(self) -> None:
        self._groupings = {frozenset(each): each for each in groupings(self.cost_tables.problem)}

    def parts(self) -> list[tuple[Part, Known]]:
        """The best first."""
        return sorted(self.best.items(), key=lambda each: (each[1].value, each[0]))

    def add(self, placements: Sequence[Placement]) -> None:
        goal = self.cost_tables.problem.goal
        batch = evaluate_many(self.cost_tables, placements)
        for i in np.flatnonzero(batch.verdict == PlacementVerdict.VALID).tolist():
            placement, step_s, usd = placements[i], float(batch.step_s[i]), float(batch.usd_per_hour[i])
            value = usd if goal.objective is Objective.COST_AT_THROUGHPUT else step_s
            grouping = self._groupings[frozenset(group.tasks for group in placement.groups)]
            part = grouping, trainer_region_of(self.cost_tables, placement)
            if part not in self.best or value < self.best[part].value:
                self.best[part] = Known(value=value, step_s=step_s, usd_per_hour=usd, placement=placement)

    def climb(self) -> None:
        """The best parts' placements, each to the best of its neighbours, a few times."""
        for part, _ in self.parts()[:_CLIMBED_PARTS]:
            for _ in range(_CLIMBS):
                before = self.best[part].value
                self.add(list(neighbours(self.cost_tables, self.best[part].placement)))
                if self.best[part].value >= before:
                    break


def known_parts(problem: Problem) -> KnownParts:
    """By every method that finds some; nothing here depends on a clock."""
    found = KnownParts(CostTables(problem))
    if not found.cost_tables.classes:
        return found
    rng = np.random.default_rng(0)
    found.add(drawn(found.cost_tables, rng))
    judge = _Recording(found)
    Descent(found.cost_tables, rng).run(judge)
    looks, incumbents = count(), list[Incumbent]()
    search(
        CostTables(problem),
        seed=0,
        budget_s=60.0,
        now_s=still,
        should_stop=lambda: next(looks) > _LOOKS,
        report=incumbents.append,
    )
    found.add([each.placement for each in incumbents])
    found.climb()
    return found


def drawn(cost_tables: CostTables, rng: np.random.Generator) -> list[Placement]:
    """By chance; the oracle may refuse some."""
    genome = PlacementGenome(cost_tables)
    made = (genome.placement(rng.random(genome.length)) for _ in range(_DRAWN))
    return [placement for placement in made if placement is not None]


def with_binding_goal(problem: Problem) -> Problem:
    """In dollars, with a limit among what random placements have; as it is otherwise, or where there are none."""
    free = replace(problem, goal=Goal())
    cost_tables = CostTables(free)
    if problem.goal.objective is Objective.THROUGHPUT or not cost_tables.classes:
        return problem
    batch = evaluate_many(cost_tables, drawn(cost_tables, np.random.default_rng(1)))
    valid = batch.verdict == PlacementVerdict.VALID
    if not valid.any():
        return free
    if problem.goal.objective is Objective.COST_AT_THROUGHPUT:
        return replace(problem, goal=replace(problem.goal, max_step_s=float(np.quantile(batch.step_s[valid], 0.3))))
    usd = float(np.quantile(batch.usd_per_hour[valid], 0.4))
    return replace(problem, goal=replace(problem.goal, max_usd_per_hour=usd))


class _Recording(EvaluationBudget):
    """Keeps the best of each part, not of all."""

    def __init__(self, parts: KnownParts) -> None:
        super().__init__(parts.cost_tables, budget_s=1.0, now_s=still, max_evals=_DESCENDED)
        self._parts = parts

    def losses(self, placements: Sequence[Placement | None]) -> list[float]:
        self._parts.add([each for each in placements if each is not None])
        return super().losses(placements)


def neighbours(cost_tables: CostTables, placement: Placement) -> Iterator[Placement]:
    """With one pool that is another, one more, or one less; the oracle may refuse some."""
    for i, group in enumerate(placement.groups):
        for pools in _other_pools(cost_tables, group):
            other = Group(tasks=group.tasks, pools=pools)
            if next(of_group(cost_tables, other), None) is None:
                yield Placement(groups=(*placement.groups[:i], other, *placement.groups[i + 1 :]))


def _other_pools(cost_tables: CostTables, group: Group) -> Iterator[tuple[Pool, ...]]:
    for i, pool in enumerate(group.pools):
        rest = group.pools[:i], group.pools[i + 1 :]
        if len(group.pools) > 1:
            yield (*rest[0], *rest[1])
        for other in _others(cost_tables, group, pool):
            yield (*rest[0], other, *rest[1])
            if not group.trains:
                yield (*group.pools, other)


def _others(cost_tables: CostTables, group: Group, pool: Pool) -> Iterator[Pool]:
    """Other numbers of units, sizes of units, classes and layouts."""
    sizes = [(pool.unit_gpus, num) for num in (1, pool.num_units - 1, pool.num_units + 1, 2 * pool.num_units)]
    sizes += [(pool.unit_gpus * 2, max(1, pool.num_units // 2)), (pool.unit_gpus * 2, pool.num_units)]
    sizes += [(pool.unit_gpus // 2, 2 * pool.num_units), (pool.unit_gpus // 2, pool.num_units)]
    for gpus, num in sizes:
        if num > 0 and gpus in TENSOR:
            yield from _laid_out(group, replace(pool, unit_gpus=gpus, num_units=num))
    for key in cost_tables.classes:
        yield replace(pool, device_class=key)
    yield from _laid_out(group, pool)


def _laid_out(group: Group, pool: Pool) -> Iterator[Pool]:
    """Each way to train, or the one there is where nothing trains, and each tensor parallelism of generation."""
    training = [_training(pool, *each) for each in _TRAINING] if group.trains else [Layout(tensor=pool.unit_gpus)]
    for train in training:
        for tensor in (size for size in TENSOR if size <= pool.unit_gpus):
            layouts = [(task, _layout(task, train, tensor, pool)) for task in group.tasks]
            yield replace(pool, layouts=tuple(layouts))


def _layout(task: Task, train: Layout, tensor: int, pool: Pool) -> Layout:
    if task in TRAINING:
        return train
    return Layout(tensor=tensor if task is Task.GENERATION else pool.unit_gpus)


_TRAINING = [
    (pipeline, sharding, recompute, micro_batch)
    for pipeline in PIPELINE[:4]
    for sharding in Sharding
    for recompute in (False, True)
    for micro_batch in MICRO_BATCH
]


def _training(pool: Pool, pipeline: int, sharding: Sharding, recompute: bool, micro_batch: int) -> Layout:
    return Layout(
        tensor=pool.unit_gpus, pipeline=pipeline, sharding=sharding, recompute=recompute, micro_batch=micro_batch
    )
