"""The oracle for many placements at once: the numbers of `planner.cost.oracle`, as arrays.

Placements of one grouping are rows of numbers: which units (of a `Book`) and how many of each, and which mesh of each
group that trains. `evaluate_many` takes placements of any groupings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from planner.answer.placement import Placement
from planner.cost.book import Book
from planner.cost.cuts import TENSOR, BoolArray, FloatArray, IntArray
from planner.cost.judged import BETTER
from planner.cost.phases import KNOT, ends_s
from planner.cost.pools import Prices
from planner.cost.windows import Windows
from planner.question.goal import Goal, Objective
from planner.question.workload import SCORING, TRAINING, Task


class Verdict(IntEnum):
    """Of one row, as the kinds of `Violation`; a row with several has the first."""

    VALID = 0
    UNFIT = 1
    """Shape, limits, rules of a task, memory: a part has no number."""
    INVENTORY = 2
    RULES = 3
    LINK = 4
    DEADLINE = 5
    BUDGET = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One entry a placement. Times and dollars are infinite where no time can be given (up to `LINK`)."""

    step_s: FloatArray
    usd_per_hour: FloatArray
    verdict: IntArray


def evaluate_many(prices: Prices, placements: Sequence[Placement], *, goal: Goal | None = None) -> Batch:
    """In the order given."""
    step_s, usd = np.full(len(placements), np.inf), np.full(len(placements), np.inf)
    verdict = np.full(len(placements), int(Verdict.UNFIT))
    by_grouping: dict[tuple[tuple[Task, ...], ...], list[int]] = {}
    for i, placement in enumerate(placements):
        by_grouping.setdefault(tuple(group.tasks for group in placement.groups), []).append(i)
    for grouping, rows in by_grouping.items():
        if sorted(task for tasks in grouping for task in tasks) != sorted(prices.problem.workload.tasks):
            continue
        book = book_of(prices, grouping)
        found = evaluate_rows(book, *_numbers(book, [placements[i] for i in rows]), goal=goal)
        step_s[rows], usd[rows], verdict[rows] = found.step_s, found.usd_per_hour, found.verdict
    return Batch(step_s=step_s, usd_per_hour=usd, verdict=verdict)


def book_of(prices: Prices, grouping: tuple[tuple[Task, ...], ...]) -> Book:
    """One for each grouping of a problem."""
    return prices.known(("book", grouping), lambda: Book(prices, grouping))


def evaluate_rows(
    book: Book, units: IntArray, counts: IntArray, meshes: IntArray, *, goal: Goal | None = None
) -> Batch:
    """`units`, `counts` [rows, places]: numbers of the book, -1 for a place that is not used, -2 for what does not fit;
    `meshes` [rows, groups]: -1 where a group does not train, -2 for a mesh that does not fit. A row's units of one
    group come in the placement's order."""
    rows = _Rows(book, units, np.where(units == -1, 0, counts), meshes)
    return rows.judged(goal or book.prices.problem.goal)


def _numbers(book: Book, placements: Sequence[Placement]) -> tuple[IntArray, IntArray, IntArray]:
    found = [book.numbers(placement) for placement in placements]
    most = max((len(units) for units, _, _ in found), default=0) or 1
    units = np.array([units + [-1] * (most - len(units)) for units, _, _ in found], dtype=np.int64)
    counts = np.array([counts + [0] * (most - len(counts)) for _, counts, _ in found], dtype=np.int64)
    return units, counts, np.array([meshes for _, _, meshes in found], dtype=np.int64)


class _Rows:
    """Arrays over rows. Rows that are refused have no times: these are computed for the others only."""

    def __init__(self, book: Book, units: IntArray, counts: IntArray, meshes: IntArray) -> None:
        self.book, self.prices = book, book.prices
        self.workload = book.prices.problem.workload
        self.num, self.size = len(units), len(book.regions)
        self.given = units, counts, meshes
        self.is_fit = (
            (units != -2).all(axis=1) & (meshes != -2).all(axis=1) & ((counts > 0) | (units == -1)).all(axis=1)
        )
        self.units = np.where(units < 0, len(book.units.region) - 1, units)
        self.counts = np.where(units < 0, 0, counts)
        self.meshes = np.maximum(meshes, 0)
        self.trains = [any(task in TRAINING for task in tasks) for tasks in book.grouping]
        self.group = np.where(self.counts > 0, book.units.group[self.units], -1)
        self.region = book.units.region[self.units]
        for i, trains in enumerate(self.trains):
            if trains and not book.has_meshes(i):
                self.is_fit[:] = False
            if not trains:
                self.is_fit &= (self.group == i).any(axis=1)
        self.place = np.arange(self.num)
        if self.is_fit.any():
            self._locate()

    def judged(self, goal: Goal) -> Batch:
        step_s, usd = np.full(self.num, np.inf), np.full(self.num, np.inf)
        verdict = np.where(self.is_fit, int(Verdict.VALID), int(Verdict.UNFIT))
        if self.is_fit.any():
            for code, holds in ((Verdict.INVENTORY, self._has_room()), (Verdict.RULES, self._follows_rules()),
                                (Verdict.LINK, self._is_joined())):  # fmt: skip
                verdict[(verdict == Verdict.VALID) & ~holds] = int(code)
        rows = np.flatnonzero(verdict == Verdict.VALID)
        if len(rows):
            some = self if len(rows) == self.num else _Rows(self.book, *(each[rows] for each in self.given))
            step_s[rows], usd[rows], verdict[rows] = some._timed(goal)
        return Batch(step_s=step_s, usd_per_hour=usd, verdict=verdict)

    def _timed(self, goal: Goal) -> tuple[FloatArray, FloatArray, IntArray]:
        """(seconds a step, dollars an hour, verdicts) of rows that nothing else refuses."""
        verdict = np.full(self.num, int(Verdict.VALID))
        self._prepare()
        step_s, usd_per_step = self._step()
        rent = (self.counts * self.book.units.usd[self.units]).sum(axis=1)
        for i in self._training():
            rent = rent + self.book.meshes(i).usd[self.meshes[:, i]]
        most_s, most_usd = goal.planned_step_s, goal.planned_usd_per_hour
        slowest = np.inf if most_s is None else most_s * (1 + 1e-9)
        verdict[step_s > slowest] = int(Verdict.DEADLINE)
        if most_usd is not None:
            left = most_usd * (1 + 1e-9) - rent
            paid = np.where(left > 0, usd_per_step * 3600 / np.maximum(left, 1e-300), np.inf)
            paid = np.where((left >= 0) & (usd_per_step == 0), 0.0, paid)
            verdict[(verdict == Verdict.VALID) & ((paid > slowest) | (paid == np.inf))] = int(Verdict.BUDGET)
            step_s = np.where(paid == np.inf, step_s, np.maximum(step_s, paid))
        is_throttled = goal.objective is Objective.COST_AT_THROUGHPUT and goal.max_step_s is not None
        hourly_s = np.full(self.num, goal.max_step_s) if is_throttled else step_s
        return step_s, rent + usd_per_step * 3600 / hourly_s, verdict

    def _locate(self) -> None:
        """Where the groups are."""
        actor = next(i for i, tasks in enumerate(self.book.grouping) if Task.ACTOR_TRAINING in tasks)
        self.home = self.book.meshes(actor).region[self.meshes[:, actor]]
        self.away = self.place[:, None] * 0 + self.home[:, None] != np.arange(self.size)
        self.in_region = [self._in_region(i) for i in range(len(self.book.grouping))]
        self.critic = self._critic()

    def _prepare(self) -> None:
        """What groups take of a step, generation apart."""
        ways = self.book.ways
        self.busy: dict[Task, FloatArray] = {}
        samples = float(self.workload.samples_per_step)
        for i, tasks in enumerate(self.book.grouping):
            for task in (task for task in tasks if task is not Task.GENERATION):
                at = self.book.tasks.index(task)
                if self.trains[i]:
                    self.busy[task] = self.book.meshes(i).times[self.meshes[:, i], at]
                else:
                    rates = self.book.units.rates[self.units, at] * self.counts * (self.group == i)
                    self.busy[task] = samples / np.maximum(rates.sum(axis=1), 1e-300)
        self.training_s, self.scoring_s = np.zeros(self.num), np.zeros(self.num)
        self.critic_scoring_s = np.zeros(self.num)
        for i, tasks in enumerate(self.book.grouping):
            if self.trains[i]:
                away_s = self._most(ways.training_s[self.home], self.in_region[i])
                self.training_s = np.maximum(self.training_s, away_s + self._sum(tasks, TRAINING))
            if any(task in SCORING for task in tasks):
                away_s = self._most(ways.scoring_s[self.home], self.in_region[i])
                group_s = away_s + self._sum(tasks, SCORING)
                self.scoring_s = np.maximum(self.scoring_s, group_s)
                self.critic_scoring_s = group_s if Task.CRITIC_INFERENCE in tasks else self.critic_scoring_s

    def _step(self) -> tuple[FloatArray, FloatArray]:
        """(seconds a step, egress dollars a step)"""
        generating = next(i for i, tasks in enumerate(self.book.grouping) if Task.GENERATION in tasks)
        needs = np.zeros(self.num)
        for i, tasks in enumerate(self.book.grouping):
            if i != generating:
                needs = np.maximum(needs, self._sum(tasks, tasks))
        if self.critic is not None:
            src, scores = self.critic
            ways = self.book.ways
            path_s = self.training_s + self._most(ways.critic_s[src], scores) + self.critic_scoring_s
            needs = np.maximum(needs, path_s / (self.workload.eta + 1))
            needs = np.maximum(needs, self._most(ways.critic_link_s[src], scores))
        if self.trains[generating]:
            step_s, active = self._by_turns(generating)
        else:
            step_s, active = self._apart(generating, needs)
        has_version = Task.ACTOR_TRAINING in self.book.grouping[generating]
        return np.maximum(needs, step_s), self._usd_per_step(active, has_version)

    def _by_turns(self, group: int) -> tuple[FloatArray, BoolArray]:
        """(seconds a step, [rows, regions] that generate) where generation is a phase of a mesh."""
        ways, seconds = self.book.ways, self.prices.phase_seconds
        caps = np.where(self.away, ways.samples_per_s[self.home], np.inf)
        down = ways.downlink_per_s[self.home]
        tables, mine = self.book.meshes(group).tables, self.meshes[:, group]

        def made(place: IntArray) -> FloatArray:
            at_s, each = seconds[place], tables[mine, :, place]
            far = np.minimum(np.where(self.away, np.minimum(each, at_s[:, None] * caps), 0.0).sum(axis=1), at_s * down)
            total: FloatArray = np.where(self.away, 0.0, each).sum(axis=1) + far
            return total

        phase_s = ends_s(seconds, made, (self.num,), float(self.workload.samples_per_step))
        place = np.searchsorted(seconds, phase_s * (1 + KNOT), side="right") - 1
        after = np.minimum(place + 1, len(seconds) - 1)
        if self.prices.problem.rules.demands_regions:
            place = after = np.full_like(place, len(seconds) - 1)
        is_between = (phase_s * (1 + KNOT) > seconds[place])[:, None]
        active = (tables[mine, :, place] > 0) | ((tables[mine, :, after] > 0) & is_between)
        receives = active & self.away & (Task.ACTOR_TRAINING not in self.book.grouping[group])
        weights_s, links_s = self._weights(receives)
        way_s = np.where(active, weights_s + ways.trajectories_s[self.home], -np.inf).max(axis=1)
        path_s = (self.training_s + self.scoring_s + way_s + phase_s) / (self.workload.eta + 1)
        group_s = phase_s + self._sum(self.book.grouping[group], (*SCORING, *TRAINING))
        return np.maximum(np.maximum(path_s, group_s), links_s), active

    def _apart(self, group: int, needs: FloatArray) -> tuple[FloatArray, BoolArray]:
        """The same where it has windows. Of remote regions the best first few, in the order of their links."""
        mine = (self.group == group) & (self.counts > 0)
        best_s, active = self._with(group, mine, self.place)
        if self.prices.problem.rules.demands_regions:
            return best_s, active
        ways = self.book.ways
        best_s = np.maximum(best_s, needs)
        used = self.in_region[group] & self.away
        _, links_s = self._weights(active & self.away)
        is_open = used.any(axis=1) & (best_s > needs) & (links_s >= best_s)
        link_s = np.where(used, ways.link_s[self.home] + self._critic_link(), np.inf)
        order = np.argsort(np.argsort(link_s, axis=1, kind="stable"), axis=1, kind="stable")
        rank = np.where(self.region == self.home[:, None], -1, np.take_along_axis(order, self.region, axis=1))
        for count in range(int(used.sum(axis=1).max(initial=0))):
            some = mine & (rank < count)
            rows = np.flatnonzero(is_open & (used.sum(axis=1) > count) & some.any(axis=1))
            if len(rows):
                step_s, with_some = self._with(group, some, rows)
                step_s = np.maximum(step_s, needs[rows])
                better = step_s < best_s[rows] * BETTER
                best_s[rows[better]], active[rows[better]] = step_s[better], with_some[better]
        return best_s, active

    def _with(self, group: int, pools: BoolArray, rows: IntArray) -> tuple[FloatArray, BoolArray]:
        """(seconds a step that windows and links need, regions that generate) of some rows and some of their pools."""
        windows = self._windows(group, pools, rows)
        step_s = windows.least_s()
        demands = self.prices.problem.rules.demands_regions
        makes = pools[rows] if demands else windows.makes(step_s)
        fewer = np.flatnonzero((makes != pools[rows]).any(axis=1) & (self.book.ways.uplink_s[self.home[rows]] > 0))
        if len(fewer):
            still = pools.copy()
            still[rows] &= makes
            step_s[fewer] = self._windows(group, still, rows[fewer]).least_s()
        active = self._regions_of(makes, rows)
        _, links_s = self._weights(active & self.away)
        step_s = np.maximum(step_s, links_s[rows])
        if demands:
            lag_s = np.take_along_axis(windows.lag_s, windows.region, axis=1)
            first_s = windows.before_s[:, None] + lag_s + self.book.units.first_s[windows.unit]
            path_s = np.where(makes, first_s / (self.workload.eta + 1), -np.inf).max(axis=1)
            step_s = np.maximum(step_s, path_s)
        return step_s, active[rows]

    def _windows(self, group: int, pools: BoolArray, rows: IntArray) -> Windows:
        """Of some rows, with some of their pools."""
        ways, units = self.book.ways, self.book.units
        weights_s, _ = self._weights(self._regions_of(pools, self.place) & self.away)
        others_s = self._sum(self.book.grouping[group], SCORING) if self.workload.eta else np.zeros(self.num)
        home = self.home[rows]
        return Windows(
            seconds=self.prices.phase_seconds, tables=units.tables, overlaps=units.overlaps, unit=self.units[rows],
            count=np.where(pools, self.counts, 0)[rows].astype(np.float64),
            rate=units.rates[self.units[rows], self.book.tasks.index(Task.GENERATION)], region=self.region[rows],
            lag_s=weights_s[rows] + ways.trajectories_s[home],
            caps=np.where(self.away[rows], ways.samples_per_s[home], np.inf), is_away=self.away[rows],
            down_per_s=ways.downlink_per_s[home],
            before_s=(self.training_s + self.scoring_s + others_s)[rows], others_s=others_s[rows],
            eta=self.workload.eta, samples=float(self.workload.samples_per_step),
        )  # fmt: skip

    def _regions_of(self, pools: BoolArray, rows: IntArray) -> BoolArray:
        """[all rows, regions]: where some pools of some rows are."""
        found = np.zeros((self.num, self.size), dtype=bool)
        at, place = np.nonzero(pools)
        found[rows[at], self.region[rows[at], place]] = True
        return found

    def _weights(self, receives: BoolArray) -> tuple[FloatArray, FloatArray]:
        """(seconds of a version to each region, what links need)"""
        ways = self.book.ways
        link_s = np.where(receives, ways.link_s[self.home] + self._critic_link(), 0.0)
        shared_s = ways.uplink_s[self.home] * receives.sum(axis=1)
        half_s = np.where(receives, ways.half_s[self.home], 0.0)
        weights_s = np.where(receives, np.maximum(link_s, shared_s[:, None]) + half_s, 0.0)
        return weights_s, np.maximum(link_s.max(axis=1), shared_s)

    def _critic(self) -> tuple[IntArray, BoolArray] | None:
        """(where the critic is trained, regions [rows, regions] where it scores), if its weights must travel."""
        where = {task: i for i, tasks in enumerate(self.book.grouping) for task in tasks}
        if not {Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE} <= set(where):
            return None
        trains, scores = where[Task.CRITIC_TRAINING], where[Task.CRITIC_INFERENCE]
        if trains == scores:
            return None
        return self.book.meshes(trains).region[self.meshes[:, trains]], self.in_region[scores]

    def _critic_link(self) -> FloatArray:
        """[rows, regions]: what the critic's weights take of the links from home."""
        if self.critic is None:
            return np.zeros((self.num, self.size))
        src, scores = self.critic
        shares = scores & self.away & (src == self.home)[:, None]
        taken: FloatArray = np.where(shares, self.book.ways.critic_link_s[src], 0.0)
        return taken

    def _usd_per_step(self, active: BoolArray, has_version: bool) -> FloatArray:
        ways = self.book.ways
        usd = self._most(ways.usd_per_step_home[self.home], active)
        if not has_version:
            usd = usd + np.where(active & self.away, ways.usd_per_version[self.home], 0.0).sum(axis=1)
        for i, tasks in enumerate(self.book.grouping):
            there, back = ways.usd_per_step_there[self.home], ways.usd_per_step_home[self.home]
            far = self.in_region[i] & self.away
            if any(task in SCORING for task in tasks):
                usd = usd + self._most(there + back, far)
            elif self.trains[i]:
                usd = usd + self._most(there, far)
            if self.trains[i]:
                usd = usd + self.book.meshes(i).usd_per_step[self.meshes[:, i]]
        if self.critic is not None:
            src, scores = self.critic
            usd = usd + np.where(scores, ways.critic_usd[src], 0.0).sum(axis=1)
        return usd

    def _in_region(self, group: int) -> BoolArray:
        if self.trains[group]:
            return self.book.meshes(group).in_region[self.meshes[:, group]]
        found: BoolArray = np.logical_or.reduce(self._spread((self.group == group) & (self.counts > 0)), axis=1)
        return found

    def _spread(self, values: "IntArray | BoolArray") -> "IntArray | BoolArray":
        """[rows, places] to [rows, places, regions]."""
        spread = np.zeros((*values.shape, self.size), dtype=values.dtype)
        np.put_along_axis(spread, self.region[:, :, None], values[:, :, None], axis=2)
        return spread

    def _has_room(self) -> BoolArray:
        units = self.book.units
        held = np.zeros((self.num, len(self.book.classes), len(TENSOR)), dtype=np.int64)
        devices = self.counts * np.array(TENSOR)[units.size[self.units]]
        np.add.at(held, (self.place[:, None], units.at_class[self.units], units.size[self.units]), devices)
        for i in self._training():
            held += self.book.meshes(i).held[self.meshes[:, i]]
        larger = np.cumsum(held[:, :, ::-1], axis=2)[:, :, ::-1]
        classes = [self.prices.classes[key] for key in self.book.classes]
        room = np.array([[at.num_machines * (at.gpus_per_machine // size) * size for size in TENSOR] for at in classes])
        is_met: BoolArray = ((larger <= room) | (held == 0)).all(axis=(1, 2))
        return is_met

    def _follows_rules(self) -> BoolArray:
        rules = self.prices.problem.rules
        used = np.any(self.in_region, axis=0)
        num = used.sum(axis=1)
        holds: BoolArray = num >= rules.min_regions
        if rules.max_regions is not None:
            holds = holds & (num <= rules.max_regions)
        generating = next(i for i, tasks in enumerate(self.book.grouping) if Task.GENERATION in tasks)
        for name in rules.generating:
            if name not in self.book.regions:
                return np.zeros(self.num, dtype=bool)
            holds = holds & self.in_region[generating][:, self.book.regions.index(name)]
        return holds

    def _is_joined(self) -> BoolArray:
        used = np.any(self.in_region, axis=0)
        joined: BoolArray = ~(used & np.isinf(self.book.ways.scoring_s[self.home])).any(axis=1)
        if self.critic is not None:
            src, scores = self.critic
            joined &= ~(scores & np.isinf(self.book.ways.critic_s[src])).any(axis=1)
        return joined

    def _training(self) -> list[int]:
        return [i for i, trains in enumerate(self.trains) if trains]

    def _sum(self, tasks: Sequence[Task], among: Sequence[Task]) -> FloatArray:
        total = np.zeros(self.num)
        for task in (task for task in tasks if task in among and task in self.busy):
            total = total + self.busy[task]
        return total

    @staticmethod
    def _most(values: FloatArray, where: BoolArray) -> FloatArray:
        most: FloatArray = np.where(where, values, 0.0).max(axis=1)
        return most
