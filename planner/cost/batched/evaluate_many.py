"""Batched oracle: step time and dollars of many placements at once, equal to `planner.cost.oracle` up to rounding.

Placements of one grouping become rows of numbers: which units (of a `BatchTables`, the batch tables) and how many of
each, and which mesh of each group that trains. All terms are then computed by array expressions over these rows.
`evaluate_many` takes placements of any groupings and splits them. Tests compare it with the oracle on random
placements.

Shapes: *rows* are placements, *places* are the slots for pools of groups without training (unused ones have count 0).
Within a method, `i` is the index of a group in the grouping.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from planner.answer.placement import Placement
from planner.cost.batched.batch_tables import BatchTables
from planner.cost.batched.batched_windows import BatchedWindows
from planner.cost.step.step_estimate import IMPROVEMENT_FACTOR
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.layer_cuts import TENSOR, BoolArray, FloatArray, IntArray
from planner.cost.tasks.phase_tables import JUMP_TOLERANCE, least_seconds
from planner.problem.goal import Goal, Objective
from planner.problem.workload import SCORING, TRAINING, Task


class PlacementVerdict(IntEnum):
    """Outcome of one placement, matching the kinds of `Violation`.

    A placement that violates several constraints has the first.
    """

    VALID = 0
    UNFIT = 1
    """Shape, limits, rules of a task, or memory: a unit or mesh is invalid by itself."""
    INVENTORY = 2
    RULES = 3
    LINK = 4
    DEADLINE = 5
    BUDGET = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPlacements:
    """Results, one entry per placement.

    Step time and dollars are inf for verdicts up to `LINK`, since no time can be given then.
    """

    step_s: FloatArray
    usd_per_hour: FloatArray
    verdict: IntArray


def evaluate_many(
    cost_tables: CostTables, placements: Sequence[Placement], *, goal: Goal | None = None
) -> EvaluatedPlacements:
    """Return the results for these placements, in the given order. `goal` replaces the problem's goal."""
    step_s, usd = np.full(len(placements), np.inf), np.full(len(placements), np.inf)
    verdict = np.full(len(placements), int(PlacementVerdict.UNFIT))
    # Rows of one grouping share their batch tables, so evaluate grouping by grouping.
    by_grouping: dict[tuple[tuple[Task, ...], ...], list[int]] = {}
    for i, placement in enumerate(placements):
        by_grouping.setdefault(tuple(group.tasks for group in placement.groups), []).append(i)
    for grouping, rows in by_grouping.items():
        # A placement that lacks a task or has one twice stays unfit.
        if sorted(task for tasks in grouping for task in tasks) != sorted(cost_tables.problem.workload.tasks):
            continue
        batch_tables = batch_tables_of(cost_tables, grouping)
        found = evaluate_rows(batch_tables, *_numbers(batch_tables, [placements[i] for i in rows]), goal=goal)
        step_s[rows], usd[rows], verdict[rows] = found.step_s, found.usd_per_hour, found.verdict
    return EvaluatedPlacements(step_s=step_s, usd_per_hour=usd, verdict=verdict)


def batch_tables_of(cost_tables: CostTables, grouping: tuple[tuple[Task, ...], ...]) -> BatchTables:
    """Return the batch tables of a grouping; there is one per grouping and problem."""
    return cost_tables.known(("batch tables", grouping), lambda: BatchTables(cost_tables, grouping))


def evaluate_rows(
    batch_tables: BatchTables, units: IntArray, counts: IntArray, meshes: IntArray, *, goal: Goal | None = None
) -> EvaluatedPlacements:
    """Return the results for placements of one grouping, given as numbers.

    `units` and `counts` are `[num_rows, num_places]`: numbers of units in the batch tables, and how many of each. A
    unit of -1 marks an unused place, -2 an invalid unit. `meshes` is `[num_rows, num_groups]`: -1 where a group does
    not train, -2 for an invalid mesh. Units of one group come in the placement's order.
    """
    rows = _Rows(batch_tables, units, np.where(units == -1, 0, counts), meshes)
    return rows.estimate(goal or batch_tables.cost_tables.problem.goal)


def _numbers(batch_tables: BatchTables, placements: Sequence[Placement]) -> tuple[IntArray, IntArray, IntArray]:
    """Return the arrays `evaluate_rows` takes, padded to the largest number of pools."""
    found = [batch_tables.numbers(placement) for placement in placements]
    most = max((len(units) for units, _, _ in found), default=0) or 1
    units = np.array([units + [-1] * (most - len(units)) for units, _, _ in found], dtype=np.int64)
    counts = np.array([counts + [0] * (most - len(counts)) for _, counts, _ in found], dtype=np.int64)
    return units, counts, np.array([meshes for _, _, meshes in found], dtype=np.int64)


class _Rows:
    """Terms of many placements of one grouping.

    Times are computed only for valid rows: `estimate` first checks all rows, then makes a second object of the valid
    ones.
    """

    def __init__(self, batch_tables: BatchTables, units: IntArray, counts: IntArray, meshes: IntArray) -> None:
        self.batch_tables, self.cost_tables = batch_tables, batch_tables.cost_tables
        self.workload = batch_tables.cost_tables.problem.workload
        self.num_rows, self.num_regions = len(units), len(batch_tables.regions)
        self.given = units, counts, meshes
        self.is_fit = (
            (units != -2).all(axis=1) & (meshes != -2).all(axis=1) & ((counts > 0) | (units == -1)).all(axis=1)
        )
        # Unit, number of units, and below group and region of each place: [num_rows, num_places]. Unused places point
        # to the empty last row of the tables.
        self.units = np.where(units < 0, len(batch_tables.units.region) - 1, units)
        self.counts = np.where(units < 0, 0, counts)
        # Mesh of each group that trains, [num_rows, num_groups]; 0 in groups that do not.
        self.meshes = np.maximum(meshes, 0)
        self.trains = [any(task in TRAINING for task in tasks) for tasks in batch_tables.grouping]
        self.group = np.where(self.counts > 0, batch_tables.units.group[self.units], -1)
        self.region = batch_tables.units.region[self.units]
        # A row is fit, [num_rows], if each group has a mesh or at least one used place.
        for i, trains in enumerate(self.trains):
            if trains and not batch_tables.has_meshes(i):
                self.is_fit[:] = False
            if not trains:
                self.is_fit &= (self.group == i).any(axis=1)
        self.place = np.arange(self.num_rows)
        if self.is_fit.any():
            self._locate()

    def estimate(self, goal: Goal) -> EvaluatedPlacements:
        """Return the results of all rows."""
        step_s, usd = np.full(self.num_rows, np.inf), np.full(self.num_rows, np.inf)
        verdict = np.where(self.is_fit, int(PlacementVerdict.VALID), int(PlacementVerdict.UNFIT))
        # The first violated constraint counts, in the order of the oracle's checks.
        if self.is_fit.any():
            for code, holds in (
                (PlacementVerdict.INVENTORY, self._has_room()),
                (PlacementVerdict.RULES, self._follows_rules()),
                (PlacementVerdict.LINK, self._is_joined()),
            ):
                verdict[(verdict == PlacementVerdict.VALID) & ~holds] = int(code)
        rows = np.flatnonzero(verdict == PlacementVerdict.VALID)
        if len(rows):
            # Times are computed only for rows that are still valid; others may lack a route or have no valid units to
            # look up.
            some = (
                self if len(rows) == self.num_rows else _Rows(self.batch_tables, *(each[rows] for each in self.given))
            )
            step_s[rows], usd[rows], verdict[rows] = some._timed(goal)
        return EvaluatedPlacements(step_s=step_s, usd_per_hour=usd, verdict=verdict)

    def _timed(self, goal: Goal) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return (seconds per step, dollars per hour, verdict) of rows that violate no other constraint."""
        verdict = np.full(self.num_rows, int(PlacementVerdict.VALID))
        self._prepare()
        step_s, usd_per_step = self._step()
        rent = (self.counts * self.batch_tables.units.usd[self.units]).sum(axis=1)
        for i in self._training():
            rent = rent + self.batch_tables.meshes(i).usd[self.meshes[:, i]]
        most_s, most_usd = goal.planned_step_s, goal.planned_usd_per_hour
        slowest = np.inf if most_s is None else most_s * (1 + 1e-9)
        verdict[step_s > slowest] = int(PlacementVerdict.DEADLINE)
        if most_usd is not None:
            # A budget makes steps longer until egress fits beside the rent, as `oracle.throttle_s`.
            left = most_usd * (1 + 1e-9) - rent
            paid = np.where(left > 0, usd_per_step * 3600 / np.maximum(left, 1e-300), np.inf)
            paid = np.where((left >= 0) & (usd_per_step == 0), 0.0, paid)
            verdict[(verdict == PlacementVerdict.VALID) & ((paid > slowest) | (paid == np.inf))] = int(
                PlacementVerdict.BUDGET
            )
            step_s = np.where(paid == np.inf, step_s, np.maximum(step_s, paid))
        # With a demanded throughput the job makes no more steps per hour than that, so egress is spread over the
        # deadline.
        is_throttled = goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is not None
        hourly_s = np.full(self.num_rows, goal.max_step_s) if is_throttled else step_s
        return step_s, rent + usd_per_step * 3600 / hourly_s, verdict

    def _locate(self) -> None:
        """Find the regions of each group, the trainer's region and the critic's."""
        actor = next(i for i, tasks in enumerate(self.batch_tables.grouping) if Task.ACTOR_TRAINING in tasks)
        # [num_rows]: index of the first region of the actor's mesh, from which versions are published.
        self.trainer_region = self.batch_tables.meshes(actor).region[self.meshes[:, actor]]
        # [num_rows, num_regions]: whether a region is not the trainer's.
        self.is_away = self.place[:, None] * 0 + self.trainer_region[:, None] != np.arange(self.num_regions)
        self.in_region = [self._in_region(i) for i in range(len(self.batch_tables.grouping))]
        self.critic = self._critic()

    def _prepare(self) -> None:
        """Compute the busy seconds of all tasks but generation, and the longest training and scoring of any group."""
        transfers = self.batch_tables.transfers
        self.busy: dict[Task, FloatArray] = {}
        samples = float(self.workload.samples_per_step)
        for i, tasks in enumerate(self.batch_tables.grouping):
            # Busy seconds: a mesh's time, or work over the joint rate of a group's units.
            for task in (task for task in tasks if task is not Task.GENERATION):
                at = self.batch_tables.tasks.index(task)
                if self.trains[i]:
                    self.busy[task] = self.batch_tables.meshes(i).times[self.meshes[:, i], at]
                else:
                    rates = self.batch_tables.units.rates[self.units, at] * self.counts * (self.group == i)
                    self.busy[task] = samples / np.maximum(rates.sum(axis=1), 1e-300)
        # Phases: the longest of any group, with the transfers to its most distant region.
        self.training_s, self.scoring_s = np.zeros(self.num_rows), np.zeros(self.num_rows)
        self.critic_scoring_s = np.zeros(self.num_rows)
        for i, tasks in enumerate(self.batch_tables.grouping):
            if self.trains[i]:
                away_s = self._largest(transfers.training_s[self.trainer_region], self.in_region[i])
                self.training_s = np.maximum(self.training_s, away_s + self._sum(tasks, TRAINING))
            if any(task in SCORING for task in tasks):
                away_s = self._largest(transfers.scoring_s[self.trainer_region], self.in_region[i])
                group_s = away_s + self._sum(tasks, SCORING)
                self.scoring_s = np.maximum(self.scoring_s, group_s)
                self.critic_scoring_s = group_s if Task.CRITIC_INFERENCE in tasks else self.critic_scoring_s

    def _step(self) -> tuple[FloatArray, FloatArray]:
        """Return (seconds per step, egress dollars per step), each `[num_rows]`."""
        generating = next(i for i, tasks in enumerate(self.batch_tables.grouping) if Task.GENERATION in tasks)
        needs = np.zeros(self.num_rows)
        # Needs that do not depend on generation: busy time of the other groups, and the critic's path and links.
        for i, tasks in enumerate(self.batch_tables.grouping):
            if i != generating:
                needs = np.maximum(needs, self._sum(tasks, tasks))
        if self.critic is not None:
            src, scores = self.critic
            transfers = self.batch_tables.transfers
            path_s = self.training_s + self._largest(transfers.critic_s[src], scores) + self.critic_scoring_s
            needs = np.maximum(needs, path_s / (self.workload.eta + 1))
            needs = np.maximum(needs, self._largest(transfers.critic_link_s[src], scores))
        # Generation is a phase of its mesh, or has windows on devices of its own.
        if self.trains[generating]:
            step_s, active = self._by_turns(generating)
        else:
            step_s, active = self._on_own_devices(generating, needs)
        has_version = Task.ACTOR_TRAINING in self.batch_tables.grouping[generating]
        return np.maximum(needs, step_s), self._usd_per_step(active, has_version)

    def _by_turns(self, group: int) -> tuple[FloatArray, BoolArray]:
        """Return (seconds per step, `[num_rows, num_regions]` that generate) where generation is a phase of a mesh."""
        transfers, seconds = self.batch_tables.transfers, self.cost_tables.phase_seconds
        caps = np.where(self.is_away, transfers.samples_per_s[self.trainer_region], np.inf)
        down = transfers.downlink_per_s[self.trainer_region]
        tables, mine = self.batch_tables.meshes(group).tables, self.meshes[:, group]

        # Samples of a step by a knot of the grid, within the rates of routes and downlink: [num_rows].
        def made(place: IntArray) -> FloatArray:
            at_s, each = seconds[place], tables[mine, :, place]
            far = np.minimum(
                np.where(self.is_away, np.minimum(each, at_s[:, None] * caps), 0.0).sum(axis=1), at_s * down
            )
            total: FloatArray = np.where(self.is_away, 0.0, each).sum(axis=1) + far
            return total

        phase_s = least_seconds(seconds, made, (self.num_rows,), float(self.workload.samples_per_step))
        # A region is active if any of its pools finishes a sample within the phase; all are if regions are demanded.
        place = np.searchsorted(seconds, phase_s * (1 + JUMP_TOLERANCE), side="right") - 1
        after = np.minimum(place + 1, len(seconds) - 1)
        if self.cost_tables.problem.rules.demands_regions:
            place = after = np.full_like(place, len(seconds) - 1)
        is_between = (phase_s * (1 + JUMP_TOLERANCE) > seconds[place])[:, None]
        active = (tables[mine, :, place] > 0) | ((tables[mine, :, after] > 0) & is_between)
        receives = active & self.is_away & (Task.ACTOR_TRAINING not in self.batch_tables.grouping[group])
        # The path is the longest over active regions, then the group's own busy time and the links.
        weights_s, links_s = self._weights(receives)
        transfers_s = np.where(active, weights_s + transfers.trajectories_s[self.trainer_region], -np.inf).max(axis=1)
        path_s = (self.training_s + self.scoring_s + transfers_s + phase_s) / (self.workload.eta + 1)
        group_s = phase_s + self._sum(self.batch_tables.grouping[group], (*SCORING, *TRAINING))
        return np.maximum(np.maximum(path_s, group_s), links_s), active

    def _on_own_devices(self, group: int, needs: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return (seconds per step, `[num_rows, num_regions]` that generate) where regions have windows.

        Remote regions are ordered by the time on their links. The best prefix of that order generates.
        """
        mine = (self.group == group) & (self.counts > 0)
        best_s, active = self._with_pools(group, mine, self.place)
        if self.cost_tables.problem.rules.demands_regions:
            return best_s, active
        transfers = self.batch_tables.transfers
        best_s = np.maximum(best_s, needs)
        used = self.in_region[group] & self.is_away
        _, links_s = self._weights(active & self.is_away)
        # Leaving regions out can help only rows whose step time a link determines.
        is_open = used.any(axis=1) & (best_s > needs) & (links_s >= best_s)
        # Rank of each pool's region in the order of its link; pools in the trainer's region always generate.
        link_s = np.where(used, transfers.link_s[self.trainer_region] + self._critic_link(), np.inf)
        order = np.argsort(np.argsort(link_s, axis=1, kind="stable"), axis=1, kind="stable")
        rank = np.where(self.region == self.trainer_region[:, None], -1, np.take_along_axis(order, self.region, axis=1))
        for count in range(int(used.sum(axis=1).max(initial=0))):
            some = mine & (rank < count)
            rows = np.flatnonzero(is_open & (used.sum(axis=1) > count) & some.any(axis=1))
            if len(rows):
                step_s, with_some = self._with_pools(group, some, rows)
                step_s = np.maximum(step_s, needs[rows])
                better = step_s < best_s[rows] * IMPROVEMENT_FACTOR
                best_s[rows[better]], active[rows[better]] = step_s[better], with_some[better]
        return best_s, active

    def _with_pools(self, group: int, pools: BoolArray, rows: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return (seconds per step, regions that generate) for some rows and some of their pools.

        The seconds are what windows and links need.
        """
        windows = self._windows(group, pools, rows)
        step_s = windows.least_s()
        demands = self.cost_tables.problem.rules.demands_regions
        makes = pools[rows] if demands else windows.makes(step_s)
        # Where idle pools free the uplink, weights of the others arrive earlier: solve those rows again.
        fewer = np.flatnonzero(
            (makes != pools[rows]).any(axis=1) & (self.batch_tables.transfers.uplink_s[self.trainer_region[rows]] > 0)
        )
        if len(fewer):
            still = pools.copy()
            still[rows] &= makes
            step_s[fewer] = self._windows(group, still, rows[fewer]).least_s()
        active = self._regions_of(makes, rows)
        _, links_s = self._weights(active & self.is_away)
        step_s = np.maximum(step_s, links_s[rows])
        # A demanded region must finish at least one sample in its window.
        if demands:
            lag_s = np.take_along_axis(windows.lag_s, windows.region, axis=1)
            first_s = windows.before_s[:, None] + lag_s + self.batch_tables.units.first_s[windows.unit]
            path_s = np.where(makes, first_s / (self.workload.eta + 1), -np.inf).max(axis=1)
            step_s = np.maximum(step_s, path_s)
        return step_s, active[rows]

    def _windows(self, group: int, pools: BoolArray, rows: IntArray) -> BatchedWindows:
        """Return the windows of some rows if these pools generate."""
        transfers, units = self.batch_tables.transfers, self.batch_tables.units
        weights_s, _ = self._weights(self._regions_of(pools, self.place) & self.is_away)
        # At eta 0 the scoring of generation's group is part of the path already.
        others_s = (
            self._sum(self.batch_tables.grouping[group], SCORING) if self.workload.eta else np.zeros(self.num_rows)
        )
        trainer_region = self.trainer_region[rows]
        # Versions arrive after their lag, and samples must be back in the trainer's region before the window ends.
        return BatchedWindows(
            seconds=self.cost_tables.phase_seconds,
            tables=units.tables,
            overlaps=units.overlaps,
            unit=self.units[rows],
            count=np.where(pools, self.counts, 0)[rows].astype(np.float64),
            rate=units.rates[self.units[rows], self.batch_tables.tasks.index(Task.GENERATION)],
            region=self.region[rows],
            lag_s=weights_s[rows] + transfers.trajectories_s[trainer_region],
            caps=np.where(self.is_away[rows], transfers.samples_per_s[trainer_region], np.inf),
            is_away=self.is_away[rows],
            down_per_s=transfers.downlink_per_s[trainer_region],
            before_s=(self.training_s + self.scoring_s + others_s)[rows],
            others_s=others_s[rows],
            eta=self.workload.eta,
            samples=float(self.workload.samples_per_step),
        )

    def _regions_of(self, pools: BoolArray, rows: IntArray) -> BoolArray:
        """Return `[all rows, num_regions]`: the regions of the selected pools of some rows."""
        found = np.zeros((self.num_rows, self.num_regions), dtype=bool)
        at, place = np.nonzero(pools)
        found[rows[at], self.region[rows[at], place]] = True
        return found

    def _weights(self, receives: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return (seconds of a version to each receiving region, busy seconds of the slowest link or uplink)."""
        transfers = self.batch_tables.transfers
        link_s = np.where(receives, transfers.link_s[self.trainer_region] + self._critic_link(), 0.0)
        shared_s = transfers.uplink_s[self.trainer_region] * receives.sum(axis=1)
        half_s = np.where(receives, transfers.half_s[self.trainer_region], 0.0)
        weights_s = np.where(receives, np.maximum(link_s, shared_s[:, None]) + half_s, 0.0)
        return weights_s, np.maximum(link_s.max(axis=1), shared_s)

    def _critic(self) -> tuple[IntArray, BoolArray] | None:
        """Return (region that trains the critic, `[num_rows, num_regions]` that infer with it).

        The result is None if its weights do not travel.
        """
        where = {task: i for i, tasks in enumerate(self.batch_tables.grouping) for task in tasks}
        if not {Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE} <= set(where):
            return None
        trains, scores = where[Task.CRITIC_TRAINING], where[Task.CRITIC_INFERENCE]
        if trains == scores:
            return None
        return self.batch_tables.meshes(trains).region[self.meshes[:, trains]], self.in_region[scores]

    def _critic_link(self) -> FloatArray:
        """Return `[num_rows, num_regions]`: seconds of the critic's weights on links from the trainer's region."""
        if self.critic is None:
            return np.zeros((self.num_rows, self.num_regions))
        src, scores = self.critic
        shares = scores & self.is_away & (src == self.trainer_region)[:, None]
        taken: FloatArray = np.where(shares, self.batch_tables.transfers.critic_link_s[src], 0.0)
        return taken

    def _usd_per_step(self, active: BoolArray, has_version: bool) -> FloatArray:
        """Return the egress dollars per step, `[num_rows]`, as `estimate._usd_per_step`."""
        transfers = self.batch_tables.transfers
        # Samples from generating regions, at the most expensive route; a version for each of them unless they train the
        # actor.
        usd = self._largest(transfers.usd_per_step_to_trainer[self.trainer_region], active)
        if not has_version:
            usd = usd + np.where(active & self.is_away, transfers.usd_per_version[self.trainer_region], 0.0).sum(axis=1)
        for i, tasks in enumerate(self.batch_tables.grouping):
            there, back = (
                transfers.usd_per_step_from_trainer[self.trainer_region],
                transfers.usd_per_step_to_trainer[self.trainer_region],
            )
            far = self.in_region[i] & self.is_away
            # Samples to groups that score (and back) or train, and gradients inside a mesh.
            if any(task in SCORING for task in tasks):
                usd = usd + self._largest(there + back, far)
            elif self.trains[i]:
                usd = usd + self._largest(there, far)
            if self.trains[i]:
                usd = usd + self.batch_tables.meshes(i).usd_per_step[self.meshes[:, i]]
        if self.critic is not None:
            src, scores = self.critic
            usd = usd + np.where(scores, transfers.critic_usd[src], 0.0).sum(axis=1)
        return usd

    def _in_region(self, group: int) -> BoolArray:
        """Return `[num_rows, num_regions]`: where the group has a pool."""
        if self.trains[group]:
            return self.batch_tables.meshes(group).in_region[self.meshes[:, group]]
        found: BoolArray = np.logical_or.reduce(self._spread((self.group == group) & (self.counts > 0)), axis=1)
        return found

    def _spread(self, values: "IntArray | BoolArray") -> "IntArray | BoolArray":
        """Place values of pools, `[num_rows, num_places]`, by region: `[num_rows, num_places, num_regions]`."""
        spread = np.zeros((*values.shape, self.num_regions), dtype=values.dtype)
        np.put_along_axis(spread, self.region[:, :, None], values[:, :, None], axis=2)
        return spread

    def _has_room(self) -> BoolArray:
        """Return whether all units of a class fit into its machines, `[num_rows]`."""
        units = self.batch_tables.units
        held = np.zeros((self.num_rows, len(self.batch_tables.classes), len(TENSOR)), dtype=np.int64)
        devices = self.counts * np.array(TENSOR)[units.size[self.units]]
        np.add.at(held, (self.place[:, None], units.at_class[self.units], units.size[self.units]), devices)
        for i in self._training():
            held += self.batch_tables.meshes(i).held[self.meshes[:, i]]
        # Units of powers of two fit if, for each size, all units of at least that size fit (see
        # `planner.answer.placement`).
        larger = np.cumsum(held[:, :, ::-1], axis=2)[:, :, ::-1]
        classes = [self.cost_tables.classes[key] for key in self.batch_tables.classes]
        room = np.array([[at.num_machines * (at.gpus_per_machine // size) * size for size in TENSOR] for at in classes])
        is_met: BoolArray = ((larger <= room) | (held == 0)).all(axis=(1, 2))
        return is_met

    def _follows_rules(self) -> BoolArray:
        """Return whether numbers and names of the regions in use follow the operator's rules, `[num_rows]`."""
        rules = self.cost_tables.problem.rules
        # used: regions with any pool, [num_rows, num_regions].
        used = np.any(self.in_region, axis=0)
        num = used.sum(axis=1)
        holds: BoolArray = num >= rules.min_regions
        if rules.max_regions is not None:
            holds = holds & (num <= rules.max_regions)
        generating = next(i for i, tasks in enumerate(self.batch_tables.grouping) if Task.GENERATION in tasks)
        for name in rules.generating:
            # A demanded region without devices rules out every placement.
            if name not in self.batch_tables.regions:
                return np.zeros(self.num_rows, dtype=bool)
            holds = holds & self.in_region[generating][:, self.batch_tables.regions.index(name)]
        return holds

    def _is_joined(self) -> BoolArray:
        """Return whether the trainer's region reaches all regions in use, and the critic's weights can travel."""
        used = np.any(self.in_region, axis=0)
        joined: BoolArray = ~(used & np.isinf(self.batch_tables.transfers.scoring_s[self.trainer_region])).any(axis=1)
        if self.critic is not None:
            src, scores = self.critic
            joined &= ~(scores & np.isinf(self.batch_tables.transfers.critic_s[src])).any(axis=1)
        return joined

    def _training(self) -> list[int]:
        """Return the indices of the groups that train."""
        return [i for i, trains in enumerate(self.trains) if trains]

    def _sum(self, tasks: Sequence[Task], among: Sequence[Task]) -> FloatArray:
        """Return the busy seconds of those `tasks` that are in `among`, added up; generation is not included."""
        total = np.zeros(self.num_rows)
        for task in (task for task in tasks if task in among and task in self.busy):
            total = total + self.busy[task]
        return total

    @staticmethod
    def _largest(values: FloatArray, where: BoolArray) -> FloatArray:
        """Return the largest value of each row where the mask is True, at least 0."""
        most: FloatArray = np.where(where, values, 0.0).max(axis=1)
        return most
