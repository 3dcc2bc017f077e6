"""The difference of two placements: which devices stay as they are, and which change what they do.

What a device does is its *use*: the group's tasks, the size of its unit, and for each task how tensors and stages are
cut, for that decides which weights it holds. A device *moves* if it starts a use that it did not have: because it was
free, or had another one. Devices that go on as they are do not move, nor do those that stop, nor those that are lost;
who takes the place of a lost one moves. Micro-batches, recomputation and sharding over data-parallel replicas are no
part of a use: they change with a restart, in place.

Devices are counted by class. Which of them are lost (`Lost`) is the caller's to say; where it is not said, those count
as lost whose loss moves the fewest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.answer.placement import Placement, Pool
from planner.question.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Use:
    """What one device does."""

    tasks: tuple[Task, ...]
    unit_gpus: int
    cuts: tuple[tuple[Task, int, int], ...]
    """Of each task: tensor, pipeline."""


Uses = Mapping[str, Mapping[Use, int]]
"""Devices by class and use."""
Lost = Mapping[str, Mapping[Use, int]]
"""Devices in use that are gone, by class and use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Devices of one class that do something else afterwards."""

    device_class: str
    num_gpus: int
    before: tuple[Task, ...]
    """Empty: they were free, or not there."""
    after: tuple[Task, ...]
    """Empty: they are released, or gone."""


def use_of(tasks: tuple[Task, ...], pool: Pool) -> Use:
    """Of the devices of a pool of a group of these tasks."""
    cuts = tuple((task, layout.tensor, layout.pipeline) for task, layout in pool.layouts)
    return Use(tasks=tasks, unit_gpus=pool.unit_gpus, cuts=cuts)


def uses(placement: Placement) -> Uses:
    """Of all devices that a placement has."""
    found: dict[str, dict[Use, int]] = {}
    for group in placement.groups:
        for pool in group.pools:
            use, of_class = use_of(group.tasks, pool), found.setdefault(pool.device_class, {})
            of_class[use] = of_class.get(use, 0) + pool.num_gpus
    return found


def staying(placement: Placement, lost: Lost) -> Uses:
    """What of a placement goes on."""
    return {
        key: {use: max(0, num - lost.get(key, {}).get(use, 0)) for use, num in of_class.items()}
        for key, of_class in uses(placement).items()
    }


def diff(a: Placement, b: Placement, lost: Lost | None = None) -> tuple[Move, ...]:
    """The fewest devices that change on the way from `a` to `b`, sorted by class; those of `a` that are lost last."""
    was, will = staying(a, lost or {}), uses(b)
    moves: list[Move] = []
    for key in sorted(was.keys() | will.keys()):
        moves += _of_class(key, was.get(key, {}), will.get(key, {}))
    for key, gone in sorted((lost or {}).items()):
        moves += [Move(device_class=key, num_gpus=n, before=use.tasks, after=()) for use, n in sorted(gone.items())]
    return tuple(moves)


def num_moved(a: Placement, b: Placement, lost: Lost | None = None) -> int:
    """Devices that do something in `b` that they did not in `a`."""
    was, will = staying(a, lost or {}), uses(b)
    return sum(
        max(0, num - was.get(key, {}).get(use, 0)) for key, of_class in will.items() for use, num in of_class.items()
    )


def _of_class(key: str, was: Mapping[Use, int], will: Mapping[Use, int]) -> list[Move]:
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
