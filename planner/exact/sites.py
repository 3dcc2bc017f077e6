"""A group's columns as one home region sees them: their times with the ways there and back, and what all of them
together need at least."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.overlap import Overlaps, made_in
from planner.cost.phases import around
from planner.exact.blocks import Blocks, MeshBlock, UnitBlock, Ways
from planner.exact.linear import INFINITE, Bools, Floats, Ints
from planner.groupings import Tasks
from planner.question.workload import SCORING, Task

_POINTS = 48
"""At which windows are tried at once, twice: the least one is known to 1 in 2,000 of what lies between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshesAt:
    """Meshes for one group with training, those that a home region can have."""

    block: MeshBlock
    rows: Ints
    busy_s: Floats
    train_s: Floats
    score_s: Floats
    """0 without scoring."""
    rest_s: Floats
    """Generation with its ways; 0 without."""
    link_s: Floats
    """What versions need of links."""

    def some(self, keep: Bools) -> "MeshesAt":
        if keep.all():
            return self
        return replace(
            self, rows=self.rows[keep], busy_s=self.busy_s[keep], train_s=self.train_s[keep],
            score_s=self.score_s[keep], rest_s=self.rest_s[keep], link_s=self.link_s[keep],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsAt:
    """Units for one group without training, those that a home region can have."""

    block: UnitBlock
    rows: Ints
    region: Ints
    most: Floats
    score_rates: Floats
    """[rows, tasks that score]"""
    level_s: Floats
    """To where samples are scored, and back; 0 without scoring."""
    rates: Floats
    """Of generation; empty without."""
    lag_s: Floats
    """Of generation: a version's way there, if no other takes part of the uplink, and a step's last samples' back."""
    link_s: Floats
    samples: Floats
    """[rows, knots]"""
    overlaps: Overlaps

    @property
    def gpus(self) -> Ints:
        return self.block.gpus[self.rows]

    @property
    def shares(self) -> Floats:
        """[rows]: as of the block."""
        return self.block.shares[self.rows]

    @property
    def generates(self) -> bool:
        return Task.GENERATION in self.block.tasks

    @property
    def makes(self) -> Bools:
        """[rows]: whether a unit may generate; others idle then, and score."""
        return self.rates > 0

    @property
    def scores(self) -> bool:
        return any(task in SCORING for task in self.block.tasks)

    def some(self, keep: Bools) -> "UnitsAt":
        if keep.all():
            return self
        return replace(
            self, rows=self.rows[keep], region=self.region[keep], most=self.most[keep],
            score_rates=self.score_rates[keep], level_s=self.level_s[keep], rates=self.rates[keep],
            lag_s=self.lag_s[keep], link_s=self.link_s[keep], samples=self.samples[keep],
            overlaps=self.overlaps.some(np.flatnonzero(keep)),
        )  # fmt: skip

    def fleets(self, made: Floats) -> Floats:
        """No less than all classes make together, of what a unit of each row makes; [rows, ...] to [...]."""
        classes = self.block.at_class[self.rows]
        starts = np.flatnonzero(np.diff(classes, prepend=-1))
        whole = made * self.shares.reshape(-1, *(1,) * (made.ndim - 1))
        total: Floats = np.maximum.reduceat(whole, starts, axis=0).sum(axis=0)
        return total

    def scoring_s(self, samples: float) -> float:
        """Busy seconds of scoring, were every unit of the fleet the group's."""
        return float(np.sum(samples / self.fleets(self.score_rates))) if self.scores else 0.0

    def made(self, window_s: Floats, most_s: float) -> Floats:
        """[rows, windows]: samples of a unit, as its region sees windows whose lag is 0; a step leaves `most_s` to
        generation, and windows overlap if they are longer."""
        own_s = window_s[None, :] - self.lag_s[:, None]
        rows = np.broadcast_to(np.arange(len(self.rows))[:, None], own_s.shape)
        if most_s == INFINITE:
            return around(self.block.seconds, self.samples, rows, own_s)[0]
        made, _, _ = made_in(self.block.seconds, self.samples, rows, self.overlaps, own_s, np.full(own_s.shape, most_s))
        return np.minimum(made, self.rates[:, None] * most_s)

    def knots_s(self, most_s: float) -> Floats:
        """[rows, knots]: windows in which units make what their tables say of the grid's seconds."""
        seconds = self.block.seconds
        ends_s = seconds[None, :] if most_s == INFINITE else self.overlaps.knots_s(seconds, most_s)
        found: Floats = np.broadcast_to(ends_s, self.samples.shape) + self.lag_s[:, None]
        return found

    def least_window_s(self, samples: float) -> float:
        """No less makes that many samples, were every unit of the fleet the group's."""
        low, high = 0.0, float(self.block.seconds[-1] + self.lag_s.min())
        for spaced in (np.geomspace, np.linspace):
            points = spaced(max(low, high / 1e5), high, _POINTS)
            enough = self.fleets(self.made(points, INFINITE)) >= samples * (1 - 1e-9)
            if not enough.any():
                return high
            first = int(np.argmax(enough))
            low, high = (low if first == 0 else float(points[first - 1])), float(points[first])
        return low


def meshes_at(data: Blocks, tasks: Tasks, home: int) -> MeshesAt:
    """All of them, in the block's order."""
    return data.known(("meshes at", tasks, home), lambda: _meshes_at(data, tasks, home))


def units_at(data: Blocks, tasks: Tasks, home: int) -> UnitsAt:
    """All of them, in the block's order."""
    return data.known(("units at", tasks, home), lambda: _units_at(data, tasks, home))


def _meshes_at(data: Blocks, tasks: Tasks, home: int) -> MeshesAt:
    block, ways = data.meshes(tasks, home), data.ways(home)
    trains_actor, generates = Task.ACTOR_TRAINING in tasks, Task.GENERATION in tasks
    away_s = ways.training_s[block.regions].max(axis=1)
    keep = np.isfinite(away_s)
    if trains_actor:
        keep &= block.home == home
    if data.prices.problem.rules.max_regions == 1:
        keep &= (block.regions == home).all(axis=1)
    rows = np.flatnonzero(keep)
    regions, none = block.regions[rows], np.zeros(len(rows))
    score_s, rest_s, link_s = none, none, none
    if any(task in SCORING for task in tasks):
        score_s = block.score_s[rows] + ways.scoring_s[regions].max(axis=1)
    if generates:
        weights_s = np.zeros(len(data.regions)) if trains_actor else ways.weights_s
        rest_s = phase_s(data, block, rows, weights_s + ways.trajectories_s)
        link_s = none if trains_actor else ways.link_s[regions].max(axis=1)
    return MeshesAt(
        block=block, rows=rows, busy_s=block.busy_s[rows], train_s=away_s[rows] + block.train_s[rows], score_s=score_s,
        rest_s=rest_s, link_s=link_s,
    )  # fmt: skip


def phase_s(data: Blocks, block: MeshBlock, rows: Ints, ways_s: Floats) -> Floats:
    """Return [rows] seconds of a generation phase beside training, the slowest region's transfers included."""
    makes = block.makes[rows] | data.prices.problem.rules.demands_regions
    found: Floats = block.gen_s[rows] + np.where(makes, ways_s[block.regions[rows]], 0.0).max(axis=1)
    return found


def _units_at(data: Blocks, tasks: Tasks, home: int) -> UnitsAt:
    block, ways = data.units(tasks), data.ways(home)
    keep = np.isfinite(ways.scoring_s[block.at_region])
    if data.prices.problem.rules.max_regions == 1:
        keep &= block.at_region == home
    rows = np.flatnonzero(keep)
    region = block.at_region[rows]
    scored = [i for i, task in enumerate(tasks) if task in SCORING]
    generates = Task.GENERATION in tasks
    none = np.zeros(len(rows))
    return UnitsAt(
        block=block, rows=rows, region=region, most=block.most[rows], score_rates=block.rates[rows][:, scored],
        level_s=ways.scoring_s[region] if scored else none,
        rates=block.rates[rows, tasks.index(Task.GENERATION)] if generates else none,
        lag_s=lags(ways, 1)[region] if generates else none, link_s=ways.link_s[region] if generates else none,
        samples=block.samples[rows], overlaps=block.overlaps.some(rows),
    )  # fmt: skip


def lags(ways: Ways, receivers: int, beside_s: Floats | float = 0.0) -> Floats:
    """[regions]: of a version's way to each, if so many regions share the uplink, and of the last samples back;
    `beside_s`: of the critic's weights on the same link."""
    far = np.arange(len(ways.weights_s)) != ways.home
    link_s = np.where(far, np.maximum(ways.link_s + beside_s, ways.up_s * max(1, receivers)), 0.0)
    found: Floats = np.where(far, ways.half_rtt_s + link_s, 0.0) + ways.trajectories_s
    return found
