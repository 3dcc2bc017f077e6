"""Phase 1: how many devices of which types train, how many roll out, and with which parallelism.

A constrained search over C = max(C_T, C_I), the seconds of a step: for each C tried, a MILP chooses one training mesh
and numbers of rollout units that hold it within inventory, dollars and the staleness bound. As published, links do not
count yet, every episode has the mean length, and rollouts are what binds; where eta enters the rows is not published,
so it is our rule: what rollouts make of a version counts within eta + 1 steps, less training and scoring, and at
eta >= 1 engines work C seconds a step at most.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.classes import DeviceClass
from planner.cost.pools import PoolPrice, Prices, host_violation
from planner.exact.linear import LinearModel
from planner.exact.solver import solve_whole
from planner.hetrl.menu import Held, Menu, UnitOption
from planner.question.goal import Objective
from planner.question.workload import Lengths, Task

ROLLOUT = (Task.GENERATION,)
_SOLVE_S = 2.0
"""Of one MILP; they take milliseconds."""
_STEPS = 9
"""Bisections: C is known to a few thousandths of its first bracket."""
_HALVINGS = 10
"""The same, of one strategy's seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Equal devices that may do the same, wherever they are. Phase 1 sees only their number, priced like the largest
    class of them."""

    name: str
    like: DeviceClass
    classes: frozenset[str]
    """Keys of all of them."""
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A way to train and score."""

    held: tuple[tuple[int, int], ...]
    """Kind and devices of each block."""
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What phase 1 says: devices by kind."""

    mesh: Mesh
    rollout: tuple[int, ...]
    seconds: float
    """C, as far as bisection and inventory tell."""


class PhaseOne:
    """Of one problem. `given`: its menu; rollouts are priced by one of its own, with episodes of the mean length."""

    def __init__(self, given: Menu) -> None:
        problem = given.prices.problem
        self._menu, self._problem = given, problem
        self._tasks = training_tasks(given)
        uniform = replace(problem.workload, completion_tokens=_constant(problem.workload.completion_tokens))
        self._uniform = Menu(Prices(replace(problem, workload=uniform)))
        self.kinds = kinds_of(given)
        self._meshes: list[Mesh] = []
        self._units: list[tuple[int, UnitOption]] = []

    def prepare(self, is_over: Callable[[], bool]) -> None:
        """Price what the MILP chooses from; stops early, with less to choose from, when `is_over`."""
        self._units = [(k, option) for k, kind in enumerate(self.kinds) for option in self._rollouts(kind)]
        for held in self._candidates():
            if is_over() and self._meshes:
                break
            named: Held = tuple((self.kinds[k].like.key, n) for k, n in held)
            options = self._menu.meshes(self._tasks, named)
            if options:
                self._meshes.append(Mesh(held=held, busy_s=options[0].busy_s))

    def solve(self, banned: frozenset[Mesh], is_over: Callable[[], bool]) -> Strategy | None:
        """The best strategy without the banned meshes, by bisection over C."""
        meshes = [mesh for mesh in self._meshes if mesh not in banned]
        if not meshes or not self._units:
            return None
        goal = self._problem.goal
        if goal.objective is Objective.COST_AT_THROUGHPUT and goal.planned_step_s is not None:
            return self._at(goal.planned_step_s, meshes)
        high = 4 * min(mesh.busy_s for mesh in meshes)
        best = None
        while best is None and high < 1e9:
            best = self._at(high, meshes)
            high *= 4
        low = 0.0
        for _ in range(_STEPS if best else 0):
            assert best is not None
            if is_over():
                break
            middle = (low + best.seconds) / 2
            found = self._at(middle, meshes)
            best, low = (found, low) if found else (best, middle)
        return best

    def _at(self, seconds: float, meshes: list[Mesh]) -> Strategy | None:
        """A strategy of at most so many seconds, else None: the MILP."""
        workload, goal = self._problem.workload, self._problem.goal
        fitting = [mesh for mesh in meshes if mesh.busy_s < seconds]
        if not fitting:
            return None
        model = LinearModel()
        pays = goal.objective is Objective.COST_AT_THROUGHPUT
        chosen = [
            model.variable(0, 1, self._usd(mesh.held) if pays else 0.0, whole=True) for mesh in fitting
        ]  # fmt: skip
        model.row([(z, 1.0) for z in chosen], 1.0, 1.0)
        made = np.array([[self._made(option, mesh, seconds) for _, option in self._units] for mesh in fitting])
        most_made = made.max(axis=0)
        numbers = []
        for (k, option), best in zip(self._units, most_made.tolist(), strict=True):
            most = self.kinds[k].num_gpus // option.pool.unit_gpus if best > 0 else 0
            cost = self._usd(((k, option.pool.unit_gpus),)) if pays else -best / workload.samples_per_step
            numbers.append(model.variable(0, most, cost, whole=True))
        for z, each in zip(chosen, (made / workload.samples_per_step).tolist(), strict=True):
            model.row([(z, -1.0), *zip(numbers, each, strict=True)], low=0.0)
        self._inventory(model, chosen, fitting, numbers)
        found = solve_whole(model, limit_s=_SOLVE_S, gap=1e-3).values
        return None if found is None else self._read(found, seconds, chosen, fitting, numbers)

    def _made(self, option: UnitOption, mesh: Mesh, seconds: float) -> float:
        """Samples of a unit in its window beside that mesh, in steps of so many seconds."""
        eta = self._problem.workload.eta
        window_s = (eta + 1) * seconds - mesh.busy_s
        return option.made(window_s, seconds if eta else window_s) * option.pool.unit_gpus

    def _inventory(self, model: LinearModel, chosen: list[int], meshes: list[Mesh], numbers: list[int]) -> None:
        """Devices of each kind, and dollars."""
        for k, kind in enumerate(self.kinds):
            terms = [(z, float(dict(mesh.held).get(k, 0))) for z, mesh in zip(chosen, meshes, strict=True)]
            terms += [(n, float(o.pool.unit_gpus)) for n, (i, o) in zip(numbers, self._units, strict=True) if i == k]
            model.row(terms, high=float(kind.num_gpus))
        most_usd = self._problem.goal.planned_usd_per_hour
        if most_usd is not None:
            terms = [(z, self._usd(mesh.held)) for z, mesh in zip(chosen, meshes, strict=True)]
            terms += [(n, self._usd(((k, o.pool.unit_gpus),))) for n, (k, o) in zip(numbers, self._units, strict=True)]
            model.row(terms, high=most_usd)

    def _read(
        self, found: np.ndarray, seconds: float, chosen: list[int], meshes: list[Mesh], numbers: list[int]
    ) -> Strategy | None:
        """With the least seconds of what was chosen."""
        mesh = meshes[int(np.argmax(found[chosen]))]
        rollout = [0] * len(self.kinds)
        used: list[tuple[int, UnitOption]] = []
        for number, (k, option) in zip(numbers, self._units, strict=True):
            if num := round(float(found[number])):
                rollout[k] += num * option.pool.unit_gpus
                used.append((num, option))
        if not used:
            return None
        low, high = mesh.busy_s, max(mesh.busy_s, seconds)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            made = sum(num * self._made(option, mesh, middle) for num, option in used)
            low, high = (low, middle) if made >= self._problem.workload.samples_per_step else (middle, high)
        return Strategy(mesh=mesh, rollout=tuple(rollout), seconds=high)

    def _usd(self, held: tuple[tuple[int, int], ...]) -> float:
        return sum(n * (self.kinds[k].like.usd_per_gpu_hour or 0.0) for k, n in held)

    def _rollouts(self, kind: Kind) -> Iterator[UnitOption]:
        """Units whose caches fit for the real lengths too."""
        for option in self._uniform.units(ROLLOUT, kind.like.key):
            if isinstance(self._menu.prices.pool(ROLLOUT, option.pool), PoolPrice):
                yield option

    def _candidates(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Blocks to train on: each kind alone in powers of two and whole, then two kinds. Largest first."""
        able = [k for k, kind in enumerate(self.kinds) if self._menu.allowed(self._tasks, kind.like)]
        counts = {k: _counts(self.kinds[k].like) for k in able}
        for place in range(max((len(each) for each in counts.values()), default=0)):
            yield from (((k, counts[k][place]),) for k in able if place < len(counts[k]))
        if self._problem.limits.max_train_blocks > 1:
            for a, b in combinations(able, 2):
                yield from (((a, n), (b, m)) for n in counts[a][:2] for m in counts[b][:2])


def kinds_of(menu: Menu) -> tuple[Kind, ...]:
    """Classes merged over regions and fabrics, where the rules and the regions' hosts let them do the same."""
    merged: dict[object, list[DeviceClass]] = {}
    for _, at in sorted(menu.prices.classes.items()):
        trains = menu.allowed(training_tasks(menu), at)
        rolls_out = menu.allowed(ROLLOUT, at) and host_violation(menu.prices, at) is None
        like = (at.gpu.name, at.gpus_per_machine, at.is_spot, at.usd_per_gpu_hour, trains, rolls_out)
        merged.setdefault(like, []).append(at)
    return tuple(
        Kind(
            name=classes[0].gpu.name, like=max(classes, key=lambda at: at.num_gpus),
            classes=frozenset(at.key for at in classes), num_gpus=sum(at.num_gpus for at in classes),
        )
        for classes in merged.values()
    )  # fmt: skip


def training_tasks(menu: Menu) -> tuple[Task, ...]:
    """Of the pool that does not roll out."""
    return tuple(task for task in menu.prices.problem.workload.tasks if task is not Task.GENERATION)


def _counts(at: DeviceClass) -> list[int]:
    """Devices of one class that may train: all, then powers of two."""
    return sorted({at.num_gpus, *(1 << i for i in range(at.num_gpus.bit_length()) if 1 << i < at.num_gpus)})[::-1]


def _constant(lengths: Lengths) -> Lengths:
    return Lengths(quantiles=(lengths.mean,))
