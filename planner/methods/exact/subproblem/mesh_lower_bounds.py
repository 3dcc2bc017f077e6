"""Lower bounds on groups with training that need no list of their meshes.

A mesh of two pools is no faster at a task than the best layouts of both pools for that task alone, if nothing were lost
between them. A mesh of one pool is no faster than the best layout of that pool. Memory of the other tasks does not
count. For fleets of thousands of devices, listing meshes takes longest, so groups whose bound is already too high are
never listed. Bounds are also computed per pair of classes, so that hopeless pairs are skipped (`limit_listed_meshes`).
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from planner.cost.candidates.columns import usable_classes
from planner.cost.candidates.meshes import MeshTimeLimits
from planner.cost.candidates.pool_layouts import PoolOptions, options
from planner.cost.tasks.layer_cuts import TENSOR
from planner.cost.tasks.phase_tables import least_seconds
from planner.cost.tasks.training import PoolTrainingTerms as Pools
from planner.cost.tasks.training import mesh_times
from planner.methods.exact.program.linear_model import INFINITE, Bools, Floats, Ints
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import NEVER, GroupLowerBounds, Subproblem, least_alone
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING, TRAINING, Task

_USED = (
    "samples_per_s",
    "stage_s",
    "bubble_s",
    "payload_bytes",
    "update_s",
    "data",
    "flows",
    "ring_bytes_per_s",
    "ring_latency_s",
)
"""Fields of a pool's training numbers that are combined with another pool's."""
_TOLERANCE = 1e-9
"""Relative tolerance of comparisons of times."""


def mesh_lower_bounds(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> GroupLowerBounds:
    """Return lower bounds on a group with training, for the trainer in that region."""
    found = data.known(("mesh lower bounds", tasks), lambda: _all_mesh_lower_bounds(data, tasks))
    return found[trainer_region] if Task.ACTOR_TRAINING in tasks else found[-1]


def limit_listed_meshes(data: ProblemArrays, subproblems: Iterable[Subproblem]) -> None:
    """Restrict the meshes that are listed to those that some of these subproblems allow.

    A mesh must leave time for the lower bounds of the other groups. The least over all subproblems counts.
    """
    least: dict[tuple[Tasks, int | None], tuple[float, ...]] = {}
    for subproblem in subproblems:
        each = {
            tasks: (mesh_lower_bounds if _trains(tasks) else least_alone)(data, tasks, subproblem.trainer_region)
            for tasks in subproblem.grouping
        }
        # For each group that trains: the lower bounds of all others, for its trainer's region and for any region.
        for tasks in (tasks for tasks in subproblem.grouping if _trains(tasks)):
            beside = GroupLowerBounds()
            for other, one in each.items():
                beside = beside if other == tasks else beside.with_other(one)
            phases = (beside.train_s, beside.score_s, beside.generation_s, beside.others_s)
            for trainer_region in {subproblem.trainer_region, None} if Task.ACTOR_TRAINING in tasks else {None}:
                least[tasks, trainer_region] = tuple(map(min, phases, least.get((tasks, trainer_region), phases)))
    path_s = data.ends * data.max_s * (1 + _TOLERANCE)
    for (tasks, region), (train_s, score_s, generation_s, others_s) in least.items():
        # What the path leaves for a mesh beside the other tasks of generation's group.
        left_s = path_s - others_s
        limits = MeshTimeLimits(
            busy_s=data.max_s, path_s=left_s, train_s=train_s, score_s=score_s, after_s=generation_s
        )
        data.mesh_limits[tasks, region] = (limits, _worth_listing(data, tasks, limits))


def _trains(tasks: Tasks) -> bool:
    return any(task in TRAINING for task in tasks)


def _worth_listing(data: ProblemArrays, tasks: Tasks, limits: MeshTimeLimits) -> Callable[[str, str], bool]:
    """Return a test on the keys of two classes (or twice one): whether a mesh on them may be within the limits."""
    train_s, score_s, gen_s = _phases_s(data, tasks)
    fits = limits.holds(train_s, score_s, gen_s) & np.isfinite(train_s)
    return lambda a, b: bool(fits[data.class_at[a], data.class_at[b]])


def _phases_s(data: ProblemArrays, tasks: Tasks) -> list[Floats]:
    """Return lower bounds on training, scoring and generation, `[num_classes, num_classes]` each.

    An entry is inf where no mesh is possible.
    """
    return data.known(("phases", tasks), lambda: _phases_of(data, tasks))


def _phases_of(data: ProblemArrays, tasks: Tasks) -> list[Floats]:
    """Compute the bounds of `_phases_s`."""
    pairs = _pairs(data, tasks)
    phases = (TRAINING, SCORING, (Task.GENERATION,))
    of = [[_seconds(data, task) for task in tasks if task in which] for which in phases]
    return [np.where(pairs, sum(each, np.zeros(pairs.shape)), INFINITE) for each in of]


def _all_mesh_lower_bounds(data: ProblemArrays, tasks: Tasks) -> list[GroupLowerBounds]:
    """Return lower bounds for each region as the trainer's region, then for any region."""
    phases, num = _phases_s(data, tasks), len(data.regions)
    least = []
    for seconds in (sum(phases, np.zeros(phases[0].shape)), *phases):
        # The best mesh that has the class as either pool, then the best class of each region.
        of_class = np.minimum(seconds.min(axis=0), seconds.min(axis=1))
        of_region = np.full(num + 1, of_class.min())
        of_region[:num] = INFINITE
        np.minimum.at(of_region, data.class_region, of_class)
        least.append(of_region.tolist())
    return [
        NEVER
        if busy_s == INFINITE
        else GroupLowerBounds(busy_s=busy_s, train_s=train_s, score_s=score_s, generation_s=generation_s)
        for busy_s, train_s, score_s, generation_s in zip(*least, strict=True)
    ]


def floor_usd(data: ProblemArrays, tasks: Tasks, trainer_region: int, most_s: float) -> float:
    """Return a lower bound on the rent in dollars per hour of a group with training.

    Its tasks take at most `most_s` seconds together, and each task's work is done at the best price per work of either
    class. Generation is not counted.
    """
    region_of_actor = trainer_region if Task.ACTOR_TRAINING in tasks else None
    per_step = data.known(("floor usd", tasks, region_of_actor), lambda: _usd_seconds(data, tasks, region_of_actor))
    return per_step / most_s


def _usd_seconds(data: ProblemArrays, tasks: Tasks, trainer_region: int | None) -> float:
    """Return the least rent times seconds over all pairs of classes that may be a mesh."""
    pairs = _pairs(data, tasks)
    if trainer_region is not None:
        here = data.class_region == trainer_region
        pairs = pairs & (here[:, None] | here[None, :])
    if not pairs.any():
        return INFINITE
    whole = np.zeros(pairs.shape)
    for task in tasks:
        if task is not Task.GENERATION:
            # Work is divided between both classes of a pair, so it costs no less than all of it on the cheaper one.
            each = data.known(("usd", task), partial(_usd_of, data, task))
            whole += np.minimum(each[:, None], each)
    return float(whole[pairs].min())


def _usd_of(data: ProblemArrays, task: Task) -> Floats:
    """Return `[num_classes]`: dollars per hour times seconds for one task's work in a step; inf without a price."""
    found = np.full(len(data.classes), INFINITE)
    for c, at in enumerate(data.classes):
        if at.usd_per_gpu_hour is None:
            continue
        # Device-seconds of one step's work on the best layout, times the price of a device.
        if task in SCORING:
            sizes = [size for size in TENSOR if size <= at.gpus_per_machine]
            devices_s = min(size * data.cost_tables.scoring_s(task, at.gpu, size) for size in sizes)
            found[c] = at.usd_per_gpu_hour * data.samples * devices_s
            continue
        of, fits = _options(data, task, c)
        if fits.any():
            samples = data.samples * data.cost_tables.problem.workload.epochs_per_step
            devices_s = float((of.num_gpus[fits] / of.blocks[task].samples_per_s[fits]).min())
            found[c] = at.usd_per_gpu_hour * samples * devices_s
    return found


def _pairs(data: ProblemArrays, tasks: Tasks) -> Bools:
    """Return `[num_classes, num_classes]`: whether two classes may be a mesh.

    The diagonal stands for meshes of one pool.
    """
    cost_tables = data.cost_tables
    may = np.zeros(len(data.classes), dtype=bool)
    may[[data.class_at[at.key] for at in usable_classes(cost_tables, tasks)]] = True
    if data.num_blocks < 2:
        return np.diag(may)
    grads = cost_tables.gradient_bytes(tasks) / 2
    joined = _joined(data)[data.class_region[:, None], data.class_region]
    near = data.class_region[:, None] == data.class_region
    # Between regions, gradients alone must fit into a step.
    far = (joined > 0) & (grads / data.max_s <= joined)
    found: Bools = may[:, None] & may & (near | far)
    return found


def _joined(data: ProblemArrays) -> Floats:
    """Return `[num_regions, num_regions]`: bytes per second between pools of one mesh; 0 where they cannot be one."""
    return data.known("joined", lambda: _joined_bytes_per_s(data))


def _joined_bytes_per_s(data: ProblemArrays) -> Floats:
    """Compute the rates of `_joined`."""
    # Rates between regions are the same for all their classes, so one class stands for each region.
    some = {int(region): at for region, at in zip(data.class_region, data.classes, strict=True)}
    found = np.zeros((len(data.regions), len(data.regions)))
    for a, one in some.items():
        for b, other in some.items():
            if a != b and data.cost_tables.network.joins(one.region.name, other.region.name):
                found[a, b] = data.cost_tables.edges((one, other))[0].bytes_per_s
    return found


def _seconds(data: ProblemArrays, task: Task) -> Floats:
    """Return lower bounds on the seconds of one task on two classes, `[num_classes, num_classes]`.

    The diagonal stands for one class alone.
    """
    return data.known(("seconds", task), lambda: _seconds_of(data, task))


def _seconds_of(data: ProblemArrays, task: Task) -> Floats:
    """Compute the bounds of `_seconds`."""
    if task is Task.GENERATION:
        return _generation_s(data)
    if task in TRAINING:
        return _training_s(data, task)
    # Scoring: both pools at their best rate, each with the whole class. One pool alone is on the diagonal.
    rates = np.array([_scoring_rate(data, task, c) for c in range(len(data.classes))])
    found: Floats = data.samples / (rates[:, None] + rates)
    np.fill_diagonal(found, data.samples / rates)
    return found


def _training_s(data: ProblemArrays, task: Task) -> Floats:
    """Return lower bounds on training, `[num_classes, num_classes]`: each layout beside the fastest other pool.

    The other pool adds at least one pipeline to the gradient ring. Both pools must reach their bound, so the larger
    counts.
    """
    workload, num = data.cost_tables.problem.workload, len(data.classes)
    # Bounds of a pool alone, the best rate of any of its layouts, and bounds of pairs.
    alone_s, rates, found = np.full(num, INFINITE), np.zeros(num), np.full((num, num), INFINITE)
    blocks = [_blocks(data, task, c) for c in range(num)]
    for c, (whole, paired) in enumerate(blocks):
        if len(whole.data):
            alone_s[c] = mesh_times(workload, [whole], []).total_s.min()
        rates[c] = paired.samples_per_s.max(initial=0.0)
    times = workload.epochs_per_step * workload.minibatches_per_step
    joined = _joined(data)
    for c, (_, paired) in enumerate(blocks):
        if not len(paired.data):
            continue
        # Arrays are [num_layouts of this class, num_classes].
        region = data.class_region[c]
        each = {name: getattr(paired, name)[:, None] for name in _USED}
        # Gradients between regions share the link; within a region the pool's own ring counts.
        slowest = np.where(data.class_region == region, INFINITE, joined[region, data.class_region])
        rate = np.minimum(each["ring_bytes_per_s"], np.maximum(slowest, 1e-9) / each["flows"])
        # Ring all-reduce over data + 1 pipelines: 2 data hops with payload / (data + 1) bytes each.
        shared = each["payload_bytes"] / (each["data"] + 1) / rate + each["ring_latency_s"]
        reduce_s = np.where(each["payload_bytes"] > 0, 2 * each["data"] * shared, 0.0)
        # Both pools share a minibatch by speed, but each runs at least one micro-batch.
        together = workload.samples_per_step / workload.minibatches_per_step / (each["samples_per_s"] + rates)
        one = np.maximum(each["stage_s"], together) + each["bubble_s"] + reduce_s + each["update_s"]
        found[c] = times * one.min(axis=0)
    both: Floats = np.maximum(found, found.T)
    np.fill_diagonal(both, alone_s)
    return both


def _blocks(data: ProblemArrays, task: Task, c: int) -> tuple[Pools, Pools]:
    """Return (layouts of one task that fit the class, those of them that may be one pool of two)."""
    of, fits = _options(data, task, c)
    return of.blocks[task].take(np.flatnonzero(fits)), of.blocks[task].take(np.flatnonzero(fits & ~of.is_full))


def _options(data: ProblemArrays, task: Task, c: int) -> tuple[PoolOptions, Bools]:
    """Return the layouts of one task alone, and which of them the class has enough machines for."""
    at, cost_tables = data.classes[c], data.cost_tables
    key = ("options", (task,), cost_tables.kind(at), at.num_machines)
    of = cost_tables.known(key, lambda: options(cost_tables, (task,), at, at.num_machines))
    return of, of.num_units * of.unit <= of.held * at.num_machines


def _scoring_rate(data: ProblemArrays, task: Task, c: int) -> float:
    """Return the best samples per second of scoring with all devices of a class."""
    at = data.classes[c]
    sizes = [size for size in TENSOR if size <= at.gpus_per_machine]
    return max(at.num_units(size) / data.cost_tables.scoring_s(task, at.gpu, size) for size in sizes)


def _generation_s(data: ProblemArrays) -> Floats:
    """Return lower bounds on generation as a phase, `[num_classes, num_classes]`.

    The shorter of both loading times counts.
    """
    cost_tables, tables = data.cost_tables, []
    for at in data.classes:
        made = np.zeros(len(cost_tables.phase_seconds))
        for tensor in (size for size in TENSOR if size <= at.gpus_per_machine):
            # A mesh within one machine loads over its link, a larger one over the fabric. A bound takes the better.
            loads = [
                cost_tables.load_s(at, tensor, num_gpus=num) for num in (at.gpus_per_machine, at.gpus_per_machine + 1)
            ]
            for load_s in loads:
                # Best number of sequences at each knot: [num_knots].
                shares = cost_tables.shares(at.gpu, tensor, load_s).max(axis=0)
                made = np.maximum(made, at.num_gpus // tensor * shares)
        tables.append(made)
    # Best samples by the end of a phase with all devices of each class: [num_classes, num_knots].
    stacked = np.array(tables)
    num = len(stacked)
    seconds = cost_tables.phase_seconds

    def both(place: Ints) -> Floats:
        found: Floats = stacked[np.arange(num)[:, None], place] + stacked[np.arange(num), place]
        return found

    found = least_seconds(seconds, both, (num, num), data.samples)
    alone = least_seconds(seconds, lambda place: stacked[np.arange(num), place], (num,), data.samples)
    np.fill_diagonal(found, alone)
    return found
