"""Guided children: move devices to where the oracle says that time is lost.

The binding need of an evaluation names a group, a region's path, or a link.

- Group: it gets idle devices, or some of the group that waits most.
- Path: one of its parts is chosen in proportion to its seconds. Training and scoring get devices. Transfers become
  shorter if the region stops generating. The window gets more generators, or ones with another layout.
- Link: the region behind it stops generating.

For goals in dollars some of the children give devices back. These moves change sizes, which HetRL's swaps do not.

`held` is `[num_groups, num_classes]` devices; `g`, `b` and `donor` are groups, `c` is a device class.
"""

import numpy as np

from planner.answer.evaluation import Evaluation
from planner.methods.hetrl.evolution import amount
from planner.methods.hetrl.genome import GroupingDecoder, GroupingGenome
from planner.methods.hetrl.settings import SETTINGS
from planner.problem.goal import Objective
from planner.problem.workload import SCORING, TRAINING, Task


def guided(
    decoder: GroupingDecoder, parent: GroupingGenome, estimate: Evaluation, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child of `parent` that should be better, or None if its evaluation gives no direction."""
    goal = decoder.lists.cost_tables.problem.goal
    if goal.objective is not Objective.THROUGHPUT and rng.random() < SETTINGS.give_back_share:
        return _give_back(decoder, parent, estimate, rng)
    if estimate.idle and rng.random() < SETTINGS.reassign_idle_share:
        return _reassign_idle(decoder, parent, estimate, rng)
    # Otherwise act on the need that determines the step time.
    kind, _, subject = estimate.binding.partition(":")
    if kind == "group":
        tasks = subject.split("+")
        return _add_devices(decoder, parent, estimate, _group_with(decoder, Task(tasks[0])), rng)
    if kind == "path":
        return _shortened(decoder, parent, estimate, subject, rng)
    if kind == "link":
        return _leave_region(decoder, parent, subject.partition(">")[2], rng)
    # What is left is the trainer's uplink or a budget. One region less that receives versions relieves both.
    remote = [each.region for each in estimate.regions if each.weights_s > 0]
    return _leave_region(decoder, parent, str(rng.choice(remote)), rng) if remote else None


def _shortened(
    decoder: GroupingDecoder, genome: GroupingGenome, estimate: Evaluation, name: str, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child with a shorter path through the region of that name, or None."""
    times = dict(estimate.task_s)
    region = next((each for each in estimate.regions if each.region == name), None)
    train_s, trainer = _longest(decoder, times, TRAINING)
    score_s, scorer = _longest(decoder, times, SCORING)
    transfers_s, window_s = (region.weights_s + region.trajectories_s, region.window_s) if region else (0.0, 0.0)
    # The path's parts: training, scoring, transfers, window; one is chosen in proportion to its seconds.
    parts = np.array([train_s, score_s, transfers_s, window_s])
    generator = _group_with(decoder, Task.GENERATION)
    match int(rng.choice(4, p=parts / parts.sum())):
        case 0:
            return _add_devices(decoder, genome, estimate, trainer, rng)
        case 1:
            return _add_devices(decoder, genome, estimate, scorer, rng)
        case 2:
            return _leave_region(decoder, genome, name, rng)
        case _:
            # By turns with training there is no layout of generation alone to choose.
            if decoder.trains[generator] or rng.random() < SETTINGS.more_generators_share:
                return _add_devices(decoder, genome, estimate, generator, rng)
            return _relaid(decoder, genome, generator, name)


def _add_devices(
    decoder: GroupingDecoder, genome: GroupingGenome, estimate: Evaluation, g: int, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child in which group `g` gets idle devices, or else devices of the group that is busy least."""
    held = np.array(genome.held)
    whole = np.array([at.num_gpus for at in decoder.classes])
    # A mesh may not spread over more classes than the runtime can join.
    usable = np.array(decoder.usable[g])
    if decoder.trains[g]:
        usable &= (held[g] > 0) | (int((held[g] > 0).sum()) < decoder.max_blocks)
    # Idle devices first.
    idle = np.where(usable, whole - held.sum(axis=0), 0)
    if idle.any():
        c = int(rng.choice(np.flatnonzero(idle)))
        held[g, c] += amount(decoder, int(idle[c]), rng)
        return _child(held, genome)
    # Else devices of another group, the least busy ones more likely.
    busy = _busy_s(decoder, estimate)
    for donor in sorted(
        (b for b in range(len(held)) if b != g), key=lambda b: busy[b] * rng.uniform(*SETTINGS.donor_noise)
    ):
        spare = np.flatnonzero(np.where(usable, held[donor], 0))
        if len(spare):
            c = int(rng.choice(spare))
            num = min(amount(decoder, int(held[donor, c]), rng), int(held[donor].sum()) - 1)
            held[donor, c] -= num
            held[g, c] += num
            return _child(held, genome) if num else None
    return None


def _give_back(
    decoder: GroupingDecoder, genome: GroupingGenome, estimate: Evaluation, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child in which the group that waits most gives devices back."""
    held = np.array(genome.held)
    busy = _busy_s(decoder, estimate)
    # The noise makes repeated calls on one parent choose different groups.
    g = min(range(len(held)), key=lambda b: busy[b] * rng.uniform(*SETTINGS.give_back_noise))
    used = np.flatnonzero(held[g])
    if not len(used):
        return None
    c = int(rng.choice(used))
    held[g, c] -= amount(decoder, int(held[g, c]), rng)
    return _child(held, genome)


def _leave_region(
    decoder: GroupingDecoder, genome: GroupingGenome, region: str, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child in which generation leaves the region; another group takes its devices, or they are idle."""
    held = np.array(genome.held)
    g = _group_with(decoder, Task.GENERATION)
    if decoder.trains[g]:
        return None
    for c, at in enumerate(decoder.classes):
        if at.region.name == region and held[g, c]:
            # Another group without training that may use the class takes over its devices.
            takers = [b for b in range(len(held)) if b != g and not decoder.trains[b] and decoder.usable[b][c]]
            if takers:
                held[int(rng.choice(takers)), c] += held[g, c]
            held[g, c] = 0
    return _child(held, genome) if held[g].any() else None


def _reassign_idle(
    decoder: GroupingDecoder, genome: GroupingGenome, estimate: Evaluation, rng: np.random.Generator
) -> GroupingGenome | None:
    """Return a child in which one class that idles in generation does another group's work, or none."""
    placement = decoder.placement(genome)
    g = _group_with(decoder, Task.GENERATION)
    if placement is None or decoder.trains[g]:
        return None
    # `idle` has indices of pools, which exist only in the decoded placement.
    key = placement.groups[g].pools[int(rng.choice(estimate.idle))].device_class
    c = next(c for c, at in enumerate(decoder.classes) if at.key == key)
    held = np.array(genome.held)
    # Without a taker the devices become free, which at least saves their rent.
    takers = [b for b in range(len(held)) if b != g and not decoder.trains[b] and decoder.usable[b][c]]
    if takers:
        held[int(rng.choice(takers)), c] += held[g, c]
    held[g, c] = 0
    return _child(held, genome) if held[g].any() else None


def _relaid(decoder: GroupingDecoder, genome: GroupingGenome, g: int, region: str) -> GroupingGenome:
    """Return a child in which the region's units take the next layout, which may finish its first samples sooner."""
    choice = np.array(genome.choice)
    for c, at in enumerate(decoder.classes):
        if at.region.name == region:
            choice[g, c] += 1
    return _child(np.array(genome.held), genome, choice)


def _longest(decoder: GroupingDecoder, times: dict[Task, float], kinds: tuple[Task, ...]) -> tuple[float, int]:
    """Return (seconds, group) of the group that takes longest for tasks of these kinds."""
    sums = [sum(times[t] for t in group if t in kinds) for group in decoder.grouping]
    return max((seconds, g) for g, seconds in enumerate(sums))


def _busy_s(decoder: GroupingDecoder, estimate: Evaluation) -> list[float]:
    """Return the busy seconds of each group."""
    times = dict(estimate.task_s)
    return [sum(times[task] for task in group) for group in decoder.grouping]


def _group_with(decoder: GroupingDecoder, task: Task) -> int:
    """Return the index of the group with that task."""
    return next(g for g, group in enumerate(decoder.grouping) if task in group)


def _child(held: np.ndarray, genome: GroupingGenome, choice: np.ndarray | None = None) -> GroupingGenome:
    """Return a genome with these devices, and the parent's choices unless others are given."""
    return GroupingGenome(
        held=tuple(map(tuple, held.tolist())),
        choice=genome.choice if choice is None else tuple(map(tuple, choice.tolist())),
    )
