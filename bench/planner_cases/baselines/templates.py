"""Templates: how one unit of a class can serve a group's tasks, as far as memory allows. Samplers choose among them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from planner.answer.placement import Layout, Pool, Sharding
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables, UnitCost, host_violation
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pool without its number of units."""

    unit_gpus: int
    layouts: tuple[tuple[Task, Layout], ...]
    pipeline: int
    """Number of units of one pipeline; 1 in groups without training."""
    min_data: int
    """Fewest pipelines whose shards of the training state fit memory; 1 in groups without training."""
    is_fully_sharded: bool = False

    def pool(self, device_class: str, num_units: int) -> Pool:
        """Return the pool of `num_units` units of a class."""
        return Pool(device_class=device_class, unit_gpus=self.unit_gpus, num_units=num_units, layouts=self.layouts)


@dataclass(slots=True)
class Templates:
    """Lists of templates by group and class.

    Classes with equal devices in equal machines share a list, unless a region's host lacks the room for the versions
    that generation needs there.
    """

    cost_tables: CostTables
    _listed: dict[object, tuple[Template, ...]] = field(init=False, default_factory=dict)

    def of(self, tasks: tuple[Task, ...], at: DeviceClass) -> tuple[Template, ...]:
        """Return all templates that fit a class without other groups on it. The operator's rules are not considered."""
        has_room = Task.GENERATION not in tasks or host_violation(self.cost_tables, at) is None
        key = (tasks, at.gpu.name, at.gpus_per_machine, at.num_machines, has_room)
        if key not in self._listed:
            self._listed[key] = tuple(self._list(tasks, at))
        return self._listed[key]

    def _list(self, tasks: tuple[Task, ...], at: DeviceClass) -> Iterator[Template]:
        trains = any(task in TRAINING for task in tasks)
        limits = self.cost_tables.problem.limits
        most = min(at.gpus_per_machine, limits.max_tensor)
        for unit in (size for size in validity.TENSOR if size <= most):
            # Tasks that train on one pool have the same layout.
            trained = [task for task in tasks if task in TRAINING]
            free = [task for task in tasks if task not in trained[1:]]
            for layouts in product(*(self._layouts(task, unit, trains) for task in free)):
                of = dict(zip(free, layouts, strict=True))
                named = tuple((task, of[trained[0] if task in trained else task]) for task in tasks)
                if self._is_deep_enough(named) and (found := self._smallest(unit, named, at)):
                    yield found

    def _is_deep_enough(self, layouts: tuple[tuple[Task, Layout], ...]) -> bool:
        models = self.cost_tables.problem.workload.models
        return all(layout.pipeline <= models[task].num_layers for task, layout in layouts if task in TRAINING)

    def _smallest(self, unit: int, layouts: tuple[tuple[Task, Layout], ...], at: DeviceClass) -> Template | None:
        """Return the template with as few pipelines as fit memory; None if all that the class holds do not fit."""
        pipeline = max(layout.pipeline for _, layout in layouts)
        shardings = {layout.sharding for _, layout in layouts} - {Sharding.NONE}
        most = min(at.num_units(unit) // pipeline, self.cost_tables.problem.limits.max_data)
        template = Template(
            unit_gpus=unit, layouts=layouts, pipeline=pipeline, min_data=1, is_fully_sharded=Sharding.FULL in shardings
        )
        # Without sharding all pipelines need the same memory, so one is enough.
        if not shardings:
            return template if most and self._fits(template, at, 1) else None
        listed = [n for n in validity.DATA if 1 < n <= most]
        # More replicas shard the state into smaller parts: if the most do not fit, none do.
        if not listed or not self._fits(template, at, listed[-1]):
            return None
        return replace(template, min_data=next(n for n in listed if self._fits(template, at, n)))

    def _layouts(self, task: Task, unit: int, trains: bool) -> list[Layout]:
        problem = self.cost_tables.problem
        if task in TRAINING:
            most = min(problem.limits.max_pipeline, problem.workload.models[task].num_layers)
            return [
                Layout(tensor=unit, pipeline=p, sharding=sharding, recompute=recompute, micro_batch=micro_batch)
                for p, sharding, recompute, micro_batch in product(
                    validity.PIPELINE, Sharding, (False, True), validity.MICRO_BATCH
                )
                # A pipeline needs a layer for each stage; pipelines do not shard their parameters fully (`validity`).
                if p <= most and not (p > 1 and sharding is Sharding.FULL)
            ]
        if task is not Task.GENERATION:
            return [Layout(tensor=unit)]
        # A batch limit is of use only where generation has devices and a window of its own. 0 stands for as many
        # sequences as fit.
        batches = (0,) if trains or problem.workload.eta == 0 else validity.BATCH
        return [Layout(tensor=size, batch=batch) for size in validity.TENSOR if unit % size == 0 for batch in batches]

    def _fits(self, template: Template, at: DeviceClass, data: int) -> bool:
        pool = template.pool(at.key, template.pipeline * data)
        return isinstance(self.cost_tables.pool(tuple(task for task, _ in template.layouts), pool), UnitCost)
