"""One part of the plan space as a linear model whose optimum no placement of that part beats.

Variables: `step` (tau), the training and scoring phases, generation's window, one binary a mesh, a whole number a kind
of unit. All times are in units of `scale_s`, so rows have entries of about 1. What is not linear is replaced by what it
cannot be below:

- busy time W / R of a task: its tangents (convex in the rate R).
- generation's window: the most that units make in an interval of windows (`planner.exact.windows`).
- who scores far away makes all of its group's scoring wait. A chain of binaries says so exactly; beside it, so that
  the relaxation says it too, a unit whose way takes l has at most S - l of a scoring phase S, and counts in proportion.
- a version's way where an uplink is shared: as if as few regions received it as the node says.
- what the critic's region costs: the least over the regions that the node leaves open.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.exact.blocks import Blocks
from planner.exact.choices import Choices, Node, beside_s, choices
from planner.exact.critic import Critic
from planner.exact.dollars import chosen_usd
from planner.exact.held import Chosen, add_inventory, uses
from planner.exact.linear import INFINITE, Bools, Floats, Ints, LinearModel
from planner.exact.money import Money
from planner.exact.rows import LEVEL_STEP, Counted, Terms, below, capped, chain, inverse
from planner.exact.sites import MeshesAt
from planner.exact.windows import Interval, add_window, interval, looseness
from planner.groupings import Tasks
from planner.question.goal import Objective
from planner.question.workload import SCORING, Task

__all__ = ["Node", "Relaxation"]

_ROUNDING, _LATER = 1e-9, 1e-6
LITTLE = 0.1
"""Of a region or of units, where a point of the linear relaxation uses no more than that."""


@dataclass(slots=True)
class Relaxation:
    """A node's model, built at once; `most_s`, `most_usd`: nothing dearer is of interest."""

    data: Blocks
    node: Node
    most_s: float
    most_usd: float
    cuts: Sequence[tuple[Task, float]] = ()
    """Rates (samples a second) at which tangents are added."""
    is_fine: bool = False
    """Levels are not merged."""
    model: LinearModel = field(init=False, default_factory=LinearModel)
    is_empty: bool = field(init=False, default=False)
    """Whether some group has nothing to choose from."""
    scale_s: float = field(init=False)
    low_s: float = field(init=False, default=0.0)
    """No step of the part is shorter, whatever its model says."""
    step: int = field(init=False)
    train: int = field(init=False)
    score: int = field(init=False)
    window: int | None = field(init=False, default=None)
    made: Counted = field(init=False)
    """Units that generate apart from training."""
    _choices: Choices = field(init=False)
    meshes: dict[Tasks, Chosen] = field(init=False, default_factory=dict)
    units: dict[Tasks, Counted] = field(init=False, default_factory=dict)
    _scoring: dict[Tasks, Terms] = field(init=False, default_factory=dict)
    """Of a group without training: seconds of its scoring, ways included."""
    interval: Interval | None = field(init=False, default=None)
    received: list[int] = field(init=False, default_factory=list)
    """Binaries of remote regions that generate."""
    critic: Critic | None = field(init=False, default=None)
    _money: Money = field(init=False)
    _uses: dict[tuple[int, ...], int] = field(init=False, default_factory=dict)
    """Binaries: whether any of these variables are used."""

    def __post_init__(self) -> None:
        problem, model, node = self.data.prices.problem, self.model, self.node
        low, high = node.step_s
        self.most_s = min(self.most_s, high, problem.goal.planned_step_s or INFINITE)
        self.scale_s = self.most_s if self.most_s < INFINITE else 1.0
        found = choices(self.data, node, self.most_s)
        if found is None:
            self.is_empty = True
            return
        self._choices = found
        if problem.goal.objective is Objective.COST_AT_THROUGHPUT:
            least_usd = chosen_usd(self.data, found.meshes, found.units, found.least, self.most_s)
            if least_usd > self.most_usd * (1 + _ROUNDING):
                self.is_empty = True
                return
        self._money = Money(data=self.data, home=node.home)
        self.low_s = max(low, found.least.busy_s, found.least.path_s() / self.data.ends)
        self.step = model.variable(min(self.low_s / self.scale_s * (1 - 1e-12), 1.0), self.most_s / self.scale_s)
        self.train, self.score = model.variable(), model.variable()
        for tasks in node.grouping:
            if tasks in found.meshes:
                self._add_mesh(tasks, found.meshes[tasks])
            else:
                self._add_units(tasks)
        self._add_critic()
        if self.is_empty:
            return
        add_inventory(self.data, self.model, self.meshes.values(), self.units.values())
        self._add_regions()
        self._money.add_objective(model, self.step, (low, self.most_s), self.scale_s, self.most_usd)

    # --- groups

    def _add_mesh(self, tasks: Tasks, of: MeshesAt) -> None:
        model, scale = self.model, self.scale_s
        at = model.variables(np.ones(len(of.rows)), whole=True)
        self.meshes[tasks] = Chosen(of=of, at=at)
        model.add(at, np.ones(len(at)), 1.0, 1.0)
        self._below(at, of.busy_s / scale, [(self.step, 1.0)])
        self._below(at, of.train_s / scale, [(self.train, 1.0)])
        if any(task in SCORING for task in tasks):
            self._below(at, of.score_s / scale, [(self.score, 1.0)])
        if Task.GENERATION in tasks:
            path = [(self.step, float(self.data.ends)), (self.train, -1.0), (self.score, -1.0)]
            self._below(at, of.rest_s / scale, path)
        self._money.add_meshes(of, at)

    def _add_units(self, tasks: Tasks) -> None:
        of = self._choices.units[tasks]
        units = Counted(of=of, at=self.model.variables(of.most, whole=True))
        self.units[tasks] = units
        scoring: Terms = []
        for column, task in enumerate(task for task in tasks if task in SCORING):
            rates = of.score_rates[:, column] / self.data.samples * self.scale_s
            scoring.append((inverse(self.model, units.at, rates, self._longest, self._cuts(task)), 1.0))
        busy, making = list(scoring), units
        if of.generates:
            making = self._making(units)
            busy += [] if self.data.is_sync else [(self._full_rates(making), 1.0)]
        if busy:
            below(self.model, busy, [(self.step, 1.0)])
        if scoring:
            self._add_scoring(units, scoring)
        if of.generates:
            low, high = (each / self.scale_s for each in self.node.others_s)
            if scoring and (low > 0 or high < INFINITE):
                self.model.row(scoring, low=low, high=high)
            self._add_generation(making, [] if self.data.is_sync else scoring)
        self._money.add_units(self.model, units, self.is_fine)

    @property
    def _longest(self) -> float:
        return self.most_s / self.scale_s

    def _cuts(self, task: Task) -> list[float]:
        return [rate / self.data.samples * self.scale_s for of, rate in self.cuts if of is task and rate > 0]

    def _below(self, at: Ints, values: Floats, right: Terms) -> None:
        """sum of values x variables <= right"""
        others = np.array([x for x, _ in right], dtype=np.int64)
        self.model.add(np.append(at, others), np.append(values, [-value for _, value in right]), high=0.0)

    # --- scoring

    def _add_scoring(self, units: Counted, busy: Terms) -> None:
        steps = chain(self.data, self.model, units, units.of.level_s, self.scale_s, self.is_fine)
        self._scoring[units.of.block.tasks] = [*busy, *steps]
        below(self.model, [*busy, *steps], [(self.score, 1.0)])
        self._wait(units, units.of.level_s, self._choices.most_score_s, [(self.score, 1.0)])

    def _wait(self, units: Counted, levels: Floats, most_s: float, right: Terms) -> None:
        """Scoring in what is left of `right`, at most `most_s`, beside each unit's own level."""
        least, of, model = float(levels.min()), units.of, self.model
        if levels.max() - least <= LEVEL_STEP * self.scale_s or most_s <= least:
            return
        alone = 1.0 / of.fleets(of.score_rates)
        weights = alone / alone.sum()  # any weights hold: the group's rate is concave in its tasks' rates
        rates = of.score_rates @ weights**2 / self.data.samples * self.scale_s
        left = np.clip((most_s - levels) / (most_s - least), 0.0, 1.0)
        seconds = inverse(model, units.at, rates * left, (most_s - least) / self.scale_s)
        offset = model.variable(least / self.scale_s, least / self.scale_s)
        below(model, [(seconds, 1.0), (offset, 1.0)], right)

    # --- generation

    def _making(self, units: Counted) -> Counted:
        """The units that generate: where their group scores, remote ones may idle, and still score."""
        of, model = units.of, self.model
        if not of.scores or self.data.prices.problem.rules.demands_regions:
            return units
        units = units.some(np.flatnonzero(of.makes))
        at = units.at.copy()
        for i in np.flatnonzero(units.of.region != self.node.home).tolist():
            at[i] = model.variable(0.0, float(units.of.most[i]))
            model.row([(int(at[i]), 1.0), (int(units.at[i]), -1.0)], high=0.0)
        return Counted(of=units.of, at=at)

    def _full_rates(self, units: Counted) -> int:
        """A variable for generation's seconds a step, were all its units busy."""
        ways, scale = self.data.ways(self.node.home), self.scale_s / self.data.samples
        down, caps = ways.down_per_s * scale, ways.samples_per_s * scale
        at, rates = capped(self.model, units, units.of.rates * scale, caps, ways, down)
        return inverse(self.model, at, rates, self._longest, self._cuts(Task.GENERATION))

    def _add_generation(self, units: Counted, others: Terms) -> None:
        data, model, scale = self.data, self.model, self.scale_s
        low, high = self._choices.window_s
        self.window, self.made = model.variable(low / scale, high / scale), units
        path = [(self.train, 1.0), (self.score, 1.0), *others]
        below(model, [*path, (self.window, 1.0)], [(self.step, float(data.ends))])
        self.interval = interval(data, units.of, (low, high), self.most_s - self._choices.least.others_s)
        add_window(data, model, units, self.interval, self.node.home, self.window, scale)
        self._add_receivers(units)
        if data.prices.problem.rules.demands_regions:
            levels = units.of.lag_s + units.of.block.first_s[units.of.rows]
            steps = chain(data, model, units, levels, scale, self.is_fine)
            below(model, [*path, *steps], [(self.step, float(data.ends))])

    def _add_receivers(self, units: Counted) -> None:
        """A binary for each remote region, where it matters which ones are sent versions."""
        model, of, ways = self.model, units.of, self.data.ways(self.node.home)
        low, high = self.node.receivers
        link_s = ways.link_s + beside_s(self.data, self.node)
        for region in np.unique(of.region[of.region != self.node.home]).tolist():
            is_slow = link_s[region] > self.low_s
            if not (is_slow or ways.up_s > 0 or self._money.counts):
                continue
            u = self._used(units, region)
            self.received.append(u)
            if is_slow:
                below(model, [(u, float(link_s[region]) / self.scale_s)], [(self.step, 1.0)])
            self._money.add_receiver(u, region)
        self._money.add_dearest(model)
        used = [(u, 1.0) for u in self.received]
        if ways.up_s > 0 and used:
            below(model, [(u, ways.up_s / self.scale_s) for u in self.received], [(self.step, 1.0)])
            model.row(used, low=float(low) if low > 0 else -INFINITE, high=float(min(high, len(used))))
        elif low > len(used) and ways.up_s > 0:
            self.is_empty = True

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
        path = [(self.step, float(self.data.ends)), (self.train, -1.0)]
        own = self.meshes[scores].of if scores in self.meshes else self.units[scores].of
        self.critic = critic = Critic.between(self.data, self.meshes[trains].of, own, self._choices)
        if isinstance(own, MeshesAt):
            at, regions = self.meshes[scores].at, own.block.regions[own.rows]
            fine = np.asarray(critic.is_near[regions].all(axis=1))
            self._forbid(at, ~fine)
            self._money.add_critic(at[fine], critic.least_usd, regions[fine])
            seconds = critic.least_s[regions[fine]].max(axis=1) + own.score_s[fine]
            self._below(at[fine], seconds / self.scale_s, path)
            for region in np.unique(regions[fine]).tolist():
                here = at[fine][(regions[fine] == region).any(axis=1)]
                self._keep_near(critic, self.meshes[trains], region, [(x, 1.0) for x in here.tolist()])
            return
        units = self.units[scores]
        fine = critic.is_near[units.of.region]
        self._forbid(units.at, ~fine)
        if not fine.any():
            self.is_empty = True
            return
        few = units.some(np.flatnonzero(fine))
        ways_s = critic.least_s[few.of.region]
        steps = chain(self.data, self.model, few, ways_s, self.scale_s, self.is_fine)
        below(self.model, [*steps, *self._scoring[scores]], path)
        self._wait(few, ways_s + few.of.level_s, self._choices.most_after_train_s, path)
        for region in np.unique(few.of.region).tolist():
            if not critic.near[region].all():
                self._keep_near(critic, self.meshes[trains], region, [(self._used(few, region), 1.0)])
            if self._money.counts and critic.least_usd[region] > 0:
                u, there = np.array([self._used(few, region)]), np.array([[region, region]])
                self._money.add_critic(u, critic.least_usd, there)

    def _keep_near(self, critic: Critic, trains: Chosen, region: int, uses: Terms) -> None:
        """Not both: something that scores in a region, and the critic trained where its weights come from too late."""
        far = ~critic.near[region][critic.source[trains.of.rows]]
        if far.any():
            self.model.row([*uses, *((x, 1.0) for x in trains.at[far].tolist())], high=1.0)

    def _used(self, units: Counted, region: int) -> int:
        """A binary: whether any of a group's units are in a region."""
        of, here = units.of, units.at[units.of.region == region]
        key = tuple(here.tolist())
        if key in self._uses:
            return self._uses[key]
        u = self._uses[key] = self.model.variable(0.0, 1.0, whole=True)
        classes = of.block.at_class[of.rows]
        for c in np.unique(classes[of.region == region]).tolist():
            mine = np.flatnonzero(classes == c)
            self._below(units.at[mine], of.gpus[mine] / self.data.classes[c].num_gpus, [(u, 1.0)])
        return u

    def _forbid(self, at: Ints, which: Bools) -> None:
        for x in at[which].tolist():
            self.model.high[x] = 0.0

    def _add_regions(self) -> None:
        rules, model = self.data.prices.problem.rules, self.model
        for name in sorted(rules.generating):
            at = self.data.region_at.get(name, -1)
            making = uses(self.meshes, self.units, Task.GENERATION)
            model.row([(x, value) for x, region, value in making if region == at], low=1.0)
        if rules.max_regions is None and rules.min_regions <= 1:
            return
        used: Terms = []
        here: dict[int, Terms] = {}
        for x, region, value in uses(self.meshes, self.units, None):
            here.setdefault(region, []).append((x, value))
        for region in sorted(here):
            u = model.variable(0.0, 1.0, whole=True)
            used.append((u, 1.0))
            gpus = sum(self.data.classes[c].num_gpus for c in np.flatnonzero(self.data.class_region == region))
            terms = here[region]
            model.row([*((x, value / gpus) for x, value in terms), (u, -1.0)], high=0.0)
            for x, _ in terms:
                if model.high[x] == 1.0:
                    model.row([(x, 1.0), (u, -1.0)], high=0.0)
            model.row([*terms, (u, -1.0)], low=0.0)
        model.row(used, low=float(rules.min_regions), high=float(rules.max_regions or len(used)))

    # --- answers

    def placement(self, values: Floats) -> Placement:
        """What a point of the model says: whole numbers are rounded."""
        groups = []
        for tasks in self.node.grouping:
            if tasks in self.meshes:
                chosen = self.meshes[tasks]
                row = int(chosen.of.rows[int(values[chosen.at].argmax())])
                groups.append(chosen.of.block.columns[row].group)
                continue
            units = self.units[tasks]
            counts = np.rint(values[units.at]).astype(int)
            pools = [
                replace(units.of.block.columns[i].unit, num_units=num)
                for i, num in zip(units.of.rows.tolist(), counts.tolist(), strict=True) if num > 0
            ]  # fmt: skip
            groups.append(Group(tasks=tasks, pools=tuple(pools)))
        return Placement(groups=tuple(groups))

    def mesh_choices(self) -> Iterator[tuple[int, Group]]:
        """(variable, group) of each mesh."""
        for chosen in self.meshes.values():
            for x, i in zip(chosen.at.tolist(), chosen.of.rows.tolist(), strict=True):
                yield x, chosen.of.block.columns[i].group

    def unit_choices(self) -> Iterator[tuple[Tasks, int, Pool]]:
        """(tasks, variable, unit) of each kind of unit."""
        for tasks, units in self.units.items():
            for x, i in zip(units.at.tolist(), units.of.rows.tolist(), strict=True):
                yield tasks, x, units.of.block.columns[i].unit

    def rates(self, values: Floats) -> list[tuple[Task, float]]:
        """Samples a second of each task apart from training, at a point: where tangents help."""
        found = []
        for tasks, units in sorted(self.units.items()):
            for column, task in enumerate(tasks):
                if task is not Task.GENERATION or not self.data.is_sync:
                    rates = units.of.block.rates[units.of.rows, column]
                    found.append((task, float(values[units.at] @ rates)))
        return found

    def window_at(self, values: Floats) -> float | None:
        """Seconds of generation's window at a point, where it has one, past a jump that solvers stop short of."""
        return None if self.window is None else float(values[self.window] * self.scale_s) * (1 + _LATER)

    @property
    def others_range_s(self) -> tuple[float, float]:
        """Of what other tasks take of generation's group."""
        return self._choices.least.others_s, min(self.node.others_s[1], self.most_s)

    @property
    def window_range_s(self) -> tuple[float, float]:
        return self._choices.window_s

    def looseness(self, values: Floats) -> float:
        """The part of a step's samples that the model has made at a point and that are not."""
        window_s = self.window_at(values)
        if window_s is None or self.interval is None:
            return 0.0
        counts = np.maximum(values[self.made.at], 0.0)
        return looseness(self.data, self.made, self.interval, counts, self.node.home, window_s)

    def receivers(self, values: Floats) -> int:
        """Remote regions that are sent versions, at a point, where that matters; what is left of one counts."""
        return int(np.ceil(sum(values[u] for u in self.received) - LITTLE))
