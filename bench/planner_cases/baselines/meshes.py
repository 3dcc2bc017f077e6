"""Static meshes on a few classes: for each footprint, the layout with the least time.

A *footprint* is the classes, the size of units, and the number of units of each class. All devices of a static pool run
the same layout for each role. So for a given footprint only the sum of the tasks' seconds depends on the layout, and
the layout with the least sum is best, whatever runs next to it. Samples are split in proportion to the classes' speed,
which favours static pools: the original systems split evenly.

For one class and for two, every number of pipelines that the plan space has is tried. For three or more classes, which
only a raised `Limits.max_train_blocks` allows, only the largest number that fits into each class is tried.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from bench.planner_cases.baselines.templates import Template, Templates
from planner.answer.placement import Pool
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables, UnitCost, phase_end_s
from planner.cost.tasks import scoring, training
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import Objective
from planner.problem.workload import SCORING, TRAINING, Task

MANY = 3
"""Number of classes from which each takes part with as many pipelines as fit, or not at all. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedMesh:
    """Pools of a training group, with the seconds per step of all its tasks together."""

    pools: tuple[Pool, ...]
    total_s: float


def most_s(budget: EvaluationBudget) -> float:
    """Return the seconds that a group of tasks may take at most in a placement that is better than the best so far."""
    if budget.goal.objective is Objective.COST_AT_THROUGHPUT:
        step_s = budget.goal.planned_step_s
        return step_s * (1 + 1e-6) if step_s is not None else INFEASIBLE
    return budget.best_loss


def class_sets(cost_tables: CostTables, templates: Templates, tasks: tuple[Task, ...]) -> list[tuple[DeviceClass, ...]]:
    """Return sets of classes that may run the tasks, up to as many as one mesh may have.

    Small sets come first, and strong ones first among equal sizes.
    """
    able = [
        at
        for _, at in sorted(cost_tables.classes.items())
        if cost_tables.problem.allows(tasks, at) and templates.of(tasks, at)
    ]
    most = min(cost_tables.problem.limits.max_train_blocks, len(able))
    sets = [chosen for size in range(1, most + 1) for chosen in combinations(able, size)]
    return sorted(sets, key=lambda ats: (len(ats), -sum(at.num_gpus * at.gpu.matmul_flop_per_s for at in ats)))


@dataclass(slots=True)
class MeshSearch:
    """Search for the meshes of one problem and one group of tasks that includes training."""

    cost_tables: CostTables
    templates: Templates
    tasks: tuple[Task, ...]
    _speeds: dict[object, float] = field(init=False, default_factory=dict)

    def best(self, classes: tuple[DeviceClass, ...], ceiling_s: float) -> Iterator[SearchedMesh]:
        """Yield the fastest mesh of each footprint on exactly these classes, those with most devices first.

        Meshes that take `ceiling_s` seconds or more are left out.
        """
        found: dict[tuple[int, ...], SearchedMesh] = {}
        for shared in self._shared(classes):
            for counts in self._counts(shared, classes):
                place = (shared[0].unit_gpus, *counts)
                least = found[place].total_s if place in found else ceiling_s
                # The bound needs neither a memory check nor a phase table, and rules out most layouts.
                if self._least_s(shared[0], classes, counts) < least:
                    mesh = self._mesh(shared[0], classes, counts)
                    if mesh is not None and mesh.total_s < least:
                        found[place] = mesh
        yield from sorted(found.values(), key=lambda mesh: (-sum(p.num_gpus for p in mesh.pools), mesh.total_s))

    def _shared(self, classes: Sequence[DeviceClass]) -> Iterator[tuple[Template, ...]]:
        """Yield templates that every class has, one entry per class. They differ only in the fewest pipelines."""
        lists = [self.templates.of(self.tasks, at) for at in classes]
        others = [{(each.unit_gpus, each.layouts): each for each in listed} for listed in lists[1:]]
        for first in lists[0]:
            rest = [other.get((first.unit_gpus, first.layouts)) for other in others]
            if len(classes) == 1 or not first.is_fully_sharded:
                same = tuple(each for each in (first, *rest) if each is not None)
                if len(same) == len(classes):
                    yield same

    def _counts(self, same: tuple[Template, ...], classes: tuple[DeviceClass, ...]) -> Iterator[tuple[int, ...]]:
        most = self.cost_tables.problem.limits.max_data
        choices = []
        for template, at in zip(same, classes, strict=True):
            # Pipelines that the class has room for, and all numbers of them, most first. With many classes only the
            # largest.
            room = min(at.num_units(template.unit_gpus) // template.pipeline, most)
            listed = [n * template.pipeline for n in reversed(validity.DATA) if template.min_data <= n <= room]
            choices.append(listed if len(classes) < MANY else listed[:1])
        return product(*choices)

    def _least_s(self, template: Template, classes: tuple[DeviceClass, ...], counts: tuple[int, ...]) -> float:
        """Return a lower bound on the seconds of meshes of these units: no bubbles, no communication, no generation."""
        workload = self.cost_tables.problem.workload
        total = 0.0
        for task, _ in template.layouts:
            rate = sum(n * self._speed(template, task, at) for at, n in zip(classes, counts, strict=True))
            if rate:
                total += workload.samples_per_step / rate * (workload.epochs_per_step if task in TRAINING else 1)
        return total

    def _speed(self, template: Template, task: Task, at: DeviceClass) -> float:
        """Return the samples per second of one unit; 0 for generation."""
        layout = next(layout for of, layout in template.layouts if of is task)
        key = (task, layout, at.key)
        if key not in self._speeds:
            workload = self.cost_tables.problem.workload
            speed = 0.0
            if task in TRAINING:
                # A pipeline of p units finishes one micro-batch per stage time, so each unit has 1 / p of that.
                speed = layout.micro_batch / training.stage_s(workload, task, at, layout, 1) / layout.pipeline
            elif task in SCORING:
                speed = 1 / scoring.sample_s(workload, task, at.gpu, layout.tensor)
            self._speeds[key] = speed
        return self._speeds[key]

    def _mesh(
        self, template: Template, classes: tuple[DeviceClass, ...], counts: tuple[int, ...]
    ) -> SearchedMesh | None:
        pools = tuple(template.pool(at.key, n) for at, n in zip(classes, counts, strict=True))
        priced = [
            (pool, price) for pool in pools if isinstance(price := self.cost_tables.pool(self.tasks, pool), UnitCost)
        ]
        # Some pool does not fit into memory.
        if len(priced) < len(pools):
            return None
        samples = self.cost_tables.problem.workload.samples_per_step
        # All roles take turns, so their seconds add up: training from the mesh, scoring from joint rates, generation as
        # a phase that all pools finish together.
        total = sum(each.total_s for each in self.cost_tables.mesh(self.tasks, pools).times.values())
        for task in self.tasks:
            if task in SCORING:
                total += samples / sum(pool.num_units * price.rates[task] for pool, price in priced)
        tables = [(float(pool.num_units), price.phase) for pool, price in priced if price.phase is not None]
        return SearchedMesh(pools=pools, total_s=total + (phase_end_s(tables, samples) if tables else 0.0))
