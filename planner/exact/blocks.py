"""Columns of one problem as arrays, and the constants between its regions: what linear models are filled from.

Everything is computed once, when first asked for, and shared by all groupings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost import ways as between
from planner.cost.columns import MeshColumn, UnitColumn, mesh_columns, unit_columns
from planner.cost.phases import PhaseTable
from planner.cost.pools import Prices
from planner.exact.linear import Floats, Ints
from planner.groupings import Tasks
from planner.question.workload import SCORING, TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBlock:
    """Units for one group without training, a row each."""

    tasks: Tasks
    columns: Sequence[UnitColumn]
    at_class: Ints
    at_region: Ints
    gpus: Ints
    rates: Floats
    """[rows, tasks]"""
    group_s: Floats
    phases: tuple[PhaseTable, ...]
    """Samples of a generation phase, where there is one; else empty."""
    seconds: Floats
    """[rows, knots] of `phases`"""
    samples: Floats
    """[rows, knots] of `phases`"""
    usd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBlock:
    """Meshes for one group with training, a row each."""

    tasks: Tasks
    columns: Sequence[MeshColumn]
    home: Ints
    """Region of the first pool."""
    regions: Sequence[tuple[int, ...]]
    train_s: Floats
    score_s: Floats
    gen_s: Floats
    usd: Floats
    usd_per_step: Floats

    @property
    def busy_s(self) -> Floats:
        return self.train_s + self.score_s + self.gen_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """From and to one home region, an entry for each region: infinite where there is no way."""

    home: int
    weights_s: Floats
    """One version alone; 0 at home."""
    half_rtt_s: Floats
    link_s: Floats
    """What a version's bytes need of the link."""
    up_s: float
    """What they need of the uplink, a receiving region."""
    trajectories_s: Floats
    samples_per_s: Floats
    """Carried home."""
    down_per_s: float
    scoring_s: Floats
    training_s: Floats
    usd_version: Floats
    """Of one version sent there."""
    usd_there: Floats
    """Of all of a step's samples."""
    usd_back: Floats


class Blocks:
    """`max_s`: meshes that alone take longer are left out; `num_blocks`: most kinds of devices in one mesh."""

    def __init__(self, prices: Prices, max_s: float, num_blocks: int) -> None:
        self.prices = prices
        self._num_blocks = min(num_blocks, prices.problem.limits.max_train_blocks)
        self.max_s = max_s
        self.classes = tuple(prices.classes[key] for key in sorted(prices.classes))
        self.class_at = {each.key: i for i, each in enumerate(self.classes)}
        self.regions = tuple(sorted({each.region.name for each in self.classes}))
        self.region_at = {name: i for i, name in enumerate(self.regions)}
        self.class_region = np.array([self.region_at[each.region.name] for each in self.classes], dtype=np.int64)
        self._units: dict[Tasks, UnitBlock] = {}
        self._meshes: dict[Tasks, MeshBlock] = {}
        self._ways: dict[int, Ways] = {}

    def moved_to(self, prices: Prices) -> "Blocks":
        """Of a problem with the same classes and other links: units stay, and meshes of one region."""
        moved = Blocks(prices, self.max_s, self._num_blocks)
        moved._units = dict(self._units)
        if self._num_blocks == 1:
            moved._meshes = dict(self._meshes)
        return moved

    @cached_property
    def samples(self) -> float:
        return float(self.prices.problem.workload.samples_per_step)

    @property
    def ends(self) -> int:
        """Steps that a path may take."""
        return self.prices.problem.workload.eta + 1

    @property
    def is_sync(self) -> bool:
        return self.prices.problem.workload.eta == 0

    def units(self, tasks: Tasks) -> UnitBlock:
        if tasks not in self._units:
            self._units[tasks] = self._unit_block(tasks)
        return self._units[tasks]

    def meshes(self, tasks: Tasks) -> MeshBlock:
        if tasks not in self._meshes:
            self._meshes[tasks] = self._mesh_block(tasks)
        return self._meshes[tasks]

    def ways(self, home: int) -> Ways:
        if home not in self._ways:
            self._ways[home] = self._ways_of(home)
        return self._ways[home]

    def critic_s(self, src: int, dst: int) -> tuple[float, float]:
        """(seconds of the critic's weights, their dollars a step); infinite without a way."""
        a, b = self.regions[src], self.regions[dst]
        way = between.critic_way(self.prices, a, b)
        if way is None or not self.prices.network.joins(a, b):
            return np.inf, np.inf
        return way.weights_s, way.usd_per_version

    def _unit_block(self, tasks: Tasks) -> UnitBlock:
        columns = unit_columns(self.prices, tasks)
        phases = tuple(column.phase for column in columns if column.phase is not None)
        return UnitBlock(
            tasks=tasks, columns=columns,
            at_class=np.array([self.class_at[each.unit.device_class] for each in columns], dtype=np.int64),
            at_region=np.array([self.region_at[each.region] for each in columns], dtype=np.int64),
            gpus=np.array([each.unit.unit_gpus for each in columns], dtype=np.int64),
            rates=np.array([[each.rates[task] for task in tasks] for each in columns]).reshape(-1, len(tasks)),
            group_s=np.array([each.group_s for each in columns]), phases=phases,
            seconds=np.array([each.seconds for each in phases]), samples=np.array([each.samples for each in phases]),
            usd=np.array([each.usd_per_hour for each in columns]),
        )  # fmt: skip

    def _mesh_block(self, tasks: Tasks) -> MeshBlock:
        columns = mesh_columns(self.prices, tasks, blocks=1)
        if self._num_blocks > 1:
            columns = (*columns, *mesh_columns(self.prices, tasks, self.max_s, blocks=2))

        def total(which: tuple[Task, ...]) -> Floats:
            return np.array([sum(each.times[t] for t in tasks if t in which) for each in columns], dtype=np.float64)

        return MeshBlock(
            tasks=tasks, columns=columns,
            home=np.array([self.region_at[each.regions[0]] for each in columns], dtype=np.int64),
            regions=tuple(tuple(self.region_at[name] for name in each.regions) for each in columns),
            train_s=total(TRAINING), score_s=total(SCORING), gen_s=total((Task.GENERATION,)),
            usd=np.array([each.usd_per_hour for each in columns], dtype=np.float64),
            usd_per_step=np.array([each.usd_per_step for each in columns], dtype=np.float64),
        )  # fmt: skip

    def _ways_of(self, home: int) -> Ways:
        found = between.home(self.prices, self.regions[home])
        ways = [found.ways.get(name) for name in self.regions]

        def each(name: str) -> Floats:
            return np.array([np.inf if way is None else getattr(way, name) for way in ways], dtype=np.float64)

        link_s = each("link_s")
        rtt_s = each("weights_s") - np.where(np.isfinite(link_s), link_s, 0.0)
        return Ways(
            home=home, weights_s=each("weights_s"), half_rtt_s=rtt_s, link_s=link_s, up_s=found.uplink_s,
            trajectories_s=each("trajectories_s"),
            samples_per_s=each("samples_per_s"), down_per_s=found.samples_per_s, scoring_s=each("scoring_s"),
            training_s=each("training_s"), usd_version=each("usd_per_version"), usd_there=each("usd_per_step_there"),
            usd_back=each("usd_per_step_home"),
        )  # fmt: skip
