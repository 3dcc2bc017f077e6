"""Opening heuristic for one grouping: assign device classes to its groups, and estimate all assignments at once.

Each group that trains gets a class or a pair of classes, whole or in part; its fastest mesh on them is known. The other
devices are assigned in batches: the slowest group without training takes a batch of the class that suits it best
compared with the other groups. A fluid estimate of the step (busy seconds, and the path with transfers of weights)
ranks the results, and only the best few are given to the oracle.

Indices: `g` is a group of the grouping, `c` is a device class in the order of keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from planner.answer.placement import Layout
from planner.cost.batched.batch_tables import transfer_tables
from planner.cost.tasks import memory
from planner.cost.tasks.layer_cuts import TENSOR, of_layout
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.methods.hetrl.fluid_bounds import Bounds
from planner.methods.hetrl.genome import GroupingDecoder, GroupingGenome
from planner.methods.opening.settings import SETTINGS
from planner.problem.device_classes import MANY_CLASSES
from planner.problem.goal import IMPOSSIBLE_STEP_S
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING, TRAINING, Task

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeshDevices:
    """Devices that a group with training may get, and its seconds per step on their fastest mesh."""

    held: tuple[int, ...]
    """Devices of each class."""
    at: int
    """Class of the first pool."""
    train_s: float
    score_s: float
    gen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignments:
    """Divisions of the fleet among all groups, a row each."""

    held: Ints
    """Devices by group and class, `[num_rows, num_groups, num_classes]`."""
    which: Ints
    """Index of the combination of meshes, `[num_rows]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSpeeds:
    """Numbers per class that the estimates are made of; arrays are `[num_classes]` unless said otherwise."""

    tasks: tuple[Task, ...]
    whole: Ints
    """Devices of the class."""
    batch: Ints
    """Devices of one batch."""
    steps: Mapping[Task, Floats]
    """Steps per second of one device by task, `[num_sizes, num_classes]`: best layout with units of at least that
    size."""
    served: Mapping[Task, float]
    """Resident bytes of each task that does not train, on one device without tensor parallelism."""
    usable: Floats
    """Usable bytes of one device, `[num_trained + 1, num_classes]`, less the states of 0, 1 or 2 models that are
    trained on the whole class."""
    lag_s: Floats
    """Seconds of a version of the actor, `[num_classes, num_classes]`: from the trainer's class to each class."""
    critic_s: Floats
    """Seconds of the critic's weights, `[num_classes, num_classes]`."""
    strong: tuple[int, ...]
    """Classes that may get a mesh, strongest first."""
    tail_s: float
    """Rough seconds in which the longest sample runs alone."""
    eta: int

    @property
    def favour(self) -> float:
        """Factor by which generation counts as slower than it is."""
        return SETTINGS.generation_slowdowns[-1] if self.eta else SETTINGS.generation_slowdowns[0]

    def is_near(self, trainer_class: Ints) -> npt.NDArray[np.bool_]:
        """Return `[num_rows, num_classes]`: whether versions from the trainers' classes arrive soon enough."""
        near: npt.NDArray[np.bool_] = self.lag_s[trainer_class] <= SETTINGS.near_share * self.tail_s
        return near

    def steps_of(self, tasks: Sequence[Task]) -> dict[Task, Floats]:
        """Return the steps per second of each task, `[num_classes]`, on units with memory for all these tasks.

        An entry is 0 where no unit has enough memory.
        """
        held = sum(self.served[task] for task in tasks if task not in TRAINING)
        room = self.usable[sum(task in TRAINING for task in tasks)]
        size = (held / np.array(TENSOR)[:, None] > room).sum(axis=0)
        fits, classes = size < len(TENSOR), np.arange(len(room))
        place = np.minimum(size, len(TENSOR) - 1)
        return {task: np.where(fits, self.steps[task][place, classes], 0.0) for task in tasks}


def class_speeds(lists: CandidateLists, bounds: Bounds) -> ClassSpeeds:
    """Return the numbers of one problem."""
    cost_tables, transfers = lists.cost_tables, transfer_tables(lists.cost_tables)
    workload = cost_tables.problem.workload
    classes = tuple(at for _, at in sorted(cost_tables.classes.items()))
    trained = [task for task in workload.tasks if task in TRAINING]
    whole = np.array([at.num_gpus for at in classes])
    names = sorted({at.region.name for at in classes})
    region = np.array([names.index(at.region.name) for at in classes])
    # From regions to classes: [num_regions, num_regions] becomes [num_classes, num_classes].
    lag_s, critic_s = (each[np.ix_(region, region)] for each in (transfers.weights_s, transfers.critic_s))
    # Training state of the first models, in the order of tasks. Spread over a whole class it is what each device keeps
    # at least.
    state_bytes = [float(memory.trained_bytes(workload, task, of_layout(Layout(tensor=1), 1))[0]) for task in trained]
    states = [sum(state_bytes[:num]) for num in range(len(trained) + 1)]
    steps = {task: _steps(lists, bounds, task) for task in workload.tasks}
    # A class's strength is what all its devices together train.
    power = whole * steps[Task.ACTOR_TRAINING].max(axis=0)
    strongest = np.argsort(-power, kind="stable")
    usable = np.array([memory.usable_bytes(at.gpu) for at in classes])
    return ClassSpeeds(
        tasks=workload.tasks,
        whole=whole,
        batch=batch_sizes(whole, SETTINGS.batches_per_class),
        lag_s=lag_s,
        critic_s=critic_s,
        steps=steps,
        strong=tuple(
            c
            for c in strongest[: SETTINGS.max_training_classes].tolist()
            if power[c] >= SETTINGS.least_training_share * power.max()
        ),
        served={task: memory.served_bytes(workload, task, 1) for task in workload.tasks if task not in TRAINING},
        usable=np.array([usable - state / whole for state in states]),
        tail_s=float(cost_tables.phase_seconds[0]),
        eta=workload.eta,
    )


def batch_sizes(whole: Ints, num: int) -> Ints:
    """Return the devices in one batch of each class for `num` batches per class, or fewer with many classes."""
    return -(-whole // max(1, min(num, SETTINGS.max_batches // len(whole))))


def _steps(lists: CandidateLists, bounds: Bounds, task: Task) -> Floats:
    """Return the steps per second of one device with units of at least each size, `[num_sizes, num_classes]`."""
    found = np.array([bounds.rates_by_size(task, at) for _, at in sorted(lists.cost_tables.classes.items())]).T
    steps: Floats = np.maximum.accumulate(found[::-1], axis=0)[::-1] / bounds.work(task)
    return steps


class DeviceAssigner:
    """Opening heuristic of one problem; it keeps what groups with training may get."""

    def __init__(self, lists: CandidateLists, fleet: ClassSpeeds) -> None:
        cost_tables = lists.cost_tables
        self._lists, self._fleet, self._workload = lists, fleet, cost_tables.problem.workload
        self._classes = tuple(at for _, at in sorted(cost_tables.classes.items()))
        self._whole, self._most = fleet.whole, fleet.whole.tolist()
        self._lag_s, self._critic_s = fleet.lag_s, fleet.critic_s
        self._strong = fleet.strong
        self._known_options: dict[tuple[Tasks, bool], tuple[_MeshDevices, ...]] = {}

    def genomes(self, decoder: GroupingDecoder, num: int) -> Iterator[GroupingGenome]:
        """Yield the `num` most promising genomes of a grouping by estimate, best first."""
        # Every combination of meshes that fits into the fleet, one mesh for each group that trains.
        trains = [g for g, each in enumerate(decoder.trains) if each]
        options = [self._mesh_options(decoder.grouping[g], may_pair=len(trains) == 1) for g in trains]
        mesh_choices = [each for each in product(*options) if self._fits(each)][: SETTINGS.max_combinations]
        if not mesh_choices:
            return
        assignments = self._assignments(decoder, trains, mesh_choices)
        step_s = self._step_s(decoder, trains, mesh_choices, assignments)
        proposed: set[GroupingGenome] = set()
        alike = [0] * len(mesh_choices)
        # Rows by estimate, best first. A row with an infinite estimate has a group that cannot work.
        for row in np.argsort(step_s, kind="stable").tolist():
            if len(proposed) >= num or not np.isfinite(step_s[row]):
                return
            which = assignments.which[row]
            held = tuple(map(tuple, assignments.held[row].tolist()))
            is_pair = any(sum(num > 0 for num in held[g]) > 1 for g in trains)
            # For a mesh of two classes several layouts are tried; results with the same meshes are limited.
            for place in range(SETTINGS.pair_layouts if is_pair and not alike[which] else 1):
                choice = tuple((place if each else 0,) * len(self._classes) for each in decoder.trains)
                genome = GroupingGenome(held=held, choice=choice)
                if genome not in proposed and (place or alike[which] < SETTINGS.max_alike):
                    proposed.add(genome)
                    yield genome
            alike[which] += 1

    def _fits(self, mesh_choice: Sequence[_MeshDevices]) -> bool:
        """Return whether the classes have enough devices for these groups together."""
        held = zip(*(each.held for each in mesh_choice), strict=True)
        return len(mesh_choice) == 1 or all(sum(num) <= most for num, most in zip(held, self._most, strict=True))

    # --- meshes

    def _mesh_options(self, tasks: Tasks, *, may_pair: bool) -> tuple[_MeshDevices, ...]:
        """Return what a group with training may get: one class, or also pairs of classes if it is the only one."""
        if (tasks, may_pair) not in self._known_options:
            alone = () if may_pair else self._one_class_options(tasks)
            pairs = (*self._mesh_options(tasks, may_pair=False), *self._two_class_options(tasks)) if may_pair else ()
            self._known_options[tasks, may_pair] = (*alone, *pairs)
        return self._known_options[tasks, may_pair]

    def _one_class_options(self, tasks: Tasks) -> Iterator[_MeshDevices]:
        """Yield parts of one class. A larger part counts only if its fastest mesh uses more devices."""
        for c in self._strong:
            at, known = self._classes[c], -1
            for part in (
                SETTINGS.mesh_shares if len(self._classes) <= MANY_CLASSES else SETTINGS.mesh_shares_of_many_classes
            ):
                # Shares ascend: a share whose fastest mesh needs no more devices than a smaller one's would be a
                # duplicate.
                num = max(1, round(part * at.num_gpus))
                found = self._lists.quickest(tasks, at.key, num)
                if found is not None and found[0] > known:
                    known, times = found
                    sums = [sum(s for task, s in times.items() if task in some) for some in (TRAINING, SCORING)]
                    yield _MeshDevices(
                        held=self._by_class((c, num)),
                        at=c,
                        train_s=sums[0],
                        score_s=sums[1],
                        gen_s=times.get(Task.GENERATION, 0.0),
                    )

    def _two_class_options(self, tasks: Tasks) -> Iterator[_MeshDevices]:
        """Yield parts of two classes. All seconds count as training, which is harmless since no other group trains."""
        if self._lists.cost_tables.problem.limits.max_train_blocks < 2:
            return
        for a, b in combinations(self._strong, 2):
            for part_a, part_b in SETTINGS.pair_shares:
                nums = [(c, max(1, round(part * int(self._whole[c])))) for c, part in ((a, part_a), (b, part_b))]
                found = self._lists.meshes(tasks, tuple((self._classes[c].key, num) for c, num in nums))
                if found and len(found[0].pools) > 1:
                    # The list may have swapped the pools. The first pool's region publishes, so its class is the
                    # trainer's.
                    at = next(c for c in (a, b) if self._classes[c].key == found[0].pools[0].device_class)
                    yield _MeshDevices(
                        held=self._by_class(*nums), at=at, train_s=found[0].busy_s, score_s=0.0, gen_s=0.0
                    )

    def _by_class(self, *nums: tuple[int, int]) -> tuple[int, ...]:
        """Return a row with these numbers of devices by class and 0 elsewhere."""
        held = [0] * len(self._classes)
        for c, num in nums:
            held[c] = num
        return tuple(held)

    # --- units

    def _assignments(
        self, decoder: GroupingDecoder, trains: Sequence[int], mesh_choices: Sequence[Sequence[_MeshDevices]]
    ) -> _Assignments:
        """Return each combination of meshes with the other devices assigned in a few variants.

        The variants differ in how slow generation counts and in whether it is limited to classes near the trainer.
        """
        size, units = len(self._classes), [g for g, each in enumerate(decoder.trains) if not each]
        meshes = np.zeros((len(mesh_choices), len(decoder.grouping), size), dtype=np.int64)
        for place, g in enumerate(trains):
            meshes[:, g] = [mesh_choice[place].held for mesh_choice in mesh_choices]
        if not units:
            return _Assignments(held=meshes, which=np.arange(len(mesh_choices)))
        # Versions leave from the class on which the actor trains: [num_combinations].
        actor = next(i for i, g in enumerate(trains) if Task.ACTOR_TRAINING in decoder.grouping[g])
        trainer_class = np.array([mesh_choice[actor].at for mesh_choice in mesh_choices])
        is_near, is_joined = self._fleet.is_near(trainer_class), np.isfinite(self._lag_s[trainer_class])
        generating = [Task.GENERATION in decoder.grouping[g] for g in units]
        speeds = np.array([self._speeds(decoder, g) for g in units])
        # The estimate of generation is rough, so several variants compete: how slow it counts, and near classes only or
        # any.
        variants = (
            [(favour, near) for favour in SETTINGS.generation_slowdowns for near in (True, False)]
            if any(generating)
            else [(1.0, False)]
        )
        # If every class is near, the limit changes nothing.
        if is_near.all():
            variants = [each for each in variants if not each[1]]
        found = [meshes.copy() for _ in variants]
        for held, (favour, near) in zip(found, variants, strict=True):
            # Generation may use only classes that versions reach (soon): [num_combinations, num_units, num_classes].
            able = np.broadcast_to(speeds, (len(mesh_choices), *speeds.shape)).copy()
            for i in (i for i, each in enumerate(generating) if each):
                able[:, i] = np.where(is_near if near else is_joined, able[:, i], 0.0)
            weights = np.where(generating, favour, 1.0)
            held[:, units] = assign_batches(able, self._whole - meshes.sum(axis=1), weights, self._fleet.batch)
        return _Assignments(held=np.concatenate(found), which=np.tile(np.arange(len(mesh_choices)), len(variants)))

    def _speeds(self, decoder: GroupingDecoder, g: int) -> list[float]:
        """Return the steps per second of one device of each class, for all tasks of the group by turns."""
        options = [self._lists.units(decoder.grouping[g], at.key) for at in self._classes]
        samples = float(self._workload.samples_per_step)
        return [max((each.speed for each in some), default=0.0) / samples for some in options]

    # --- estimates

    def _step_s(
        self,
        decoder: GroupingDecoder,
        trains: Sequence[int],
        mesh_choices: Sequence[Sequence[_MeshDevices]],
        assignments: _Assignments,
    ) -> Floats:
        """Return the estimated seconds per step, `[num_rows]`; inf where a group has nothing to work on."""
        eta, num = self._workload.eta, len(assignments.held)
        zero = np.zeros(num)
        # Seconds by row, `[num_rows]` each. train, score: the slowest group's training and scoring. after: generation
        # with what it waits for. busy: the busiest group. others: other tasks of generation's group. critic: the
        # transfer of its weights.
        train, score, after, busy, others, critic = (zero.copy() for _ in range(6))
        mesh_class = {
            g: np.array([mesh_choice[i].at for mesh_choice in mesh_choices])[assignments.which]
            for i, g in enumerate(trains)
        }
        trainer_class = next(mesh_class[g] for g in trains if Task.ACTOR_TRAINING in decoder.grouping[g])
        # Longest transfer of a version, which a step cannot be shorter than.
        link = zero.copy()
        for i in range(len(trains)):
            # Seconds of the groups that train, from their meshes.
            parts = np.array(
                [(each.train_s, each.score_s, each.gen_s) for each in (mesh_choice[i] for mesh_choice in mesh_choices)]
            )
            train_s, score_s, gen_s = parts[assignments.which].T
            train, score, after = np.maximum(train, train_s), np.maximum(score, score_s), after + gen_s
            busy = np.maximum(busy, train_s + score_s + gen_s)
        for g, tasks in enumerate(decoder.grouping):
            if decoder.trains[g]:
                continue
            # Busy seconds of the other groups, from their joint speeds; generation adds its tail and transfers.
            seconds = 1 / np.maximum(assignments.held[:, g] @ np.array(self._speeds(decoder, g)), 1e-12)
            busy = np.maximum(busy, seconds)
            gen_s = zero
            if Task.GENERATION in tasks:
                steps = assignments.held[:, g] @ self._fleet.steps[Task.GENERATION][0]
                gen_s = np.minimum(seconds, 1 / np.maximum(steps, 1e-12))
                lag_s = np.where(assignments.held[:, g] > 0, self._lag_s[trainer_class], 0.0).max(axis=1)
                after = self._fleet.tail_s + gen_s + lag_s
                link = np.maximum(link, lag_s)
                others = seconds - gen_s if eta else zero
            score = np.maximum(score, seconds - gen_s)
        where = {task: g for g, tasks in enumerate(decoder.grouping) for task in tasks}
        if {Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING} <= set(where):
            scores, src = where[Task.CRITIC_INFERENCE], mesh_class[where[Task.CRITIC_TRAINING]]
            critic = np.where(assignments.held[:, scores] > 0, self._critic_s[src], 0.0).max(axis=1)
            critic = zero if scores == where[Task.CRITIC_TRAINING] else critic
        # The path of the oracle, and the path of the critic.
        path = np.maximum(train + score + others + after, train + critic + score) / (eta + 1)
        found: Floats = np.maximum(np.maximum(path, link), np.maximum(busy, critic))
        return np.where(found < IMPOSSIBLE_STEP_S, found, np.inf)


def assign_batches(speeds: Floats, left: Ints, weights: Floats, batch: Ints) -> Ints:
    """Assign the free devices to groups: return `[num_rows, num_groups, num_classes]` devices.

    `left` is the free devices, `[num_rows, num_classes]`. One batch at a time goes to the group that is slowest.
    `speeds` is `[num_rows, num_groups, num_classes]`, 0 where a group takes no devices of a class. `weights` say how
    much slower a group counts than it is.
    """
    num, groups, _ = speeds.shape
    rows, left = np.arange(num), left.copy()
    # Advantage of a class for a group: its speed relative to the group's best class, less that of the best other group.
    relative = speeds / np.maximum(speeds.max(axis=2, keepdims=True), 1e-300)
    best = np.sort(relative, axis=1)
    others = np.where(relative == best[:, -1:], best[:, -2:-1] if groups > 1 else 0.0, best[:, -1:])
    worth = np.where(speeds > 0, relative - others, -np.inf)
    held, made = np.zeros(speeds.shape, dtype=np.int64), np.zeros((num, groups))
    for _ in range(int((-(-left // batch)).sum(axis=1).max(initial=0))):
        can = (speeds > 0) & (left > 0)[:, None, :]
        # Each row gives a batch of the most advantageous class to the slowest group that can take any.
        slowest = np.where(can.any(axis=2), made / weights, np.inf).argmin(axis=1)
        c = np.where(can[rows, slowest], worth[rows, slowest], -np.inf).argmax(axis=1)
        taken = np.where(can[rows, slowest, c], np.minimum(batch[c], left[rows, c]), 0)
        held[rows, slowest, c] += taken
        made[rows, slowest] += taken * speeds[rows, slowest, c]
        left[rows, c] -= taken
    return held
