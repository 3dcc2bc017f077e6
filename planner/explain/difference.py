"""Two plans side by side: what they promise, and what would have to move to go from the first to the second."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from periplus.view import units
from planner.explain.columns import columns
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`devices` and `workers`: where the two differ, with both numbers."""

    facts: tuple[tuple[str, str, str], ...]
    """(name, of the first, of the second)."""
    workers: tuple[tuple[str, str, int, int], ...]
    """(kind, region, before, after)."""
    devices: tuple[tuple[str, str, int, int], ...]
    """(task, device class, before, after)."""
    moved_fraction: float | None
    """Of the first plan's devices, counted for each task, that the second uses otherwise; None without placements."""

    def to_tree(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema": "periplus.plan-difference/1",
            "facts": {name: {"before": before, "after": after} for name, before, after in self.facts},
            "workers": [dict(zip(("task", "region", "before", "after"), row, strict=True)) for row in self.workers],
            "devices": [
                dict(zip(("task", "device_class", "before", "after"), row, strict=True)) for row in self.devices
            ],
            "moved_fraction": self.moved_fraction,
        }

    def text(self) -> str:
        """For a person."""
        if not (self.workers or self.devices or any(before != after for _, before, after in self.facts)):
            return "the two plans are the same"
        blocks = [columns(("", "BEFORE", "AFTER"), [fact for fact in self.facts if fact[1] != fact[2]])]
        rows = self.devices or self.workers
        if rows:
            heading = ("TASK", "DEVICES" if self.devices else "REGION", "BEFORE", "AFTER")
            blocks.append(columns(heading, [(a, b, f"{c:,}", f"{d:,}") for a, b, c, d in rows]))
        if self.moved_fraction is not None:
            blocks.append(f"moved: {units.percent(self.moved_fraction)} of the devices, counted for each task")
        return "\n\n".join(block for block in blocks if block)


def difference(before: Plan, after: Plan) -> Difference:
    """What changes from one plan to another."""
    devices = None
    if before.placement is not None and after.placement is not None:
        devices = (_devices(before), _devices(after))
    moved = None
    if devices:
        total = sum(devices[0].values())
        gone = sum(max(0, num - devices[1].get(key, 0)) for key, num in devices[0].items())
        moved = gone / total if total else 0.0
    return Difference(
        facts=tuple((name, _facts(before)[name], _facts(after)[name]) for name in _facts(before)),
        workers=_rows(_workers(before), _workers(after)),
        devices=_rows(*devices) if devices else (),
        moved_fraction=moved,
    )


def _facts(plan: Plan) -> dict[str, str]:
    evaluation, simulated = plan.evaluation, plan.simulated
    return {
        "method": plan.method,
        "trainer": plan.trainer_region,
        "seconds a step": units.short(evaluation.step_s) if evaluation else units.UNKNOWN,
        "simulated": units.short(simulated.step_s) if simulated else units.UNKNOWN,
        "dollars an hour": f"{evaluation.usd_per_hour:,.2f}" if evaluation else units.UNKNOWN,
        "at least": units.short(plan.bound),
        "binding": plan.binding,
    }


def _workers(plan: Plan) -> dict[tuple[str, str], int]:
    return {(a.task.value, a.region): a.num_workers for a in plan.assignments}


def _devices(plan: Plan) -> dict[tuple[str, str], int]:
    assert plan.placement is not None
    found: dict[tuple[str, str], int] = {}
    for group in plan.placement.groups:
        for pool in group.pools:
            for task in group.tasks:
                found[task.value, pool.device_class] = found.get((task.value, pool.device_class), 0) + pool.num_gpus
    return found


def _rows(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> tuple[tuple[str, str, int, int], ...]:
    keys = sorted(before.keys() | after.keys())
    return tuple(
        (*key, before.get(key, 0), after.get(key, 0)) for key in keys if before.get(key, 0) != after.get(key, 0)
    )
