"""A subproblem as a mixed-integer linear model whose optimum no placement of the subproblem beats.

Variables: `step` (tau), the training phase, the scoring phase, generation's window, a binary per mesh, and an integer
per candidate unit. All times are in units of `scale_s`, so that rows have entries of about 1. What is not linear is
replaced by a lower bound:

- Busy time W / R of a task: its tangents (convex in the rate R).
- Generation's window: the most that units make in an interval of windows
(`planner.methods.exact.relaxation.window_rows`).
- Distant scoring: the whole group waits for its most distant unit. A chain of binaries says so exactly. To make the
  linear relaxation say it too, a unit at distance l has at most S - l of a scoring phase S, and counts in proportion.
- Transfer of a version over a shared uplink: as if only as few regions received it as the subproblem allows.
- The critic's region: the least over all regions that the subproblem leaves open.

The oracle evaluates the model's optimum. If its value is higher, `branch_and_bound` cuts or divides the subproblem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.answer.placement import Group, Placement, Pool
from planner.methods.exact.program.linear_model import INFINITE, Bools, Floats, Ints, LinearModel
from planner.methods.exact.relaxation.critic_transfers import CriticTransfers
from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.inventory_rows import MeshVariables, add_inventory, chosen_regions
from planner.methods.exact.relaxation.row_builders import (
    LEVEL_STEP,
    Terms,
    UnitVariables,
    add_at_most,
    busy_time_variable,
    highest_level,
    limit_by_routes,
)
from planner.methods.exact.relaxation.window_rows import Interval, add_window, interval, looseness
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes
from planner.methods.exact.subproblem.remaining_candidates import (
    RemainingCandidates,
    Subproblem,
    critic_link_s,
    remaining_candidates,
)
from planner.methods.exact.subproblem.rent_lower_bounds import chosen_usd
from planner.problem.goal import Objective
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING, Task

__all__ = ["Relaxation", "Subproblem"]

_ROUNDING, _LATER = 1e-9, 1e-6
"""Relative tolerance of comparisons of dollars, and relative increase of a window that is read from a point, because
solvers stop a little short of a jump in a table."""
LITTLE = 0.1
"""Value of a binary or count in the linear relaxation up to which it counts as unused. Chosen by hand."""


@dataclass(slots=True)
class Relaxation:
    """The model of one subproblem, built by the constructor.

    `most_s` and `most_usd` are upper bounds: no placement above them is of interest.
    """

    data: ProblemArrays
    subproblem: Subproblem
    most_s: float
    most_usd: float
    cuts: Sequence[tuple[Task, float]] = ()
    """(Task, rate in samples per second) at which further tangents are added."""
    is_fine: bool = False
    """Whether latency levels stay separate; otherwise nearly equal ones are merged."""
    model: LinearModel = field(init=False, default_factory=LinearModel)
    is_empty: bool = field(init=False, default=False)
    """Whether some group has no candidate left, so that there is no model."""
    scale_s: float = field(init=False)
    """Seconds of one unit of time in the model."""
    low_s: float = field(init=False, default=0.0)
    """Lower bound on the step time, known without the model."""
    step: int = field(init=False)
    """Variable of the step time."""
    train: int = field(init=False)
    """Variable of the longest training of any group, transfers included."""
    score: int = field(init=False)
    """Variable of the longest scoring of any group, transfers included."""
    window: int | None = field(init=False, default=None)
    """Variable of generation's window; None if generation takes turns with training."""
    made: UnitVariables = field(init=False)
    """Units that generate apart from training."""
    _choices: RemainingCandidates = field(init=False)
    meshes: dict[Tasks, MeshVariables] = field(init=False, default_factory=dict)
    """Meshes and binaries of each group with training."""
    units: dict[Tasks, UnitVariables] = field(init=False, default_factory=dict)
    """Units and counts of each group without training."""
    _scoring: dict[Tasks, Terms] = field(init=False, default_factory=dict)
    """Seconds of scoring, transfers included, of each group without training."""
    interval: Interval | None = field(init=False, default=None)
    """Interval of windows on which the rows of generation hold."""
    received: list[int] = field(init=False, default_factory=list)
    """Binaries of remote regions that generate, where it matters which ones receive versions."""
    critic: CriticTransfers | None = field(init=False, default=None)
    """Transfers of the critic's weights, if they travel."""
    _money: DollarTerms = field(init=False)
    _uses: dict[tuple[int, ...], int] = field(init=False, default_factory=dict)
    """Binaries by the set of variables of which they say whether any is used."""

    def __post_init__(self) -> None:
        problem, model, subproblem = self.data.cost_tables.problem, self.model, self.subproblem
        low, high = subproblem.step_s
        self.most_s = min(self.most_s, high, problem.goal.planned_step_s or INFINITE)
        self.scale_s = self.most_s if self.most_s < INFINITE else 1.0
        # First rule out subproblems without candidates, or whose rent is already too high.
        found = remaining_candidates(self.data, subproblem, self.most_s)
        if found is None:
            self.is_empty = True
            return
        self._choices = found
        if problem.goal.objective is Objective.COST_AT_THROUGHPUT:
            least_usd = chosen_usd(self.data, found.meshes, found.units, found.least, self.most_s)
            if least_usd > self.most_usd * (1 + _ROUNDING):
                self.is_empty = True
                return
        # Then add the variables of the step and its phases, the groups, and the rows that join them.
        self._money = DollarTerms(data=self.data, trainer_region=subproblem.trainer_region)
        self.low_s = max(low, found.least.busy_s, found.least.path_s() / self.data.ends)
        self.step = model.variable(min(self.low_s / self.scale_s * (1 - 1e-12), 1.0), self.most_s / self.scale_s)
        self.train, self.score = model.variable(), model.variable()
        for tasks in subproblem.grouping:
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

    def _add_mesh(self, tasks: Tasks, of: ReachableMeshes) -> None:
        """Add a group with training: exactly one mesh, with its busy time, phases and path."""
        model, scale = self.model, self.scale_s
        at = model.variables(np.ones(len(of.rows)), whole=True)
        self.meshes[tasks] = MeshVariables(of=of, at=at)
        model.add(at, np.ones(len(at)), 1.0, 1.0)
        self._below(at, of.busy_s / scale, [(self.step, 1.0)])
        self._below(at, of.train_s / scale, [(self.train, 1.0)])
        if any(task in SCORING for task in tasks):
            self._below(at, of.score_s / scale, [(self.score, 1.0)])
        if Task.GENERATION in tasks:
            # Generation by turns: phase <= (eta + 1) step - train - score.
            path = [(self.step, float(self.data.ends)), (self.train, -1.0), (self.score, -1.0)]
            self._below(at, of.generation_s / scale, path)
        self._money.add_meshes(of, at)

    def _add_units(self, tasks: Tasks) -> None:
        """Add a group without training: counts of units, busy time, scoring and generation."""
        of = self._choices.units[tasks]
        units = UnitVariables(of=of, at=self.model.variables(of.most, whole=True))
        self.units[tasks] = units
        scoring: Terms = []
        for column, task in enumerate(task for task in tasks if task in SCORING):
            # Rates in steps' worth of samples per unit of time, so that the busy time is 1 / rate.
            rates = of.score_rates[:, column] / self.data.samples * self.scale_s
            scoring.append((busy_time_variable(self.model, units.at, rates, self._longest, self._cuts(task)), 1.0))
        busy, making = list(scoring), units
        if of.generates:
            making = self._making(units)
            busy += [] if self.data.is_sync else [(self._full_rates(making), 1.0)]
        if busy:
            add_at_most(self.model, busy, [(self.step, 1.0)])
        if scoring:
            self._add_scoring(units, scoring)
        if of.generates:
            # The subproblem's range of what other tasks take of generation's group.
            low, high = (each / self.scale_s for each in self.subproblem.others_s)
            if scoring and (low > 0 or high < INFINITE):
                self.model.row(scoring, low=low, high=high)
            self._add_generation(making, [] if self.data.is_sync else scoring)
        self._money.add_units(self.model, units, self.is_fine)

    @property
    def _longest(self) -> float:
        """Upper bound on a busy time, in units of `scale_s`."""
        return self.most_s / self.scale_s

    def _cuts(self, task: Task) -> list[float]:
        """Return the rates at which the task gets further tangents, in the model's units."""
        return [rate / self.data.samples * self.scale_s for of, rate in self.cuts if of is task and rate > 0]

    def _below(self, at: Ints, values: Floats, right: Terms) -> None:
        """Add the row sum of values x variables <= right."""
        others = np.array([x for x, _ in right], dtype=np.int64)
        self.model.add(np.append(at, others), np.append(values, [-value for _, value in right]), high=0.0)

    # --- scoring

    def _add_scoring(self, units: UnitVariables, busy: Terms) -> None:
        """Add the scoring of a group to its phase: busy time plus the transfer to the most distant unit."""
        steps = highest_level(self.data, self.model, units, units.of.level_s, self.scale_s, self.is_fine)
        self._scoring[units.of.block.tasks] = [*busy, *steps]
        add_at_most(self.model, [*busy, *steps], [(self.score, 1.0)])
        self._wait(units, units.of.level_s, self._choices.most_score_s, [(self.score, 1.0)])

    def _wait(self, units: UnitVariables, levels: Floats, most_s: float, right: Terms) -> None:
        """Add rows for scoring within `right`, at most `most_s`, where each unit loses its own transfer time.

        A unit at level l has the share (most_s - l) / (most_s - least) of the phase; its rate counts in that
        proportion.
        """
        least, of, model = float(levels.min()), units.of, self.model
        if levels.max() - least <= LEVEL_STEP * self.scale_s or most_s <= least:
            return
        alone = 1.0 / of.fleets(of.score_rates)
        # The group's joint rate is concave in its tasks' rates, so any weights give a valid bound.
        weights = alone / alone.sum()
        rates = of.score_rates @ weights**2 / self.data.samples * self.scale_s
        left = np.clip((most_s - levels) / (most_s - least), 0.0, 1.0)
        seconds = busy_time_variable(model, units.at, rates * left, (most_s - least) / self.scale_s)
        offset = model.variable(least / self.scale_s, least / self.scale_s)
        add_at_most(model, [(seconds, 1.0), (offset, 1.0)], right)

    # --- generation

    def _making(self, units: UnitVariables) -> UnitVariables:
        """Return the units that generate, with their counts.

        In a group that also scores, remote units may idle in generation and still score: they get counts of their own.
        """
        of, model = units.of, self.model
        if not of.scores or self.data.cost_tables.problem.rules.demands_regions:
            return units
        units = units.some(np.flatnonzero(of.makes))
        at = units.at.copy()
        for i in np.flatnonzero(units.of.region != self.subproblem.trainer_region).tolist():
            at[i] = model.variable(0.0, float(units.of.most[i]))
            model.row([(int(at[i]), 1.0), (int(units.at[i]), -1.0)], high=0.0)
        return UnitVariables(of=units.of, at=at)

    def _full_rates(self, units: UnitVariables) -> int:
        """Add a variable for generation's seconds per step at full rates and return its index.

        The limits of routes are included.
        """
        transfers, scale = self.data.transfers(self.subproblem.trainer_region), self.scale_s / self.data.samples
        down, caps = transfers.down_per_s * scale, transfers.samples_per_s * scale
        at, rates = limit_by_routes(self.model, units, units.of.rates * scale, caps, transfers, down)
        return busy_time_variable(self.model, at, rates, self._longest, self._cuts(Task.GENERATION))

    def _add_generation(self, units: UnitVariables, others: Terms) -> None:
        """Add generation's window: training + scoring + others + window <= (eta + 1) step, and what is made in it."""
        data, model, scale = self.data, self.model, self.scale_s
        low, high = self._choices.window_s
        self.window, self.made = model.variable(low / scale, high / scale), units
        path = [(self.train, 1.0), (self.score, 1.0), *others]
        add_at_most(model, [*path, (self.window, 1.0)], [(self.step, float(data.ends))])
        self.interval = interval(data, units.of, (low, high), self.most_s - self._choices.least.others_s)
        add_window(data, model, units, self.interval, self.subproblem.trainer_region, self.window, scale)
        self._add_receivers(units)
        # Demanded regions: the window holds the first sample of every unit in use.
        if data.cost_tables.problem.rules.demands_regions:
            levels = units.of.lag_s + units.of.block.first_s[units.of.rows]
            steps = highest_level(data, model, units, levels, scale, self.is_fine)
            add_at_most(model, [*path, *steps], [(self.step, float(data.ends))])

    def _add_receivers(self, units: UnitVariables) -> None:
        """Add a binary for each remote region, where it matters which ones receive versions.

        It matters for slow links (link <= step), for a capped uplink (sum over receivers <= step) and for dollars.
        """
        model, of, transfers = self.model, units.of, self.data.transfers(self.subproblem.trainer_region)
        low, high = self.subproblem.receivers
        link_s = transfers.link_s + critic_link_s(self.data, self.subproblem)
        for region in np.unique(of.region[of.region != self.subproblem.trainer_region]).tolist():
            is_slow = link_s[region] > self.low_s
            if not (is_slow or transfers.up_s > 0 or self._money.counts):
                continue
            u = self._used(units, region)
            self.received.append(u)
            if is_slow:
                add_at_most(model, [(u, float(link_s[region]) / self.scale_s)], [(self.step, 1.0)])
            self._money.add_receiver(u, region)
        self._money.add_most_expensive_route(model)
        # The uplink carries one version for each receiver; their number is within the subproblem's range.
        used = [(u, 1.0) for u in self.received]
        if transfers.up_s > 0 and used:
            add_at_most(model, [(u, transfers.up_s / self.scale_s) for u in self.received], [(self.step, 1.0)])
            model.row(used, low=float(low) if low > 0 else -INFINITE, high=float(min(high, len(used))))
        elif low > len(used) and transfers.up_s > 0:
            self.is_empty = True

    # --- across groups

    def _add_critic(self) -> None:
        """Add the path of the critic's weights, if another group than the one that trains it infers with it."""
        models = self.data.cost_tables.problem.workload.models
        if Task.CRITIC_TRAINING not in models or Task.CRITIC_INFERENCE not in models:
            return
        trains = next(tasks for tasks in self.subproblem.grouping if Task.CRITIC_TRAINING in tasks)
        scores = next(tasks for tasks in self.subproblem.grouping if Task.CRITIC_INFERENCE in tasks)
        if trains == scores:
            return
        path = [(self.step, float(self.data.ends)), (self.train, -1.0)]
        own = self.meshes[scores].of if scores in self.meshes else self.units[scores].of
        self.critic = critic = CriticTransfers.between(self.data, self.meshes[trains].of, own, self._choices)
        if isinstance(own, ReachableMeshes):
            at, regions = self.meshes[scores].at, own.block.regions[own.rows]
            # The group that infers is a mesh: forbid meshes where the weights never arrive in time, add the path of the
            # others.
            fine = np.asarray(critic.is_near[regions].all(axis=1))
            self._forbid(at, ~fine)
            self._money.add_critic(at[fine], critic.least_usd, regions[fine])
            seconds = critic.least_s[regions[fine]].max(axis=1) + own.score_s[fine]
            self._below(at[fine], seconds / self.scale_s, path)
            for region in np.unique(regions[fine]).tolist():
                here = at[fine][(regions[fine] == region).any(axis=1)]
                self._keep_near(critic, self.meshes[trains], region, [(x, 1.0) for x in here.tolist()])
            return
        # The group that infers has units: the most distant one counts, as for scoring.
        units = self.units[scores]
        fine = critic.is_near[units.of.region]
        self._forbid(units.at, ~fine)
        if not fine.any():
            self.is_empty = True
            return
        few = units.some(np.flatnonzero(fine))
        transfer_s = critic.least_s[few.of.region]
        steps = highest_level(self.data, self.model, few, transfer_s, self.scale_s, self.is_fine)
        add_at_most(self.model, [*steps, *self._scoring[scores]], path)
        self._wait(few, transfer_s + few.of.level_s, self._choices.most_after_train_s, path)
        for region in np.unique(few.of.region).tolist():
            if not critic.near[region].all():
                self._keep_near(critic, self.meshes[trains], region, [(self._used(few, region), 1.0)])
            if self._money.counts and critic.least_usd[region] > 0:
                u, there = np.array([self._used(few, region)]), np.array([[region, region]])
                self._money.add_critic(u, critic.least_usd, there)

    def _keep_near(self, critic: CriticTransfers, trains: MeshVariables, region: int, uses: Terms) -> None:
        """Forbid training the critic where its weights would arrive too late in a region that infers with it."""
        far = ~critic.near[region][critic.source[trains.of.rows]]
        if far.any():
            self.model.row([*uses, *((x, 1.0) for x in trains.at[far].tolist())], high=1.0)

    def _used(self, units: UnitVariables, region: int) -> int:
        """Return a binary that is 1 if any of the group's units in the region are used."""
        of, here = units.of, units.at[units.of.region == region]
        key = tuple(here.tolist())
        if key in self._uses:
            return self._uses[key]
        u = self._uses[key] = self.model.variable(0.0, 1.0, whole=True)
        classes = of.block.at_class[of.rows]
        # The devices in use are a share of the class of at most 1.
        for c in np.unique(classes[of.region == region]).tolist():
            mine = np.flatnonzero(classes == c)
            self._below(units.at[mine], of.gpus[mine] / self.data.classes[c].num_gpus, [(u, 1.0)])
        return u

    def _forbid(self, at: Ints, which: Bools) -> None:
        """Fix variables to 0."""
        for x in at[which].tolist():
            self.model.high[x] = 0.0

    def _add_regions(self) -> None:
        """Add the operator's rules: regions that must generate, and least and most regions in use."""
        rules, model = self.data.cost_tables.problem.rules, self.model
        for name in sorted(rules.generating):
            at = self.data.region_at.get(name, -1)
            making = chosen_regions(self.meshes, self.units, Task.GENERATION)
            model.row([(x, value) for x, region, value in making if region == at], low=1.0)
        if rules.max_regions is None and rules.min_regions <= 1:
            return
        used: Terms = []
        here: dict[int, Terms] = {}
        for x, region, value in chosen_regions(self.meshes, self.units, None):
            here.setdefault(region, []).append((x, value))
        # u is 1 if and only if anything in the region is chosen.
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
        """Return the placement of a point of the model; counts are rounded to whole numbers."""
        groups = []
        for tasks in self.subproblem.grouping:
            if tasks in self.meshes:
                chosen = self.meshes[tasks]
                row = int(chosen.of.rows[int(values[chosen.at].argmax())])
                groups.append(chosen.of.block.columns[row].group)
                continue
            units = self.units[tasks]
            # Whole counts of units, without those that are 0.
            counts = np.rint(values[units.at]).astype(int)
            pools = [
                replace(units.of.block.columns[i].unit, num_units=num)
                for i, num in zip(units.of.rows.tolist(), counts.tolist(), strict=True)
                if num > 0
            ]
            groups.append(Group(tasks=tasks, pools=tuple(pools)))
        return Placement(groups=tuple(groups))

    def mesh_choices(self) -> Iterator[tuple[int, Group]]:
        """Yield (variable, group) of each candidate mesh."""
        for chosen in self.meshes.values():
            for x, i in zip(chosen.at.tolist(), chosen.of.rows.tolist(), strict=True):
                yield x, chosen.of.block.columns[i].group

    def unit_choices(self) -> Iterator[tuple[Tasks, int, Pool]]:
        """Yield (tasks, variable, unit) of each candidate unit."""
        for tasks, units in self.units.items():
            for x, i in zip(units.at.tolist(), units.of.rows.tolist(), strict=True):
                yield tasks, x, units.of.block.columns[i].unit

    def rates(self, values: Floats) -> list[tuple[Task, float]]:
        """Return (task, samples per second at a point) of each task apart from training; tangents help there."""
        found = []
        for tasks, units in sorted(self.units.items()):
            for column, task in enumerate(tasks):
                if task is not Task.GENERATION or not self.data.is_sync:
                    rates = units.of.block.rates[units.of.rows, column]
                    found.append((task, float(values[units.at] @ rates)))
        return found

    def window_at(self, values: Floats) -> float | None:
        """Return generation's window in seconds at a point, or None if there is none."""
        return None if self.window is None else float(values[self.window] * self.scale_s) * (1 + _LATER)

    @property
    def others_range_s(self) -> tuple[float, float]:
        """Range in seconds of what other tasks take of generation's group."""
        return self._choices.least.others_s, min(self.subproblem.others_s[1], self.most_s)

    @property
    def window_range_s(self) -> tuple[float, float]:
        """Range of generation's window in seconds."""
        return self._choices.window_s

    def looseness(self, values: Floats) -> float:
        """Return the share of a step's samples that the model counts as made at a point although they are not."""
        window_s = self.window_at(values)
        if window_s is None or self.interval is None:
            return 0.0
        counts = np.maximum(values[self.made.at], 0.0)
        return looseness(self.data, self.made, self.interval, counts, self.subproblem.trainer_region, window_s)

    def receivers(self, values: Floats) -> int:
        """Return the number of remote regions that receive versions at a point, rounded up."""
        return int(np.ceil(sum(values[u] for u in self.received) - LITTLE))
