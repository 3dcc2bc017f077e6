"""The difference of two placements: which devices stay as they are, and which change what they do."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.answer.placement import Layout, Placement
from planner.question.workload import Task

Use = tuple[tuple[Task, ...], int, tuple[tuple[Task, Layout], ...]]
"""Tasks, devices of a unit, layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Devices of one class that do something else afterwards."""

    device_class: str
    num_gpus: int
    before: tuple[Task, ...]
    """Empty: they were free, or not there."""
    after: tuple[Task, ...]
    """Empty: they are released, or gone."""


def diff(a: Placement, b: Placement) -> tuple[Move, ...]:
    """The fewest devices that change on the way from `a` to `b`, sorted by class."""
    was, will = uses(a), uses(b)
    moves: list[Move] = []
    for key in sorted(was.keys() | will.keys()):
        moves += _of_class(key, was.get(key, {}), will.get(key, {}))
    return tuple(moves)


def num_moved(a: Placement, b: Placement) -> int:
    """Devices that do something in `b` that they did not in `a`."""
    return sum(move.num_gpus for move in diff(a, b) if move.after)


def uses(placement: Placement) -> Mapping[str, Mapping[Use, int]]:
    """Devices by class and use."""
    found: dict[str, dict[Use, int]] = {}
    for group in placement.groups:
        for pool in group.pools:
            use = (group.tasks, pool.unit_gpus, pool.layouts)
            of_class = found.setdefault(pool.device_class, {})
            of_class[use] = of_class.get(use, 0) + pool.num_gpus
    return found


def _of_class(key: str, was: Mapping[Use, int], will: Mapping[Use, int]) -> list[Move]:
    gone = {use: num - will.get(use, 0) for use, num in was.items() if num > will.get(use, 0)}
    come = {use: num - was.get(use, 0) for use, num in will.items() if num > was.get(use, 0)}
    moves: list[Move] = []
    for same_tasks in (True, False):
        for old in sorted(gone, key=repr):
            for new in sorted(come, key=repr):
                num = min(gone[old], come[new])
                if num and (old[0] == new[0] or not same_tasks):
                    moves.append(Move(device_class=key, num_gpus=num, before=old[0], after=new[0]))
                    gone[old] -= num
                    come[new] -= num
    moves += [
        Move(device_class=key, num_gpus=n, before=use[0], after=()) for use, n in sorted(gone.items(), key=repr) if n
    ]
    moves += [
        Move(device_class=key, num_gpus=n, before=(), after=use[0]) for use, n in sorted(come.items(), key=repr) if n
    ]
    return moves
