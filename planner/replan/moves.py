"""Difference of two placements: which devices keep their use, and which move.

The *use* of a device is what decides which weights it holds: the group's tasks, the size of its unit, and the tensor
and pipeline degrees of each task. A device *moves* if it starts a use that it did not have, because it was free or had
another one. Devices that continue, stop or are lost do not move; a device that replaces a lost one does. Micro-batches,
recomputation and sharding over data-parallel replicas are not part of a use: they change with a restart, in place.

Devices are counted by class. The caller may say which devices are lost (`Lost`). Otherwise those count as lost whose
loss moves the fewest devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.answer.placement import Placement, Pool
from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Use:
    """Use of one device: the work that it does."""

    tasks: tuple[Task, ...]
    unit_gpus: int
    cuts: tuple[tuple[Task, int, int], ...]
    """Triples (task, tensor, pipeline), one per task."""


Uses = Mapping[str, Mapping[Use, int]]
"""Number of devices by class and use."""
Lost = Mapping[str, Mapping[Use, int]]
"""Number of used devices that are gone, by class and use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Devices of one class whose use changes."""

    device_class: str
    num_gpus: int
    before: tuple[Task, ...]
    """Tasks before the change. Empty if the devices were free or not there."""
    after: tuple[Task, ...]
    """Tasks after the change. Empty if the devices are released or gone."""


def use_of(tasks: tuple[Task, ...], pool: Pool) -> Use:
    """Return the use of the devices of a pool, in a group with these tasks."""
    cuts = tuple((task, layout.tensor, layout.pipeline) for task, layout in pool.layouts)
    return Use(tasks=tasks, unit_gpus=pool.unit_gpus, cuts=cuts)


def uses(placement: Placement) -> Uses:
    """Return the uses of all devices of a placement."""
    found: dict[str, dict[Use, int]] = {}
    for group in placement.groups:
        for pool in group.pools:
            use, of_class = use_of(group.tasks, pool), found.setdefault(pool.device_class, {})
            of_class[use] = of_class.get(use, 0) + pool.num_gpus
    return found


def staying(placement: Placement, lost: Lost) -> Uses:
    """Return the uses of a placement's devices that are not lost."""
    return {
        key: {use: max(0, num - lost.get(key, {}).get(use, 0)) for use, num in of_class.items()}
        for key, of_class in uses(placement).items()
    }


def diff(running: Placement, target: Placement, lost: Lost | None = None) -> tuple[Move, ...]:
    """Return the changes from `running` to `target` that involve the fewest devices, sorted by class.

    Devices of `running` that are lost come last.
    """
    was, will = staying(running, lost or {}), uses(target)
    moves: list[Move] = []
    for key in sorted(was.keys() | will.keys()):
        moves += _of_class(key, was.get(key, {}), will.get(key, {}))
    for key, gone in sorted((lost or {}).items()):
        moves += [Move(device_class=key, num_gpus=n, before=use.tasks, after=()) for use, n in sorted(gone.items())]
    return tuple(moves)


def num_moved(running: Placement, target: Placement, lost: Lost | None = None) -> int:
    """Return the number of devices that start a use in `target` that they did not have in `running`."""
    was, will = staying(running, lost or {}), uses(target)
    return sum(
        max(0, num - was.get(key, {}).get(use, 0)) for key, of_class in will.items() for use, num in of_class.items()
    )


def _of_class(key: str, was: Mapping[Use, int], will: Mapping[Use, int]) -> list[Move]:
    """Return the changes in one class.

    Uses with the same tasks are paired first, then other uses; what remains becomes free or was free.
    """
    # Devices that leave a use, and devices that start one. Uses that keep their number appear in neither.
    gone = {use: num - will.get(use, 0) for use, num in was.items() if num > will.get(use, 0)}
    come = {use: num - was.get(use, 0) for use, num in will.items() if num > was.get(use, 0)}
    moves: list[Move] = []
    for same_tasks in (True, False):
        for old in sorted(gone):
            for new in sorted(come):
                num = min(gone[old], come[new])
                if num and (old.tasks == new.tasks or not same_tasks):
                    moves.append(Move(device_class=key, num_gpus=num, before=old.tasks, after=new.tasks))
                    gone[old] -= num
                    come[new] -= num
    moves += [Move(device_class=key, num_gpus=n, before=use.tasks, after=()) for use, n in sorted(gone.items()) if n]
    moves += [Move(device_class=key, num_gpus=n, before=(), after=use.tasks) for use, n in sorted(come.items()) if n]
    return moves
