"""Phase 2: assign concrete devices to training and rollouts such that links are used well and both pools end together.

The nodes of the graph are machines (bundles of them in large fleets), and edge weights are rates between them. METIS
cuts the graph into two pools of phase 1's sizes. A second start lays phase 1's own counts onto the best connected
classes. Then devices move between the pools, those with the lightest cut first, while the oracle's value falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables.cost_tables import CostTables
from planner.methods.areal_hex import metis
from planner.methods.areal_hex.settings import SETTINGS
from planner.methods.areal_hex.strategy import ROLLOUT, DeviceKind, Strategy, training_tasks
from planner.methods.evaluation_budget import INFEASIBLE, EvaluationBudget
from planner.methods.hetrl.candidate_lists import CandidateLists
from planner.problem.device_classes import DeviceClass, fits

Counts = tuple[int, ...]
"""Devices by class, in the order of the classes' keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The two pools. Devices in neither are not rented."""

    train: Counts
    rollout: Counts


@dataclass(slots=True)
class PhaseTwo:
    """Phase 2 of one problem, with the values of the splits that were tried."""

    lists: CandidateLists
    budget: EvaluationBudget
    classes: tuple[DeviceClass, ...] = field(init=False)
    _rates: npt.NDArray[np.float64] = field(init=False)
    _known: dict[Split, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cost_tables = self.lists.cost_tables
        self.classes = tuple(at for _, at in sorted(cost_tables.classes.items()))
        self._rates = np.array([[_fleet_rate(cost_tables, a, b) for b in self.classes] for a in self.classes])

    def run(self, strategy: Strategy, kinds: tuple[DeviceKind, ...]) -> None:
        """Improve both starts by local search and offer every split on the way to the oracle."""
        starts = [self._laid_out(strategy, kinds), self._partitioned(strategy, kinds)]
        for split in sorted(dict.fromkeys(starts), key=self._value):
            if self.budget.spent() < 1:
                self._balance(split)

    def _laid_out(self, strategy: Strategy, kinds: tuple[DeviceKind, ...]) -> Split:
        """Return phase 1's counts on concrete classes.

        Each block of the mesh goes to a class of its kind that is near the other blocks and the fleet; rollouts go near
        it.
        """
        train = np.zeros(len(self.classes), dtype=int)
        # Largest blocks first, since few classes have room for them. A block that fits into no class is left out.
        for k, num in sorted(strategy.mesh.held, key=lambda each: -each[1]):
            of_kind = [c for c in self._of_kind(kinds[k]) if self.classes[c].num_gpus - train[c] >= num]
            if of_kind:
                # Rates to the classes that train already, then (for the first block, and as a tie-break) to the whole
                # fleet.
                reach = {c: (self._rates[c] @ (train > 0), self._rates[c].sum()) for c in of_kind}
                train[max(of_kind, key=lambda c: (reach[c], -c))] += num
        # Rollouts fill classes of their kind from the best connected to the trainer's largest class outwards.
        rollout = np.zeros(len(self.classes), dtype=int)
        trainer_class = int(np.argmax(train))
        for k, num in enumerate(strategy.rollout):
            left = num
            for c in sorted(self._of_kind(kinds[k]), key=lambda c: (-self._rates[trainer_class, c], c)):
                taken = min(left, self.classes[c].num_gpus - int(train[c]))
                rollout[c] += taken
                left -= taken
        return _split(train, rollout)

    def _partitioned(self, strategy: Strategy, kinds: tuple[DeviceKind, ...]) -> Split:
        """Return METIS's two parts of all machines. The part with more devices of phase 1's training kinds trains."""
        # A node is so many machines of one class that there are about `max_nodes` nodes. Edge weights: [num_nodes,
        # num_nodes].
        bundle = -(-sum(at.num_machines for at in self.classes) // SETTINGS.max_nodes)
        nodes = [c for c, at in enumerate(self.classes) for _ in range(-(-at.num_machines // bundle))]
        weights = self._rates[np.ix_(nodes, nodes)]
        # Target sizes of both parts are phase 1's. The range keeps a part from being empty.
        trained = sum(num for _, num in strategy.mesh.held)
        least, most = SETTINGS.part_range
        share = min(most, max(least, trained / max(1, trained + sum(strategy.rollout))))
        parts = metis.partition(weights, [share, 1 - share])
        # Nodes of each class in each part, and devices that one node of the class stands for: [num_classes].
        whole = np.array([at.num_gpus for at in self.classes])
        inside = [np.bincount(np.array(nodes)[parts == p], minlength=len(whole)) for p in (0, 1)]
        per_node = whole / np.maximum(1, inside[0] + inside[1])
        # The parts have no names. The one with more arithmetic trains, where phase 1's kinds count more.
        trained_classes = {c for k, _ in strategy.mesh.held for c in self._of_kind(kinds[k])}
        speed = np.array(
            [
                at.gpu.matmul_flop_per_s * (SETTINGS.chosen_kind_weight if c in trained_classes else 1.0)
                for c, at in enumerate(self.classes)
            ]
        )
        part = max((0, 1), key=lambda p: (float((inside[p] * per_node) @ speed), -p))
        # Nodes stand for fractions of machines, so round, and never exceed the class.
        train = np.minimum(whole, np.rint(inside[part] * per_node).astype(int))
        return _split(train, whole - train)

    def _of_kind(self, kind: DeviceKind) -> list[int]:
        return [c for c, at in enumerate(self.classes) if at.key in kind.classes]

    def _balance(self, split: Split) -> None:
        """Take the first move that lowers the oracle's value, until none does."""
        value = self._value(split)
        improved = True
        while improved and self.budget.spent() < 1:
            improved = False
            for moved in self._moves(split):
                if self.budget.spent() >= 1:
                    return
                if moved not in self._known and (found := self._value(moved)) < value:
                    split, value, improved = moved, found, True
                    break

    def _moves(self, split: Split) -> Iterator[Split]:
        """Yield splits in which devices of one class change pool or become idle or used.

        Amounts are a machine, a quarter of a machine, half a pool's devices of the class, and all of them. Classes with
        the most lopsided links come first.
        """
        train, rollout = np.array(split.train), np.array(split.rollout)
        # Positive if the class has better links to the pool that trains, negative if to the one that rolls out:
        # [num_classes].
        pull = self._rates @ (train > 0) - self._rates @ (rollout > 0)
        order = sorted(range(len(self.classes)), key=lambda c: (-abs(float(pull[c])), c))
        for amount in ("machine", "unit", "half", "all"):
            for c in order:
                idle = self.classes[c].num_gpus - train[c] - rollout[c]
                pools = {"train": int(train[c]), "rollout": int(rollout[c]), "idle": int(idle)}
                for source in pools:
                    for target in pools:
                        num = min(pools[source], _amount(amount, self.classes[c], pools[source]))
                        if source != target and num:
                            yield _moved(split, c, source, target, num)

    def _value(self, split: Split) -> float:
        if split not in self._known:
            placement = self._placement(split)
            self._known[split] = self.budget.offer(placement) if placement else INFEASIBLE
        return self._known[split]

    def _placement(self, split: Split) -> Placement | None:
        """Return the best layouts for a split: a mesh on the two largest classes, and units on each class.

        None if nothing fits.
        """
        tasks = training_tasks(self.lists)
        most = self.lists.cost_tables.problem.limits.max_train_blocks
        held = [(at.key, n) for at, n in zip(self.classes, split.train, strict=True) if n]
        # The largest classes, as many as a mesh may have pools, in the order of keys.
        held = sorted(sorted(held, key=lambda each: -each[1])[: min(2, most)])
        for mesh in self.lists.meshes(tasks, tuple(held))[: SETTINGS.meshes_tried] if held else ():
            group = Group(tasks=tasks, pools=mesh.pools)
            rollout = self._rollout(split, mesh.pools, mesh.busy_s)
            if rollout:
                return Placement(groups=(Group(tasks=ROLLOUT, pools=rollout), group))
        return None

    def _rollout(self, split: Split, mesh: tuple[Pool, ...], busy_s: float) -> tuple[Pool, ...]:
        """Return, on each class, the units that make most in the window that the staleness bound leaves."""
        options = {
            at.key: self.lists.units(ROLLOUT, at.key) for at, n in zip(self.classes, split.rollout, strict=True) if n
        }
        # Samples per second of all rollout devices at full speed, with the best unit of each class, for a first
        # estimate of the step.
        rate = sum(
            each[0].speed * n
            for at, n in zip(self.classes, split.rollout, strict=True)
            if n and (each := options[at.key])
        )
        if rate <= 0:
            return ()
        workload = self.lists.cost_tables.problem.workload
        # Window as in `PhaseOne`: eta + 1 steps less training and scoring. At eta 0 it is as long as generation takes.
        step_s = max(busy_s, workload.samples_per_step / rate)
        window_s = (workload.eta + 1) * step_s - busy_s if workload.eta else workload.samples_per_step / rate
        span_s = step_s if workload.eta else window_s
        found = []
        for at, n in zip(self.classes, split.rollout, strict=True):
            if n and options[at.key]:
                option = max(options[at.key], key=lambda each: each.made(window_s, span_s))
                # The mesh occupies units of the same machines, so there may be room for fewer.
                units = n // option.pool.unit_gpus
                while units and not fits(at, _units(at, mesh, option.pool.unit_gpus, units)):
                    units -= 1
                if units:
                    found.append(option.pool.resized(units))
        return tuple(found)


def _units(at: DeviceClass, mesh: tuple[Pool, ...], size: int, num: int) -> dict[int, int]:
    units = {size: num}
    for pool in mesh:
        if pool.device_class == at.key:
            units[pool.unit_gpus] = units.get(pool.unit_gpus, 0) + pool.num_units
    return units


def _amount(name: str, at: DeviceClass, held: int) -> int:
    match name:
        case "machine":
            return at.gpus_per_machine
        case "unit":
            return max(1, at.gpus_per_machine // SETTINGS.small_moves_per_machine)
        case "half":
            return held // 2
        case _:
            return held


def _moved(split: Split, class_index: int, source: str, target: str, num: int) -> Split:
    held = {"train": list(split.train), "rollout": list(split.rollout), "idle": [0] * len(split.train)}
    held[source][class_index] -= num
    held[target][class_index] += num
    return Split(train=tuple(held["train"]), rollout=tuple(held["rollout"]))


def _split(train: np.ndarray, rollout: np.ndarray) -> Split:
    return Split(train=tuple(train.tolist()), rollout=tuple(rollout.tolist()))


def _fleet_rate(cost_tables: CostTables, a: DeviceClass, b: DeviceClass) -> float:
    """Return the bytes per second between machines of two classes, or of one class, as the fleet states them.

    Between regions it is that of the slower direction; 0 without routes.
    """
    if a.region.name != b.region.name:
        there = cost_tables.network.route(a.region.name, b.region.name)
        back = cost_tables.network.route(b.region.name, a.region.name)
        return min(there.bytes_per_s, back.bytes_per_s) if there and back else 0.0
    if a.fabric != b.fabric and a.region.cross_fabric_bytes_per_s:
        return a.region.cross_fabric_bytes_per_s
    return min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
