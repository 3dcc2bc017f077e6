"""Candidates of a group as seen from one trainer's region: their times including transfers, and joint lower bounds.

The trainer region is the one that hosts the trainer. `ReachableMeshes` and `ReachableUnits` select the candidates that
it can reach and add transfer times to them. `ReachableUnits` also bounds what all units of the fleet could do together,
which `remaining_candidates`, `window_rows` and `rent_lower_bounds` use.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.tasks.phase_tables import samples_and_slope
from planner.cost.tasks.version_overlap import Overlaps, made_in
from planner.methods.exact.program.linear_model import INFINITE, Bools, Floats, Ints
from planner.methods.exact.subproblem.candidate_arrays import MeshArrays, ProblemArrays, TransferArrays, UnitArrays
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachableMeshes:
    """Candidate meshes that are possible with the trainer in one region; arrays are `[num_rows]`."""

    block: MeshArrays
    """All candidates of the group."""
    rows: Ints
    """Rows of the block that are possible."""
    busy_s: Floats
    """Busy seconds per step of all tasks."""
    train_s: Floats
    """Seconds of training with the transfer of samples to the mesh."""
    score_s: Floats
    """Seconds of scoring with the transfer of samples to the mesh and back; 0 without scoring."""
    generation_s: Floats
    """Seconds of generation's phase with the transfers of weights and samples; 0 without generation."""
    link_s: Floats
    """Seconds that versions occupy the slowest link; 0 if the mesh needs no versions."""

    def some(self, keep: Bools) -> "ReachableMeshes":
        """Return the rows of the mask."""
        if keep.all():
            return self
        return replace(
            self,
            rows=self.rows[keep],
            busy_s=self.busy_s[keep],
            train_s=self.train_s[keep],
            score_s=self.score_s[keep],
            generation_s=self.generation_s[keep],
            link_s=self.link_s[keep],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachableUnits:
    """Candidate units that are possible with the trainer in one region.

    Arrays are `[num_rows]` unless said otherwise.
    """

    block: UnitArrays
    """All candidates of the group."""
    rows: Ints
    """Rows of the block that are possible."""
    region: Ints
    """Index of the region."""
    most: Floats
    """Units that an empty class holds."""
    score_rates: Floats
    """Samples per second of one unit, `[num_rows, num_scoring_tasks]`."""
    level_s: Floats
    """Seconds of samples to the region and back, where the group scores; else 0."""
    rates: Floats
    """Samples per second of generation at full rate; 0 without generation."""
    lag_s: Floats
    """Seconds for a version to arrive, with an uplink shared as little as the subproblem allows, plus the last samples'
    return."""
    link_s: Floats
    """Seconds that a version occupies the link."""
    samples: Floats
    """Samples of one unit by the end of a phase, `[num_rows, num_knots]`."""
    overlaps: Overlaps
    """Slow-down of overlapping windows."""

    @property
    def gpus(self) -> Ints:
        """Devices of a unit."""
        return self.block.gpus[self.rows]

    @property
    def shares(self) -> Floats:
        """Devices of the class over devices of a unit."""
        return self.block.shares[self.rows]

    @property
    def generates(self) -> bool:
        """Whether the group generates."""
        return Task.GENERATION in self.block.tasks

    @property
    def makes(self) -> Bools:
        """Whether a unit can generate in time; if not, it only scores."""
        return self.rates > 0

    @property
    def scores(self) -> bool:
        """Whether the group scores."""
        return any(task in SCORING for task in self.block.tasks)

    def some(self, keep: Bools) -> "ReachableUnits":
        """Return the rows of the mask."""
        if keep.all():
            return self
        return replace(
            self,
            rows=self.rows[keep],
            region=self.region[keep],
            most=self.most[keep],
            score_rates=self.score_rates[keep],
            level_s=self.level_s[keep],
            rates=self.rates[keep],
            lag_s=self.lag_s[keep],
            link_s=self.link_s[keep],
            samples=self.samples[keep],
            overlaps=self.overlaps.some(np.flatnonzero(keep)),
        )

    def fleet_total(self, made: Floats) -> Floats:
        """Return an upper bound on what all classes make together, given what one unit of each row makes.

        `made` is `[num_rows, ...]`, the result `[...]`. Of each class the row counts that would make most with all its
        devices.
        """
        classes = self.block.at_class[self.rows]
        starts = np.flatnonzero(np.diff(classes, prepend=-1))
        whole = made * self.shares.reshape(-1, *(1,) * (made.ndim - 1))
        total: Floats = np.maximum.reduceat(whole, starts, axis=0).sum(axis=0)
        return total

    def scoring_s(self, samples: float) -> float:
        """Return a lower bound on the busy seconds of scoring: every device of the fleet scores for this group."""
        return float(np.sum(samples / self.fleet_total(self.score_rates))) if self.scores else 0.0

    def made(self, window_s: Floats, most_s: float) -> Floats:
        """Return `[num_rows, num_windows]`: samples of one unit in windows as a region without lag would see them.

        A step leaves `most_s` seconds to generation; longer windows overlap. inf means that windows never overlap.
        """
        own_s = window_s[None, :] - self.lag_s[:, None]
        rows = np.broadcast_to(np.arange(len(self.rows))[:, None], own_s.shape)
        if most_s == INFINITE:
            return samples_and_slope(self.block.seconds, self.samples, rows, own_s)[0]
        made, _, _ = made_in(self.block.seconds, self.samples, rows, self.overlaps, own_s, np.full(own_s.shape, most_s))
        return np.minimum(made, self.rates[:, None] * most_s)

    def knots_s(self, most_s: float) -> Floats:
        """Return `[num_rows, num_knots]`: windows in which a unit makes what its table says at each knot."""
        seconds = self.block.seconds
        ends_s = seconds[None, :] if most_s == INFINITE else self.overlaps.knots_s(seconds, most_s)
        found: Floats = np.broadcast_to(ends_s, self.samples.shape) + self.lag_s[:, None]
        return found

    def least_window_s(self, samples: float, num_points: int) -> float:
        """Return a lower bound on the window in which every device of the fleet makes this many samples.

        `num_points` windows are tried at once, in each of two rounds.
        """
        low, high = 0.0, float(self.block.seconds[-1] + self.lag_s.min())
        # First geometric points over the whole range, then linear points within the interval that was found. The lower
        # end of the last interval is the bound.
        for spaced in (np.geomspace, np.linspace):
            points = spaced(max(low, high / 1e5), high, num_points)
            enough = self.fleet_total(self.made(points, INFINITE)) >= samples * (1 - 1e-9)
            if not enough.any():
                return high
            first = int(np.argmax(enough))
            low, high = (low if first == 0 else float(points[first - 1])), float(points[first])
        return low


def meshes_at(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> ReachableMeshes:
    """Return the meshes that are possible with the trainer in `trainer_region`, in the block's order."""
    return data.known(("meshes at", tasks, trainer_region), lambda: _meshes_at(data, tasks, trainer_region))


def units_at(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> ReachableUnits:
    """Return the units that are possible with the trainer in `trainer_region`, in the block's order."""
    return data.known(("units at", tasks, trainer_region), lambda: _units_at(data, tasks, trainer_region))


def _meshes_at(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> ReachableMeshes:
    block, transfers = data.meshes(tasks, trainer_region), data.transfers(trainer_region)
    trains_actor, generates = Task.ACTOR_TRAINING in tasks, Task.GENERATION in tasks
    away_s = transfers.training_s[block.regions].max(axis=1)
    # Keep meshes that the trainer's region reaches, that publish from it, and that a limit of one region allows.
    keep = np.isfinite(away_s)
    if trains_actor:
        keep &= block.source_region == trainer_region
    if data.cost_tables.problem.rules.max_regions == 1:
        keep &= (block.regions == trainer_region).all(axis=1)
    rows = np.flatnonzero(keep)
    regions, none = block.regions[rows], np.zeros(len(rows))
    score_s, generation_s, link_s = none, none, none
    # Scoring and generation include transfers to and from the most distant pool.
    if any(task in SCORING for task in tasks):
        score_s = block.score_s[rows] + transfers.scoring_s[regions].max(axis=1)
    if generates:
        weights_s = np.zeros(len(data.regions)) if trains_actor else transfers.weights_s
        generation_s = phase_s(data, block, rows, weights_s + transfers.trajectories_s)
        link_s = none if trains_actor else transfers.link_s[regions].max(axis=1)
    return ReachableMeshes(
        block=block,
        rows=rows,
        busy_s=block.busy_s[rows],
        train_s=away_s[rows] + block.train_s[rows],
        score_s=score_s,
        generation_s=generation_s,
        link_s=link_s,
    )


def phase_s(data: ProblemArrays, block: MeshArrays, rows: Ints, transfer_s: Floats) -> Floats:
    """Return the seconds of generation's phase with the slowest region's transfers, `[len(rows)]`.

    `transfer_s` is seconds of weights and trajectories by region. Regions that finish no sample do not count, unless
    regions are demanded.
    """
    makes = block.makes[rows] | data.cost_tables.problem.rules.demands_regions
    found: Floats = block.gen_s[rows] + np.where(makes, transfer_s[block.regions[rows]], 0.0).max(axis=1)
    return found


def _units_at(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> ReachableUnits:
    block, transfers = data.units(tasks), data.transfers(trainer_region)
    # Keep units that the trainer's region reaches, and that a limit of one region allows.
    keep = np.isfinite(transfers.scoring_s[block.at_region])
    if data.cost_tables.problem.rules.max_regions == 1:
        keep &= block.at_region == trainer_region
    rows = np.flatnonzero(keep)
    region = block.at_region[rows]
    # Columns of `rates` that belong to scoring tasks.
    scored = [i for i, task in enumerate(tasks) if task in SCORING]
    generates = Task.GENERATION in tasks
    none = np.zeros(len(rows))
    return ReachableUnits(
        block=block,
        rows=rows,
        region=region,
        most=block.most[rows],
        score_rates=block.rates[rows][:, scored],
        level_s=transfers.scoring_s[region] if scored else none,
        rates=block.rates[rows, tasks.index(Task.GENERATION)] if generates else none,
        lag_s=lags(transfers, 1)[region] if generates else none,
        link_s=transfers.link_s[region] if generates else none,
        samples=block.samples[rows],
        overlaps=block.overlaps.some(rows),
    )


def lags(transfers: TransferArrays, receivers: int, beside_s: Floats | float = 0.0) -> Floats:
    """Return `[num_regions]`: seconds for a version to reach each region and its last samples to return.

    `receivers` regions share the uplink. `beside_s` is what the critic's weights take of the same links.
    """
    far = np.arange(len(transfers.weights_s)) != transfers.trainer_region
    link_s = np.where(far, np.maximum(transfers.link_s + beside_s, transfers.up_s * max(1, receivers)), 0.0)
    found: Floats = np.where(far, transfers.half_rtt_s + link_s, 0.0) + transfers.trajectories_s
    return found
