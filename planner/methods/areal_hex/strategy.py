"""Phase 1: choose how many devices of which types train and roll out, and with which parallelism.

The search is over C = max(C_T, C_I), the seconds of a step, by bisection. For each C a MILP chooses one training mesh
and numbers of rollout units that attain it within inventory, dollars and staleness bound.

As published, links do not count, every episode has the mean length, and rollouts are assumed to bind. Where eta enters
the rows is not published, so it is our rule: what rollout units make of a version counts within eta + 1 steps, less
training and scoring, and at eta >= 1 engines work at most C seconds per step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.cost.tables.cost_tables import CostTables, UnitCost, host_violation
from planner.methods.areal_hex.settings import SETTINGS
from planner.methods.exact.program.linear_model import LinearModel
from planner.methods.exact.program.ortools_solver import solve_whole
from planner.methods.hetrl.candidate_lists import CandidateLists, Held, UnitOption
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import IMPOSSIBLE_STEP_S, Objective
from planner.problem.workload import Lengths, Task

ROLLOUT = (Task.GENERATION,)
"""Tasks of the rollout pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Equal devices with equal permissions, wherever they are. Phase 1 sees only their number."""

    name: str
    like: DeviceClass
    """The largest class of the kind, whose cost tables stand for all."""
    classes: frozenset[str]
    """Keys of all classes of the kind."""
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMesh:
    """A candidate for the pool that trains and scores."""

    held: tuple[tuple[int, int], ...]
    """Pairs (kind, number of devices) of each block."""
    busy_s: float
    """Seconds per step of training and scoring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Result of phase 1: the mesh, and rollout devices by kind."""

    mesh: TrainingMesh
    rollout: tuple[int, ...]
    seconds: float
    """C, to the precision of bisection."""


class PhaseOne:
    """Phase 1 of one problem.

    `given` is the problem's candidate list. Rollouts are priced by a second list with all episodes at the mean length.
    """

    def __init__(self, given: CandidateLists) -> None:
        problem = given.cost_tables.problem
        self._lists, self._problem = given, problem
        self._tasks = training_tasks(given)
        # As published, every episode has the mean length, so rollouts are priced with that instead of the distribution.
        uniform = replace(problem.workload, completion_tokens=_constant(problem.workload.completion_tokens))
        self._uniform = CandidateLists(CostTables(replace(problem, workload=uniform)))
        self.kinds = kinds_of(given)
        self._meshes: list[TrainingMesh] = []
        self._units: list[tuple[int, UnitOption]] = []

    def prepare(self, is_over: Callable[[], bool]) -> None:
        """Compute the costs that the MILP chooses among. Stop early, with fewer candidates, when `is_over`."""
        self._units = [(k, option) for k, kind in enumerate(self.kinds) for option in self._rollouts(kind)]
        for held in self._candidates():
            if is_over() and self._meshes:
                break
            # A kind's largest class stands for all of them. The mesh may be spread over several in phase 2.
            named: Held = tuple((self.kinds[k].like.key, n) for k, n in held)
            options = self._lists.meshes(self._tasks, named)
            if options:
                self._meshes.append(TrainingMesh(held=held, busy_s=options[0].busy_s))

    def solve(self, banned: frozenset[TrainingMesh], is_over: Callable[[], bool]) -> Strategy | None:
        """Return the best strategy without the banned meshes, by bisection over C. None if there is none."""
        meshes = [mesh for mesh in self._meshes if mesh not in banned]
        if not meshes or not self._units:
            return None
        goal = self._problem.goal
        # The deadline is C, and the MILP itself minimises dollars: nothing to bisect.
        if goal.objective is Objective.COST_AT_THROUGHPUT and goal.planned_step_s is not None:
            return self._strategy_within(goal.planned_step_s, meshes)
        # Widen the bracket until some strategy attains its upper end.
        high = SETTINGS.bracket_factor * min(mesh.busy_s for mesh in meshes)
        best = None
        while best is None and high < IMPOSSIBLE_STEP_S:
            best = self._strategy_within(high, meshes)
            high *= SETTINGS.bracket_factor
        # Invariant: `best` attains its seconds, and nothing was found at `low`. The next `middle` starts from what
        # `best` really attains, which is often far below the limit that it was found for.
        low = 0.0
        for _ in range(SETTINGS.bisection_steps if best else 0):
            assert best is not None
            if is_over():
                break
            middle = (low + best.seconds) / 2
            found = self._strategy_within(middle, meshes)
            best, low = (found, low) if found else (best, middle)
        return best

    def _strategy_within(self, seconds: float, meshes: list[TrainingMesh]) -> Strategy | None:
        """Return a strategy of at most `seconds` seconds per step, or None: one MILP."""
        workload, goal = self._problem.workload, self._problem.goal
        fitting = [mesh for mesh in meshes if mesh.busy_s < seconds]
        if not fitting:
            return None
        # One binary per mesh, of which exactly one is chosen, and one integer per kind of rollout unit.
        model = LinearModel()
        pays = goal.objective is Objective.COST_AT_THROUGHPUT
        chosen = [model.variable(0, 1, self._usd(mesh.held) if pays else 0.0, whole=True) for mesh in fitting]
        model.row([(z, 1.0) for z in chosen], 1.0, 1.0)
        # Samples of one unit beside each mesh, `[num_meshes, num_units]`.
        made = np.array(
            [[self._samples_in_window(option, mesh, seconds) for _, option in self._units] for mesh in fitting]
        )
        most_made = made.max(axis=0)
        numbers = []
        for (k, option), best in zip(self._units, most_made.tolist(), strict=True):
            most = self.kinds[k].num_gpus // option.pool.unit_gpus if best > 0 else 0
            cost = self._usd(((k, option.pool.unit_gpus),)) if pays else -best / workload.samples_per_step
            numbers.append(model.variable(0, most, cost, whole=True))
        # If mesh z is chosen, its units must make a step's samples: sum(n made / samples) >= z.
        for z, each in zip(chosen, (made / workload.samples_per_step).tolist(), strict=True):
            model.row([(z, -1.0), *zip(numbers, each, strict=True)], low=0.0)
        self._inventory(model, chosen, fitting, numbers)
        found = solve_whole(model, limit_s=SETTINGS.milp_s, gap=SETTINGS.milp_gap).values
        return None if found is None else self._chosen_strategy(found, seconds, chosen, fitting, numbers)

    def _samples_in_window(self, option: UnitOption, mesh: TrainingMesh, seconds: float) -> float:
        """Return the samples of a unit in its window beside that mesh, for steps of `seconds` seconds."""
        eta = self._problem.workload.eta
        window_s = (eta + 1) * seconds - mesh.busy_s
        return option.made(window_s, seconds if eta else window_s) * option.pool.unit_gpus

    def _inventory(self, model: LinearModel, chosen: list[int], meshes: list[TrainingMesh], numbers: list[int]) -> None:
        """Add rows for the devices of each kind and for the budget in dollars."""
        for k, kind in enumerate(self.kinds):
            # Devices of kind k: of the chosen mesh, and of all rollout units of that kind.
            terms = [(z, float(dict(mesh.held).get(k, 0))) for z, mesh in zip(chosen, meshes, strict=True)]
            terms += [(n, float(o.pool.unit_gpus)) for n, (i, o) in zip(numbers, self._units, strict=True) if i == k]
            model.row(terms, high=float(kind.num_gpus))
        most_usd = self._problem.goal.planned_usd_per_hour
        if most_usd is not None:
            terms = [(z, self._usd(mesh.held)) for z, mesh in zip(chosen, meshes, strict=True)]
            terms += [(n, self._usd(((k, o.pool.unit_gpus),))) for n, (k, o) in zip(numbers, self._units, strict=True)]
            model.row(terms, high=most_usd)

    def _chosen_strategy(
        self, found: np.ndarray, seconds: float, chosen: list[int], meshes: list[TrainingMesh], numbers: list[int]
    ) -> Strategy | None:
        """Return the chosen strategy with the least seconds that it attains."""
        # Exactly one binary is 1; solvers return it with a rounding error.
        mesh = meshes[int(np.argmax(found[chosen]))]
        rollout = [0] * len(self.kinds)
        used: list[tuple[int, UnitOption]] = []
        for number, (k, option) in zip(numbers, self._units, strict=True):
            if num := round(float(found[number])):
                rollout[k] += num * option.pool.unit_gpus
                used.append((num, option))
        if not used:
            return None
        # The program only demanded `seconds` or less. Bisect over C with mesh and units fixed: `high` makes a step's
        # samples.
        low, high = mesh.busy_s, max(mesh.busy_s, seconds)
        for _ in range(SETTINGS.strategy_bisection_steps):
            middle = (low + high) / 2
            made = sum(num * self._samples_in_window(option, mesh, middle) for num, option in used)
            low, high = (low, middle) if made >= self._problem.workload.samples_per_step else (middle, high)
        return Strategy(mesh=mesh, rollout=tuple(rollout), seconds=high)

    def _usd(self, held: tuple[tuple[int, int], ...]) -> float:
        return sum(n * (self.kinds[k].like.usd_per_gpu_hour or 0.0) for k, n in held)

    def _rollouts(self, kind: DeviceKind) -> Iterator[UnitOption]:
        """Yield units whose caches fit for the real length distribution too."""
        for option in self._uniform.units(ROLLOUT, kind.like.key):
            if isinstance(self._lists.cost_tables.pool(ROLLOUT, option.pool), UnitCost):
                yield option

    def _candidates(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield devices to train on, largest first: one kind in powers of two or whole, then two kinds."""
        able = [k for k, kind in enumerate(self.kinds) if self._problem.allows(self._tasks, kind.like)]
        counts = {k: _counts(self.kinds[k].like) for k in able}
        for place in range(max((len(each) for each in counts.values()), default=0)):
            yield from (((k, counts[k][place]),) for k in able if place < len(counts[k]))
        if self._problem.limits.max_train_blocks > 1:
            most = SETTINGS.pair_counts
            for a, b in combinations(able, 2):
                yield from (((a, n), (b, m)) for n in counts[a][:most] for m in counts[b][:most])


def kinds_of(lists: CandidateLists) -> tuple[DeviceKind, ...]:
    """Return the classes merged over regions and fabrics, if rules and the regions' hosts allow them the same tasks."""
    merged: dict[object, list[DeviceClass]] = {}
    for _, at in sorted(lists.cost_tables.classes.items()):
        trains = lists.cost_tables.problem.allows(training_tasks(lists), at)
        rolls_out = lists.cost_tables.problem.allows(ROLLOUT, at) and host_violation(lists.cost_tables, at) is None
        # The MILP counts devices by kind, so whatever decides what a device may do or costs is part of the key.
        like = (at.gpu.name, at.gpus_per_machine, at.is_spot, at.usd_per_gpu_hour, trains, rolls_out)
        merged.setdefault(like, []).append(at)
    return tuple(
        DeviceKind(
            name=classes[0].gpu.name,
            like=max(classes, key=lambda at: at.num_gpus),
            classes=frozenset(at.key for at in classes),
            num_gpus=sum(at.num_gpus for at in classes),
        )
        for classes in merged.values()
    )


def training_tasks(lists: CandidateLists) -> tuple[Task, ...]:
    """Return the tasks of the pool that does not roll out."""
    return tuple(task for task in lists.cost_tables.problem.workload.tasks if task is not Task.GENERATION)


def _counts(at: DeviceClass) -> list[int]:
    """Return the numbers of devices of one class that may train: all, then powers of two, descending."""
    return sorted({at.num_gpus, *(1 << i for i in range(at.num_gpus.bit_length()) if 1 << i < at.num_gpus)})[::-1]


def _constant(lengths: Lengths) -> Lengths:
    return Lengths(quantiles=(lengths.mean,))
