"""One home region and one grouping as a linear model whose optimum no placement of that kind beats.

Variables: `step` (tau), the training and scoring phases, one binary a mesh, a whole number a kind of unit. All times
are in units of `scale_s`, so rows have entries of about 1. What is not linear is replaced by what it cannot be below:

- busy time W / R of a task: its tangents (convex in the rate R).
- generation's phase at eta 0, seconds s in [low, high]: units make at most c x g(s), with g affine and c the largest
  ratio on the interval, so that sum of n c >= W / g(s), again by tangents. Exact as the interval shrinks.
- what the critic's region costs: the least over the regions that the node leaves open.

With one home region everything else is exact: levels of latency are a chain of binaries (whoever uses a pool pays for
its level), and the uplink is shared by as many regions as receive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.exact.blocks import Blocks, MeshBlock, UnitBlock
from planner.exact.linear import INFINITE, Floats, Ints, LinearModel
from planner.groupings import Grouping, Tasks
from planner.question.goal import Objective
from planner.question.workload import SCORING, TRAINING, Task

_TANGENT_ERROR = 1e-3
"""Of the step, per task: what tangents may miss at first. Cuts at incumbents take care of the rest."""
_LEVEL_STEP = 1e-4
"""Of the step: levels of latency nearer than this to the next lower one are taken for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of the plan space."""

    grouping: Grouping
    home: int
    critic_homes: frozenset[int] | None = None
    """Regions of critic training's first pool; None: any."""
    phase_s: tuple[float, float] | None = None
    """Of generation apart from training at eta 0; None: any."""
    step_s: tuple[float, float] = (0.0, INFINITE)
    """Only placements of such a step; used where money binds."""


@dataclass(slots=True)
class _Meshes:
    block: MeshBlock
    rows: Ints
    at: Ints


@dataclass(slots=True)
class _Units:
    block: UnitBlock
    rows: Ints
    at: Ints
    """Variables of the counts."""


@dataclass(slots=True)
class Relaxation:
    """A node's model, built at once; `most_s`, `most_usd`: nothing dearer is of interest."""

    data: Blocks
    node: Node
    most_s: float
    most_usd: float
    cuts: Sequence[tuple[Task, float]] = ()
    """Rates (samples a second) at which tangents are added."""
    phase_cuts: Sequence[float] = ()
    is_fine: bool = False
    """Levels are not merged."""
    model: LinearModel = field(init=False, default_factory=LinearModel)
    is_empty: bool = field(init=False, default=False)
    """Whether some group has nothing to choose from."""
    scale_s: float = field(init=False)
    _meshes: dict[Tasks, _Meshes] = field(init=False, default_factory=dict)
    _units: dict[Tasks, _Units] = field(init=False, default_factory=dict)
    _held: dict[int, list[tuple[int, int, int]]] = field(init=False, default_factory=dict)
    """Of each class: (devices of a unit, variable, units)."""
    _rent: list[tuple[int, float]] = field(init=False, default_factory=list)
    _egress: list[tuple[int, float]] = field(init=False, default_factory=list)
    """Dollars a step."""
    _in_region: dict[int, list[tuple[int, float]]] = field(init=False, default_factory=dict)
    """Devices used there."""
    _made_in: dict[int, list[tuple[int, float]]] = field(init=False, default_factory=dict)
    step: int = field(init=False)
    train: int = field(init=False)
    score: int = field(init=False)
    phase: int | None = field(init=False, default=None)
    usd: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        problem, model, node = self.data.prices.problem, self.model, self.node
        low, high = node.step_s
        self.most_s = min(self.most_s, high, problem.goal.max_step_s or INFINITE)
        self.scale_s = self.most_s if self.most_s < INFINITE else 1.0
        self.step = model.variable(low / self.scale_s, self.most_s / self.scale_s)
        self.train, self.score = model.variable(), model.variable()
        for tasks in node.grouping:
            if any(task in TRAINING for task in tasks):
                self._add_mesh(tasks)
            else:
                self._add_units(tasks)
            if self.is_empty:
                return
        self._add_critic()
        self._add_inventory()
        self._add_regions()
        self._add_objective()

    # --- groups

    def _add_mesh(self, tasks: Tasks) -> None:
        block, model, ways, scale = self.data.meshes(tasks), self.model, self.data.ways(self.node.home), self.scale_s
        trains_actor, generates = Task.ACTOR_TRAINING in tasks, Task.GENERATION in tasks
        scores = any(task in SCORING for task in tasks)
        keep = block.busy_s <= self.most_s * (1 + 1e-9)
        if trains_actor:
            keep &= block.home == self.node.home
        elif self.node.critic_homes is not None and Task.CRITIC_TRAINING in tasks:
            keep &= np.isin(block.home, sorted(self.node.critic_homes))
        far = [max(float(ways.training_s[r]) for r in at) for at in block.regions]
        keep &= np.isfinite(np.array(far, dtype=np.float64))
        rows = np.flatnonzero(keep)
        listed: list[int] = rows.tolist()
        train = np.array([far[i] for i in listed]) + block.train_s[rows]
        score = block.score_s[rows] + np.array(
            [max(ways.scoring_s[r] for r in block.regions[i]) if scores else 0.0 for i in listed]
        )
        path = train + score
        if generates:
            lag = [
                max((0.0 if trains_actor else ways.weights_s[r]) + ways.trajectories_s[r] for r in block.regions[i])
                for i in listed
            ]
            path = path + block.gen_s[rows] + np.array(lag)
        fits = path <= self.data.ends * self.most_s * (1 + 1e-9)
        if generates and not trains_actor:
            needs = [max(ways.link_s[r] for r in block.regions[i]) for i in listed]
            fits &= np.array(needs, dtype=np.float64) <= self.most_s * (1 + 1e-9)
        rows, train, score, path = rows[fits], train[fits], score[fits], path[fits]
        if not len(rows):
            self.is_empty = True
            return
        at = model.variables([1.0] * len(rows), whole=True)
        self._meshes[tasks] = _Meshes(block, rows, at)
        model.row([(int(x), 1.0) for x in at], 1.0, 1.0)
        busy = block.busy_s[rows] / scale
        self._sum_below([(int(x), float(b)) for x, b in zip(at, busy, strict=True)], [(self.step, 1.0)])
        self._sum_below([(int(x), float(b)) for x, b in zip(at, train / scale, strict=True)], [(self.train, 1.0)])
        if scores:
            self._sum_below([(int(x), float(b)) for x, b in zip(at, score / scale, strict=True)], [(self.score, 1.0)])
        if generates:
            rest = (path - train - score) / scale
            terms = [(int(x), float(b)) for x, b in zip(at, rest, strict=True)]
            self._sum_below([*terms, (self.train, 1.0), (self.score, 1.0)], [(self.step, float(self.data.ends))])
        for x, i in zip(at.tolist(), rows.tolist(), strict=True):
            self._use_mesh(x, block, i, tasks)

    def _use_mesh(self, x: int, block: MeshBlock, i: int, tasks: Tasks) -> None:
        ways = self.data.ways(self.node.home)
        group = block.columns[i].group
        for pool, region in zip(group.pools, block.regions[i], strict=True):
            self._held.setdefault(self.data.class_at[pool.device_class], []).append((pool.unit_gpus, x, pool.num_units))
            self._in_region.setdefault(region, []).append((x, 1.0))
            if Task.GENERATION in tasks:
                self._made_in.setdefault(region, []).append((x, 1.0))
        self._rent.append((x, float(block.usd[i])))
        at = block.regions[i]
        usd = float(block.usd_per_step[i]) + max(ways.usd_there[r] for r in at)
        if any(task in SCORING for task in tasks):
            usd += max(ways.usd_there[r] + ways.usd_back[r] for r in at)
        if Task.GENERATION in tasks:
            usd += max(ways.usd_back[r] for r in at)
            if Task.ACTOR_TRAINING not in tasks:
                away = {r for r in at if r != self.node.home}
                usd += sum(ways.usd_version[r] for r in away)
        self._egress.append((x, usd))

    def _add_units(self, tasks: Tasks) -> None:
        block, ways = self.data.units(tasks), self.data.ways(self.node.home)
        keep = np.isfinite(ways.scoring_s[block.at_region])
        levels = np.zeros(len(block.columns))
        low_s, high_s = self.phase_range()
        generates = Task.GENERATION in tasks
        if generates:
            levels = ways.weights_s[block.at_region] + ways.trajectories_s[block.at_region]
            levels = levels + (low_s if self.data.is_sync else block.group_s)
            keep &= levels <= self.data.ends * self.most_s * (1 + 1e-9)
            keep &= ways.link_s[block.at_region] <= self.most_s * (1 + 1e-9)
        if block.phases:
            made, g = self._shares(block, low_s, high_s)
            keep &= made > 0
        rows = np.flatnonzero(keep)
        if not len(rows):
            self.is_empty = True
            return
        classes = [self.data.classes[c] for c in block.at_class[rows]]
        at = self.model.variables(
            [float(c.num_units(int(k))) for c, k in zip(classes, block.gpus[rows], strict=True)], whole=True
        )
        self._units[tasks] = _Units(block, rows, at)
        busy: list[tuple[int, float]] = []
        scoring: list[tuple[int, float]] = []
        for column, task in enumerate(tasks):
            if task is Task.GENERATION and block.phases:
                busy.append((self._add_phase(rows, at, block, made[rows], g, low_s, high_s, levels), 1.0))
                continue
            rates = [(int(x), float(r)) for x, r in zip(at, block.rates[rows, column] / self.data.samples, strict=True)]
            if task is Task.GENERATION:
                self._add_levels(block, rows, at, levels[rows])
                rates = self._throttled(block, rows, at, block.rates[rows, column] / self.data.samples, 1.0)
            seconds = self._busy(task, rates)
            busy.append((seconds, 1.0))
            if task in SCORING:
                scoring.append((seconds, 1.0))
        self._sum_below(busy, [(self.step, 1.0)])
        if scoring:
            self._add_scoring(block, rows, at, scoring)
        for x, i in zip(at.tolist(), rows.tolist(), strict=True):
            self._held.setdefault(int(block.at_class[i]), []).append((int(block.gpus[i]), x, 1))
            self._in_region.setdefault(int(block.at_region[i]), []).append((x, float(block.gpus[i])))
            if generates:
                self._made_in.setdefault(int(block.at_region[i]), []).append((x, float(block.gpus[i])))
            self._rent.append((x, float(block.usd[i])))

    # --- terms

    def _sum_below(self, left: Sequence[tuple[int, float]], right: Sequence[tuple[int, float]]) -> None:
        self.model.row([*left, *((at, -value) for at, value in right)], high=0.0)

    def _busy(self, task: Task, rates: Sequence[tuple[int, float]]) -> int:
        """A variable for the task's seconds a step; `rates` in steps' samples a second."""
        scale, model = self.scale_s, self.model
        most = sum(value * model.high[at] for at, value in rates)
        rate = model.variable(0.0, most * scale)
        self._sum_below([(rate, 1.0)], [(at, value * scale) for at, value in rates])
        longest = self.most_s / scale
        seconds = model.variable(1.0 / max(most * scale, 1e-12), longest)
        points = _points(1.0 / max(most * scale, 1e-12), longest)
        points += [1.0 / (at / self.data.samples * scale) for of, at in self.cuts if of is task and at > 0]
        for point in points:
            model.row([(seconds, 1.0), (rate, point * point)], low=2 * point)
        return seconds

    def _throttled(
        self, block: UnitBlock, rows: Ints, at: Ints, rates: Floats, longest: float
    ) -> list[tuple[int, float]]:
        """Rates with the caps of ways home; variables of regions only where a cap can bind."""
        ways, model = self.data.ways(self.node.home), self.model
        terms: list[tuple[int, float]] = []
        remote: list[tuple[int, float]] = []
        for region in np.unique(block.at_region[rows]).tolist():
            here = np.flatnonzero(block.at_region[rows] == region)
            own = [(int(at[i]), float(rates[i])) for i in here]
            cap = float(ways.samples_per_s[region]) / self.data.samples * longest
            if sum(value * model.high[x] for x, value in own) > cap:
                made = model.variable(0.0, cap)
                self._sum_below([(made, 1.0)], own)
                own = [(made, 1.0)]
            if region == self.node.home:
                terms += own
            else:
                remote += own
        down = ways.down_per_s / self.data.samples * longest
        if sum(value * model.high[x] for x, value in remote) > down:
            made = model.variable(0.0, down)
            self._sum_below([(made, 1.0)], remote)
            remote = [(made, 1.0)]
        return terms + remote

    def _add_scoring(self, block: UnitBlock, rows: Ints, at: Ints, busy: Sequence[tuple[int, float]]) -> None:
        ways = self.data.ways(self.node.home).scoring_s[block.at_region[rows]]
        base, steps = self._chain(block, rows, at, ways)
        offset = self.model.variable(base / self.scale_s, base / self.scale_s)
        self._sum_below([*busy, (offset, 1.0), *steps], [(self.score, 1.0)])

    def _chain(self, block: UnitBlock, rows: Ints, at: Ints, levels: Floats) -> tuple[float, list[tuple[int, float]]]:
        """(least level, increments of binaries): who uses a row pays for all steps up to its level."""
        tolerance = 0.0 if self.is_fine else _LEVEL_STEP * self.scale_s
        distinct: list[float] = []
        for level in np.unique(levels).tolist():
            if not distinct or level > distinct[-1] + tolerance:
                distinct.append(level)
        place = np.searchsorted(np.array(distinct), levels, side="right") - 1
        model, steps, before = self.model, [], -1
        for k in range(1, len(distinct)):
            z = model.variable(0.0, 1.0, whole=True)
            if before >= 0:
                model.row([(before, 1.0), (z, -1.0)], low=0.0)
            before = z
            steps.append((z, (distinct[k] - distinct[k - 1]) / self.scale_s))
            beyond = np.flatnonzero(place >= k)
            for c in np.unique(block.at_class[rows[beyond]]).tolist():
                mine = [i for i in beyond.tolist() if block.at_class[rows[i]] == c]
                if not any(place[i] == k for i in mine):
                    continue
                held = self.data.classes[c].num_gpus
                model.row([*((int(at[i]), float(block.gpus[rows[i]]) / held) for i in mine), (z, -1.0)], high=0.0)
        return distinct[0], steps

    def _add_levels(self, block: UnitBlock, rows: Ints, at: Ints, levels: Floats) -> None:
        """The paths of generation apart from the actor's training; `levels` with the phase's least seconds at eta 0."""
        model, ends, ways, scale = self.model, float(self.data.ends), self.data.ways(self.node.home), self.scale_s
        base, steps = self._chain(block, rows, at, levels)
        offset = model.variable(base / scale, base / scale)
        extra = [] if self.phase is None else [(self.phase, 1.0)]
        fixed = [(self.train, 1.0), (self.score, 1.0), *extra]
        self._sum_below([*fixed, (offset, 1.0), *steps], [(self.step, ends)])
        regions = np.unique(block.at_region[rows])
        remote = [r for r in regions.tolist() if r != self.node.home]
        if not remote:
            return
        used: list[tuple[int, float]] = []
        for region in remote:
            u = model.variable(0.0, 1.0, whole=True)
            used.append((u, 1.0))
            for c in np.unique(block.at_class[rows[block.at_region[rows] == region]]).tolist():
                mine = np.flatnonzero(block.at_class[rows] == c)
                held = self.data.classes[c].num_gpus
                model.row([*((int(at[i]), float(block.gpus[rows[i]]) / held) for i in mine), (u, -1.0)], high=0.0)
            model.row([(u, float(ways.link_s[region]) / scale), (self.step, -1.0)], high=0.0)
            self._egress.append((u, float(ways.usd_version[region])))
        self._add_dearest(used, [float(ways.usd_back[r]) for r in remote])
        if ways.up_s > 0:
            self._sum_below([(u, ways.up_s / scale) for u, _ in used], [(self.step, 1.0)])
            far = np.flatnonzero(block.at_region[rows] != self.node.home)
            alone = (
                levels[far] - ways.weights_s[block.at_region[rows[far]]] + ways.half_rtt_s[block.at_region[rows[far]]]
            )
            least, rises = self._chain(block, rows[far], at[far], alone)
            # without remote regions this row would ask for `least`: the first region pays it instead
            any_used = model.variable(0.0, 1.0)
            for u, _ in used:
                model.row([(any_used, 1.0), (u, -1.0)], low=0.0)
            shared = [(u, ways.up_s / scale) for u, _ in used]
            self._sum_below([*fixed, (any_used, least / scale), *shared, *rises], [(self.step, ends)])

    def _add_dearest(self, used: Sequence[tuple[int, float]], usd: Sequence[float]) -> None:
        """Samples home at the dearest way among the regions in use."""
        if not any(usd) or not self.data.prices.problem.goal.needs_prices:
            return
        dearest = self.model.variable()
        for (u, _), price in zip(used, usd, strict=True):
            self.model.row([(dearest, 1.0), (u, -price)], low=0.0)
        self._egress.append((dearest, 1.0))

    # --- generation's phase at eta 0

    def phase_range(self) -> tuple[float, float]:
        """Seconds that generation's phase may take here."""
        if not self.data.is_sync:
            return 0.0, INFINITE
        low, high = self.node.phase_s or (0.0, INFINITE)
        return low, min(high, self.most_s)

    def _shares(self, block: UnitBlock, low: float, high: float) -> tuple[Floats, tuple[float, float]]:
        """(c of each row, g at both ends): samples by s are at most c x g(s) on [low, high]; g(high) = 1."""
        at_low, at_high = (np.array([each.within(s) for each in block.phases]) for s in (low, high))
        classes = [self.data.classes[c] for c in block.at_class]
        units = np.array([c.num_units(int(k)) for c, k in zip(classes, block.gpus, strict=True)], dtype=np.float64)
        ends = [float((units * each).sum()) for each in (at_low, at_high)]
        first = min(1.0, max(0.05, ends[0] / ends[1])) if ends[1] > 0 else 1.0
        g = first + (1.0 - first) * (block.seconds - low) / max(high - low, 1e-12)
        inside = (block.seconds >= low) & (block.seconds <= high)
        at_knots = np.where(inside, block.samples / np.where(inside, g, 1.0), 0.0).max(axis=1)
        made: Floats = np.maximum(np.maximum(at_low / first, at_high), at_knots) * (1 + 1e-9)
        return made, (first, 1.0)

    def _add_phase(
        self,
        rows: Ints,
        at: Ints,
        block: UnitBlock,
        made: Floats,
        g: tuple[float, float],
        low: float,
        high: float,
        levels: Floats,
    ) -> int:
        """A variable for the phase's seconds."""
        model, scale = self.model, self.scale_s
        seconds = model.variable(low / scale, high / scale)
        self.phase = model.variable(0.0, (high - low) / scale)  # levels have `low` already
        model.row([(seconds, 1.0), (self.phase, -1.0)], low / scale, low / scale)
        longest = max(low / g[0], high) if g[0] > 0 else high
        terms = self._throttled(block, rows, at, made / self.data.samples, longest)
        slope = (1.0 - g[0]) / max(high - low, 1e-12)
        points = np.linspace(low, high, 9).tolist() + [s for s in self.phase_cuts if low <= s <= high]
        for s in points:
            here = g[0] + slope * (s - low)
            # terms >= 1 / here - slope / here^2 (seconds - s)
            tilt = slope / here**2
            model.row([*terms, (seconds, tilt * scale)], low=1.0 / here + tilt * s)
        self._add_levels(block, rows, at, levels[rows])
        return seconds

    # --- across groups

    def _add_critic(self) -> None:
        """The way of the critic's weights, where it scores apart from its training."""
        models = self.data.prices.problem.workload.models
        if Task.CRITIC_TRAINING not in models or Task.CRITIC_INFERENCE not in models:
            return
        trains = next(tasks for tasks in self.node.grouping if Task.CRITIC_TRAINING in tasks)
        scores = next(tasks for tasks in self.node.grouping if Task.CRITIC_INFERENCE in tasks)
        if trains == scores:
            return
        of = self._meshes[trains]
        sources = sorted(set(of.block.home[of.rows].tolist()))
        least = {
            r: tuple(min(self.data.critic_s(k, r)[i] for k in sources) for i in (0, 1))
            for r in range(len(self.data.regions))
        }
        model, scale = self.model, self.scale_s
        terms: list[tuple[int, float]] = []
        if scores in self._meshes:
            mesh = self._meshes[scores]
            for x, i in zip(mesh.at.tolist(), mesh.rows.tolist(), strict=True):
                seconds = max(least[r][0] for r in mesh.block.regions[i])
                if not np.isfinite(seconds):
                    model.high[x] = 0.0
                else:
                    terms.append((x, seconds / scale))
        else:
            unit = self._units[scores]
            ways = np.array([least[r][0] for r in unit.block.at_region[unit.rows].tolist()])
            for x in unit.at[~np.isfinite(ways)].tolist():
                model.high[x] = 0.0
            fine = np.isfinite(ways)
            if not fine.any():
                self.is_empty = True
                return
            base, steps = self._chain(unit.block, unit.rows[fine], unit.at[fine], ways[fine])
            terms = [(model.variable(base / scale, base / scale), 1.0), *steps]
        self._sum_below([*terms, (self.train, 1.0), (self.score, 1.0)], [(self.step, float(self.data.ends))])

    def _add_inventory(self) -> None:
        for c in sorted(self._held):
            device_class, most = self.data.classes[c], INFINITE
            for size in sorted({unit for unit, _, _ in self._held[c]}):
                cap = device_class.num_machines * (device_class.gpus_per_machine // size) * size
                if cap < most or size == min(unit for unit, _, _ in self._held[c]):
                    terms = [(x, float(unit * units)) for unit, x, units in self._held[c] if unit >= size]
                    self.model.row(terms, high=float(cap))
                most = min(most, cap)

    def _add_regions(self) -> None:
        rules, model = self.data.prices.problem.rules, self.model
        for name in sorted(rules.generating):
            at = self.data.region_at.get(name, -1)
            model.row(self._made_in.get(at, []), low=1.0)
        if rules.max_regions is None and rules.min_regions <= 1:
            return
        used: list[tuple[int, float]] = []
        for region in sorted(self._in_region):
            u = model.variable(0.0, 1.0, whole=True)
            used.append((u, 1.0))
            gpus = sum(self.data.classes[c].num_gpus for c in np.flatnonzero(self.data.class_region == region))
            terms = self._in_region[region]
            model.row([*((x, value / gpus) for x, value in terms), (u, -1.0)], high=0.0)
            for x, _ in terms:
                if model.high[x] == 1.0:
                    model.row([(x, 1.0), (u, -1.0)], high=0.0)
            model.row([*terms, (u, -1.0)], low=0.0)
        model.row(used, low=float(rules.min_regions), high=float(rules.max_regions or len(used)))

    def _add_objective(self) -> None:
        goal, model = self.data.prices.problem.goal, self.model
        if not goal.needs_prices and goal.max_usd_per_hour is None:
            model.cost[self.step] = 1.0
            return
        hour = 3600.0
        if goal.objective is Objective.COST_AT_THROUGHPUT:
            self.usd = model.variable(0.0, min(self.most_usd, goal.max_usd_per_hour or INFINITE))
            per_step = hour / (goal.max_step_s or self.most_s)
            model.row([*self._rent, *((x, v * per_step) for x, v in self._egress), (self.usd, -1.0)], high=0.0)
            model.cost[self.usd] = 1.0
            return
        model.cost[self.step] = 1.0
        if goal.max_usd_per_hour is None:
            return
        most = goal.max_usd_per_hour
        low, high = self.node.step_s[0], self.most_s
        model.row(self._rent, high=most)
        egress = [(x, hour * v) for x, v in self._egress]
        # step x (most - rent) >= 3600 egress, relaxed from both ends of the node's range of steps
        model.row(
            [*((x, high * v) for x, v in self._rent), *((x, hour * v) for x, v in self._egress)], high=high * most
        )
        model.row(
            [
                *((x, low * v) for x, v in self._rent),
                *egress,
                (self.step, -most * self.scale_s),
            ],
            high=0.0,
        )

    # --- answers

    def placement(self, values: Floats) -> Placement:
        """What a point of the model says: whole numbers are rounded."""
        groups = []
        for tasks in self.node.grouping:
            if tasks in self._meshes:
                mesh = self._meshes[tasks]
                chosen = int(mesh.rows[int(values[mesh.at].argmax())])
                groups.append(mesh.block.columns[chosen].group)
                continue
            units = self._units[tasks]
            counts = np.rint(values[units.at]).astype(int)
            pools = []
            for i, num in zip(units.rows.tolist(), counts.tolist(), strict=True):
                if num > 0:
                    unit = units.block.columns[i].unit
                    pools.append(replace(unit, num_units=num))
            groups.append(Group(tasks=tasks, pools=tuple(pools)))
        return Placement(groups=tuple(groups))

    def mesh_choices(self) -> Iterator[tuple[int, Group]]:
        """(variable, group) of each mesh."""
        for mesh in self._meshes.values():
            for x, i in zip(mesh.at.tolist(), mesh.rows.tolist(), strict=True):
                yield x, mesh.block.columns[i].group

    def unit_choices(self) -> Iterator[tuple[Tasks, int, Pool, float]]:
        """(tasks, variable, unit, its part of the rate of all units that could be had) of each kind of unit."""
        for tasks, units in self._units.items():
            rates = units.block.rates[units.rows].min(axis=1)
            most = np.array([self.model.high[x] for x in units.at.tolist()])
            total = float((rates * most).sum())
            for x, i, rate in zip(units.at.tolist(), units.rows.tolist(), rates.tolist(), strict=True):
                yield tasks, x, units.block.columns[i].unit, rate / total

    def rates(self, values: Floats) -> list[tuple[Task, float]]:
        """Samples a second of each task apart from training, at a point: where tangents help."""
        found = []
        for tasks, units in sorted(self._units.items()):
            for column, task in enumerate(tasks):
                if task is not Task.GENERATION or not units.block.phases:
                    found.append((task, float(values[units.at] @ units.block.rates[units.rows, column])))
        return found

    def phase_at(self, values: Floats) -> float | None:
        """Seconds of generation's phase at a point."""
        if self.phase is None:
            return None
        return float(values[self.phase] * self.scale_s) + self.phase_range()[0]


def _points(low: float, high: float) -> list[float]:
    """Seconds at which tangents of 1 / rate miss at most `_TANGENT_ERROR` of 1 between neighbours."""
    points, at = [], high
    while at > max(low, _TANGENT_ERROR):
        points.append(at)
        at *= float(np.exp(-2 * np.sqrt(_TANGENT_ERROR * max(1.0, high) / at)))
    return [*points, max(low, _TANGENT_ERROR / 10)]
