"""Greedy first placements: choose a mesh, then assign machines in batches to the group that is slowest.

They cost almost no time and give the search an incumbent. They are not evaluated here.
"""

from collections.abc import Iterator

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.methods.exact.program.linear_model import Floats, Ints
from planner.methods.exact.subproblem.candidate_arrays import MeshArrays, ProblemArrays, UnitArrays
from planner.problem.goal import IMPOSSIBLE_STEP_S
from planner.problem.groupings import Grouping, Tasks
from planner.problem.workload import TRAINING, Task


def greedy(data: ProblemArrays, grouping: Grouping, trainer_region: int) -> Iterator[Placement]:
    """Yield a few placements with this grouping and trainer's region."""
    latencies = data.settings.greedy_latencies
    first = next(tasks for tasks in grouping if Task.ACTOR_TRAINING in tasks)
    others = [tasks for tasks in grouping if tasks != first]
    block = data.meshes(first, trainer_region)
    for i in _spread(block, np.flatnonzero(block.source_region == trainer_region), data.settings.greedy_meshes):
        # Free machines of each class; the meshes of groups that train take theirs first.
        free = {c: each.num_machines for c, each in enumerate(data.classes)}
        if not _take(data, free, block, i):
            continue
        groups = {first: block.columns[i].group}
        if not _add_other_meshes(data, free, groups, others):
            continue
        units = [tasks for tasks in others if not any(task in TRAINING for task in tasks)]
        # Distant units have a shorter window: `slack` is how much more distant than the nearest generation may be.
        for slack in latencies if any(Task.GENERATION in tasks for tasks in units) else latencies[:1]:
            assigned = _assign_machines(data, dict(free), units, trainer_region, slack)
            if assigned is not None:
                yield Placement(groups=tuple((groups | assigned)[tasks] for tasks in grouping))


def _spread(block: MeshArrays, rows: Ints, num: int) -> list[int]:
    """Return at most `num` of the rows, from the fastest mesh to the smallest one.

    Only meshes count than which no faster one is smaller.
    """
    if not len(rows):
        return []
    order = rows[np.argsort(block.busy_s[rows], kind="stable")]
    best: list[int] = []
    for row in order.tolist():
        if not best or block.num_gpus[row] < block.num_gpus[best[-1]]:
            best.append(row)
    return [best[i] for i in np.unique(np.linspace(0, len(best) - 1, num).round().astype(int)).tolist()]


def _take(data: ProblemArrays, free: dict[int, int], block: MeshArrays, row: int) -> bool:
    """Remove a mesh's machines from `free`, in whole machines; return False if there are not enough."""
    needed: dict[int, int] = {}
    for pool in block.columns[row].group.pools:
        at = data.class_at[pool.device_class]
        # Machines, rounded up, that the pool's units fill. The pools of a mesh are of different classes.
        needed[at] = -(-pool.num_units // (data.classes[at].gpus_per_machine // pool.unit_gpus))
    if any(free[at] < num for at, num in needed.items()):
        return False
    for at, num in needed.items():
        free[at] -= num
    return True


def _add_other_meshes(
    data: ProblemArrays, free: dict[int, int], groups: dict[Tasks, Group], others: list[Tasks]
) -> bool:
    """Add the fastest mesh of moderate size for each other group that trains; return False if one finds none."""
    for tasks in others:
        if not any(task in TRAINING for task in tasks):
            continue
        block = data.meshes(tasks)
        for row in np.argsort(block.busy_s, kind="stable").tolist():
            kept = dict(free)
            # A mesh may use at most about an equal share of the fleet.
            spare = sum(data.classes[c].num_gpus for c in free) // (len(others) + 1)
            if block.num_gpus[row] <= max(spare, 1) and _take(data, kept, block, row):
                free.update(kept)
                groups[tasks] = block.columns[row].group
                break
        else:
            return False
    return True


def _assign_machines(
    data: ProblemArrays, free: dict[int, int], units: list[Tasks], trainer_region: int, slack: float
) -> dict[Tasks, Group] | None:
    """Assign all free machines to the groups without training; None if some group gets none."""
    if not units:
        return {}
    # The best kind of unit of each class for each group, by class.
    choices = [_best_rows(data, data.units(tasks), trainer_region, slack) for tasks in units]
    worth = _worth(data, units, choices)
    made = [np.zeros(len(tasks)) for tasks in units]
    taken: list[dict[int, int]] = [{} for _ in units]
    batches = {c: _batches(num, data.settings.greedy_batches) for c, num in sorted(free.items()) if num}
    # The slowest group takes a batch of the class on which it has the largest advantage over other groups.
    for _ in range(sum(len(each) for each in batches.values())):
        # Seconds per step of each group with what it has so far; huge for a group without units.
        busy = [float(np.sum(data.samples / np.maximum(each, 1e-12))) for each in made]
        slowest = max(range(len(units)), key=lambda g: busy[g])
        useful = [c for c in batches if c in choices[slowest]]
        if not useful:
            # The slowest group can take nothing more. If it has nothing at all, this is no placement.
            if max(busy) > IMPOSSIBLE_STEP_S:
                return None
            break
        c = max(useful, key=lambda each: worth[slowest][each])
        machines = batches[c].pop()
        if not batches[c]:
            del batches[c]
        row = choices[slowest][c]
        block = data.units(units[slowest])
        num = machines * (data.classes[c].gpus_per_machine // int(block.gpus[row]))
        made[slowest] = made[slowest] + num * block.rates[row]
        taken[slowest][row] = taken[slowest].get(row, 0) + num
    if any(not each for each in taken):
        return None
    return {tasks: _group(data.units(tasks), tasks, rows) for tasks, rows in zip(units, taken, strict=True)}


def _batches(num: int, most: int) -> list[int]:
    """Divide a number of machines into at most `most` nearly equal batches."""
    size = max(1, -(-num // most))
    return [min(size, num - start) for start in range(0, num, size)]


def _best_rows(data: ProblemArrays, block: UnitArrays, trainer_region: int, slack: float) -> dict[int, int]:
    """Return, by class, the row that makes most per device among those near enough."""
    transfers = data.transfers(trainer_region)
    keep = np.isfinite(transfers.scoring_s[block.at_region])
    if Task.GENERATION in block.tasks:
        lag = (transfers.weights_s + transfers.trajectories_s)[block.at_region] + block.first_s
        if keep.any():
            keep &= lag <= slack * float(lag[keep].min())
    # Samples per second and device with all tasks by turns.
    made: Floats = (1.0 / np.sum(1.0 / np.maximum(block.rates, 1e-12), axis=1)) / block.gpus
    best: dict[int, int] = {}
    for row in np.flatnonzero(keep).tolist():
        c = int(block.at_class[row])
        if c not in best or made[row] > made[best[c]]:
            best[c] = row
    return best


def _worth(data: ProblemArrays, units: list[Tasks], choices: list[dict[int, int]]) -> list[dict[int, float]]:
    """Return, by group and class, how much better a device is at the group's work than at any other group's.

    Values are relative to each group's best class.
    """
    # Samples per second and device on each class at the group's slowest task, as a share of the group's best class.
    own: list[dict[int, float]] = []
    for tasks, rows in zip(units, choices, strict=True):
        block = data.units(tasks)
        each = {c: float(np.min(block.rates[row] / block.gpus[row])) for c, row in rows.items()}
        best = max(each.values(), default=1.0)
        own.append({c: value / best for c, value in each.items()})
    # Less the largest such share of any other group, which would lose the device.
    return [
        {
            c: value - max((other.get(c, 0.0) for h, other in enumerate(own) if h != g), default=0.0)
            for c, value in mine.items()
        }
        for g, mine in enumerate(own)
    ]


def _group(block: UnitArrays, tasks: Tasks, rows: dict[int, int]) -> Group:
    """Return the group with these numbers of units, by row."""
    pools = []
    for row, num in sorted(rows.items()):
        unit = block.columns[row].unit
        pools.append(
            Pool(device_class=unit.device_class, unit_gpus=unit.unit_gpus, num_units=num, layouts=unit.layouts)
        )
    return Group(tasks=tasks, pools=tuple(pools))
