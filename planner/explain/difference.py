"""Difference of two plans: what they promise, and which devices would have to move from the first to the second."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from periplus.view import units
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.cost.step.binding import names
from planner.explain.columns import columns
from planner.explain.money import usd_words
from planner.explain.same_machines import in_names_of
from planner.jobs.hosts import without_trainer
from planner.plan import Plan
from planner.problem.workload import TRAINING, Task

_Counts = dict[tuple[str, str], int]
"""Number by (what, where)."""
_Use = tuple[tuple[Task, ...], int, tuple[tuple[Task, int, int], ...]]
"""What decides which weights a device holds: the group's tasks, the devices of its unit, and (task, tensor, pipeline)
of each task. Micro-batches, recomputation and sharding change in place, without a move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Differences of two plans, as a person reads them.

    `devices`, `layouts` and `workers` hold the entries that differ, with both numbers.
    """

    facts: tuple[tuple[str, str, str], ...]
    """Triples (name, value in the first plan, value in the second plan)."""
    questions: tuple[str, ...] = ()
    """Parts of the problem that differ: `workload`, `fleet`, `goal`, `rules`, `limits`."""
    workers: tuple[tuple[str, str, int, int], ...]
    """Tuples (kind, region, number before, number after)."""
    devices: tuple[tuple[str, str, int, int], ...]
    """Tuples (task, device class, number before, number after)."""
    layouts: tuple[tuple[str, str, int, int], ...] = ()
    """Tuples (tasks with their layouts, device class, devices before, devices after)."""
    moved: int | None = None
    """Number of devices that start a use they did not have. None without placements."""
    in_use: int | None = None
    """Number of devices that the first plan uses. None without a placement."""

    @property
    def moved_fraction(self) -> float | None:
        """Share of the first plan's devices that move."""
        return self.moved / self.in_use if self.moved is not None and self.in_use else None

    def to_tree(self) -> dict[str, Any]:
        """Return the difference as plain JSON values."""
        rows = ("device_class", "before", "after")
        return {
            "schema": "periplus.plan-difference/1",
            "different_questions": list(self.questions),
            "facts": {name: {"before": before, "after": after} for name, before, after in self.facts},
            "workers": [dict(zip(("task", "region", "before", "after"), row, strict=True)) for row in self.workers],
            "devices": [dict(zip(("task", *rows), row, strict=True)) for row in self.devices],
            "layouts": [dict(zip(("layout", *rows), row, strict=True)) for row in self.layouts],
            "moved_devices": self.moved,
            "moved_fraction": self.moved_fraction,
        }

    def text(self) -> str:
        """Return the difference as text for a person."""
        blocks = []
        if self.questions:
            # Numbers of different problems do not compare, so the text says so first.
            blocks.append(_question_words(self.questions))
        if not (self.workers or self.devices or self.layouts or any(a != b for _, a, b in self.facts)):
            return "\n\n".join([*blocks, "the two plans are the same"])
        blocks.append(columns(("", "BEFORE", "AFTER"), [fact for fact in self.facts if fact[1] != fact[2]]))
        # Layouts say more than devices by task; processes by region are for plans without placements.
        if self.layouts or self.devices:
            blocks.append(_table(("USE OF DEVICES", "CLASS", "BEFORE", "AFTER"), self.layouts or self.devices))
        elif self.workers:
            blocks.append(_table(("TASK", "REGION", "BEFORE", "AFTER"), self.workers))
        if self.moved is not None and self.moved_fraction is not None:
            share = units.percent(self.moved_fraction)
            blocks.append(
                f"moved: {self.moved:,} devices start another use ({share} of the {self.in_use:,} in use before)"
            )
        return "\n\n".join(block for block in blocks if block)


def _question_words(questions: Sequence[str]) -> str:
    if others := [name for name in questions if name in ("workload", "fleet")]:
        return f"the plans are of different {'s and '.join(others)}s: their numbers do not compare"
    return f"the plans were made under different {' and '.join(questions)}"


def difference(before: Plan, after: Plan) -> Difference:
    """Return what changes from one plan to another."""
    # Device classes of the second plan get the names that the same machines have in the first. Otherwise devices whose
    # class is only named differently would seem to move.
    was, will = before.placement, in_names_of(before, after)

    def changed(count: Callable[[Placement], _Counts]) -> tuple[tuple[str, str, int, int], ...]:
        return _rows(count(was), count(will)) if was is not None and will is not None else ()

    return Difference(
        facts=tuple((name, _facts(before)[name], _facts(after)[name]) for name in _facts(before)),
        questions=_questions(before, after),
        workers=_rows(_workers(before), _workers(after)),
        devices=changed(_devices),
        layouts=changed(_layouts),
        moved=_num_moved(was, will) if was is not None and will is not None else None,
        in_use=was.num_gpus if was is not None else None,
    )


def _table(heading: tuple[str, str, str, str], rows: tuple[tuple[str, str, int, int], ...]) -> str:
    return columns(heading, [(a, b, f"{c:,}", f"{d:,}") for a, b, c, d in rows], right=(2, 3))


def _questions(before: Plan, after: Plan) -> tuple[str, ...]:
    if before.question is None or after.question is None:
        return ()
    # The problems of one job differ by the region of its trainer, which is part of the answer and not of the question.
    a = without_trainer(before.question, before.trainer_region)
    b = without_trainer(after.question, after.trainer_region)
    return tuple(n for n in ("workload", "fleet", "goal", "rules", "limits") if getattr(a, n) != getattr(b, n))


def _facts(plan: Plan) -> dict[str, str]:
    evaluation, simulated = plan.evaluation, plan.simulated
    return {
        "method": plan.method,
        "trainer": plan.trainer_region,
        "seconds a step": units.short(evaluation.step_s) if evaluation else units.UNKNOWN,
        "simulated": units.short(simulated.step_s) if simulated else units.UNKNOWN,
        "dollars an hour": _usd(plan),
        "at least": units.short(plan.bound),
        "binding": plan.binding,
    }


def _usd(plan: Plan) -> str:
    if plan.evaluation is None:
        return units.UNKNOWN
    if plan.question is None or plan.placement is None:
        return f"{plan.evaluation.usd_per_hour:,.2f}" if plan.evaluation.usd_per_hour > 0 else units.UNKNOWN
    return usd_words(plan.question.fleet, plan.placement, plan.evaluation) or units.UNKNOWN


def _workers(plan: Plan) -> _Counts:
    found: _Counts = {}
    # A region may have several rows, of unlike processes.
    for each in plan.assignments:
        key = (each.task.value, each.region)
        found[key] = found.get(key, 0) + each.num_workers
    return found


def _devices(placement: Placement) -> _Counts:
    found: _Counts = {}
    for group, pool in _pools(placement):
        for task in group.tasks:
            found[task.value, pool.device_class] = found.get((task.value, pool.device_class), 0) + pool.num_gpus
    return found


def _layouts(placement: Placement) -> _Counts:
    """Return the devices of each pool by its layouts and class. Plans with equal entries use devices alike."""
    found: _Counts = {}
    for _, pool in _pools(placement):
        words = "; ".join(f"{names(task)} {_layout(task, layout)}" for task, layout in pool.layouts)
        key = (words, pool.device_class)
        found[key] = found.get(key, 0) + pool.num_gpus
    return found


def _layout(task: Task, layout: Layout) -> str:
    """Format a layout without the number of replicas, which follows from the devices."""
    # The tensor degree is always named; a pipeline only if it has several stages.
    parts = [("tensor", layout.tensor), ("pipeline", layout.pipeline)]
    shown = " x ".join(f"{what} {num}" for what, num in parts if num > 1 or what == "tensor")
    extras = [f"{layout.sharding.value} sharded"] if layout.sharding is not Sharding.NONE else []
    extras += [f"{layout.copies} copies"] * (layout.copies > 1)
    extras += ["recomputing"] * layout.recompute
    extras += [f"micro-batches of {layout.micro_batch}"] * (task in TRAINING and layout.micro_batch > 1)
    extras += [f"{layout.batch} sequences each"] * bool(layout.batch)
    return shown + (f" ({', '.join(extras)})" if extras else "")


def _num_moved(was: Placement, will: Placement) -> int:
    """Return the number of devices that are free or of another use in `was`. Devices of a class are alike."""
    before, after = _uses(was), _uses(will)
    return sum(max(0, number - before.get(key, 0)) for key, number in after.items())


def _uses(placement: Placement) -> dict[tuple[str, _Use], int]:
    """Return the number of devices by device class and use."""
    found: dict[tuple[str, _Use], int] = {}
    for group, pool in _pools(placement):
        cuts = tuple((task, layout.tensor, layout.pipeline) for task, layout in pool.layouts)
        key = pool.device_class, (group.tasks, pool.unit_gpus, cuts)
        found[key] = found.get(key, 0) + pool.num_gpus
    return found


def _pools(placement: Placement) -> list[tuple[Group, Pool]]:
    return [(group, pool) for group in placement.groups for pool in group.pools]


def _rows(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> tuple[tuple[str, str, int, int], ...]:
    keys = sorted(before.keys() | after.keys())
    return tuple(
        (*key, before.get(key, 0), after.get(key, 0)) for key in keys if before.get(key, 0) != after.get(key, 0)
    )
