"""Columns of one problem as arrays, and the constants between its regions: what linear models are filled from.

Everything is computed once, when first asked for, and shared by all groupings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from planner.cost import ways as between
from planner.cost.columns import MayPair, UnitColumn, any_pair, mesh_list, unit_columns
from planner.cost.listed import MeshColumn, MeshList, MeshPart
from planner.cost.meshes import Room
from planner.cost.overlap import NONE, Overlaps, overlaps_of
from planner.cost.pools import Prices
from planner.exact.linear import Bools, Floats, Ints
from planner.groupings import FEW_GROUPINGS, Tasks, groupings
from planner.question.goal import Objective
from planner.question.workload import SCORING, TRAINING, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBlock:
    """Units for one group without training, a row each."""

    tasks: Tasks
    columns: Sequence[UnitColumn]
    at_class: Ints
    at_region: Ints
    gpus: Ints
    most: Floats
    """Units that the class holds."""
    shares: Floats
    """Its devices over a unit's: no mix of units (of 3 devices, say) makes more than so many of the best."""
    rates: Floats
    """[rows, tasks]"""
    seconds: Floats
    """The problem's grid of phases, with generation; else empty."""
    samples: Floats
    """[rows, knots]: of generation, from a version's arrival on."""
    overlaps: Overlaps
    """Of generation's windows."""
    first_s: Floats
    """Until generation's first sample."""
    starts_s: Floats
    """Before it nothing is made: `first_s`, or the knot before it where the table does not jump there."""
    usd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBlock:
    """Meshes for one group with training, a row each."""

    tasks: Tasks
    columns: Sequence[MeshColumn]
    regions: Ints
    """[rows, 2]: of both pools; twice the same where there is one."""
    at_class: Ints
    """[rows, 2]: of both pools; -1 where there is one."""
    gpus: Ints
    """[rows, 2]: devices of a unit."""
    num: Ints
    """[rows, 2]: units."""
    makes: Bools
    """[rows, 2]: whether a pool's region has samples done in generation's phase; else nothing comes from there."""
    num_gpus: Ints
    train_s: Floats
    score_s: Floats
    gen_s: Floats
    usd: Floats
    usd_per_step: Floats

    @property
    def home(self) -> Ints:
        """Region of the first pool."""
        return self.regions[:, 0]

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
        self.num_blocks = min(num_blocks, prices.problem.limits.max_train_blocks)
        self.max_s = max_s
        self.classes = tuple(prices.classes[key] for key in sorted(prices.classes))
        self.class_at = {each.key: i for i, each in enumerate(self.classes)}
        self.regions = tuple(sorted({each.region.name for each in self.classes}))
        self.region_at = {name: i for i, name in enumerate(self.regions)}
        self.class_region = np.array([self.region_at[each.region.name] for each in self.classes], dtype=np.int64)
        self.rooms: dict[tuple[Tasks, int | None], tuple[Room, MayPair]] = {}
        """Of groups that train, by their tasks and, if the actor is among them, its region (None: any): which meshes a
        part may have; where nothing is said, all that take at most `max_s`."""
        self._units: dict[Tasks, UnitBlock] = {}
        self._meshes: dict[Tasks, MeshBlock] = {}
        self._ways: dict[int, Ways] = {}
        self._known: dict[object, object] = {}

    def of(self, units: Mapping[Tasks, Sequence[UnitColumn]], meshes: Mapping[Tasks, Sequence[MeshColumn]]) -> "Blocks":
        """Of the same problem, with just these columns for groups of these tasks."""
        found = Blocks(self.prices, self.max_s, self.num_blocks)
        found._units = self._units | {tasks: self._units_of(tasks, columns) for tasks, columns in units.items()}
        found._meshes = self._meshes | {tasks: self._meshes_of(tasks, columns) for tasks, columns in meshes.items()}
        found._ways = self._ways
        return found

    @cached_property
    def samples(self) -> float:
        return float(self.prices.problem.workload.samples_per_step)

    @cached_property
    def pays_for_few(self) -> bool:
        """Whether dollars have to be least, and groupings are few: then relaxations alone soon find good placements."""
        problem = self.prices.problem
        return problem.goal.objective is Objective.COST_AT_THROUGHPUT and len(groupings(problem)) <= FEW_GROUPINGS

    @property
    def ends(self) -> int:
        """Steps that a path may take."""
        return self.prices.problem.workload.eta + 1

    @property
    def is_sync(self) -> bool:
        return self.prices.problem.workload.eta == 0

    def units(self, tasks: Tasks) -> UnitBlock:
        if tasks not in self._units:
            self._units[tasks] = self._units_of(tasks, unit_columns(self.prices, tasks))
        return self._units[tasks]

    def meshes(self, tasks: Tasks, home: int | None = None) -> MeshBlock:
        """`home`: no others are asked for; of two pools they take long to list."""
        if tasks not in self._meshes:
            if home is not None and self.num_blocks > 1 and Task.ACTOR_TRAINING in tasks:
                return self.known(("meshes", tasks, home), lambda: self._meshes_in(tasks, self._listed(tasks, home)))
            self._meshes[tasks] = self._meshes_in(tasks, self._listed(tasks, None))
        return self._meshes[tasks]

    def known(self, key: object, find: Callable[[], T]) -> T:
        """What `find` gives, found once; `key` names it among everything that is kept here."""
        if key not in self._known:
            self._known[key] = find()
        return cast(T, self._known[key])

    def ways(self, home: int) -> Ways:
        if home not in self._ways:
            self._ways[home] = self._ways_of(home)
        return self._ways[home]

    def critic_s(self, src: int, dst: int) -> tuple[float, float]:
        """Of the critic's weights: (seconds, what of them occupies the link); infinite without a way."""
        way = between.critic_way(self.prices, self.regions[src], self.regions[dst])
        return (np.inf, np.inf) if way is None else (way.weights_s, way.link_s)

    def critic_usd(self, src: int, dst: int) -> float:
        """Of one version of the critic's weights; infinite without a way."""
        way = between.critic_way(self.prices, self.regions[src], self.regions[dst])
        return np.inf if way is None else way.usd_per_version

    def _listed(self, tasks: Tasks, home: int | None) -> MeshList:
        key = (tasks, home) if self.num_blocks > 1 else (tasks, None)
        room, may_pair = self.rooms.get(key, (Room(busy_s=self.max_s), any_pair))
        name = None if home is None else self.regions[home]
        found = mesh_list(self.prices, tasks, room, blocks=1, home=name, may_pair=may_pair)
        if self.num_blocks > 1:
            found += mesh_list(self.prices, tasks, room, blocks=2, home=name, may_pair=may_pair)
        return found

    def _units_of(self, tasks: Tasks, columns: Sequence[UnitColumn]) -> UnitBlock:
        phases = [column.phase for column in columns if column.phase is not None]
        at_class = np.array([self.class_at[each.unit.device_class] for each in columns], dtype=np.int64)
        sizes = [each.unit.unit_gpus for each in columns]
        of_class = [self.classes[c] for c in at_class.tolist()]
        held = [at.num_units(size) for at, size in zip(of_class, sizes, strict=True)]
        shares = [at.num_gpus / size for at, size in zip(of_class, sizes, strict=True)]
        return UnitBlock(
            tasks=tasks, columns=columns, at_class=at_class,
            at_region=np.array([self.region_at[each.region] for each in columns], dtype=np.int64),
            gpus=np.array(sizes, dtype=np.int64), most=np.array(held, dtype=np.float64),
            shares=np.array(shares, dtype=np.float64),
            rates=np.array([[each.rates[task] for task in tasks] for each in columns]).reshape(-1, len(tasks)),
            seconds=phases[0].seconds if phases else np.zeros(0),
            samples=np.array([each.samples for each in phases]) if phases else np.zeros((len(columns), 0)),
            overlaps=overlaps_of([each.phase.overlap if each.phase else NONE for each in columns]),
            first_s=np.array([each.first_s for each in phases]) if phases else np.zeros(len(columns)),
            starts_s=np.array([each.seconds[max(int(np.argmax(each.samples > 0)) - 1, 0)] for each in phases])
            if phases else np.zeros(len(columns)),
            usd=np.array([each.usd_per_hour for each in columns]),
        )  # fmt: skip

    def _meshes_of(self, tasks: Tasks, columns: Sequence[MeshColumn]) -> MeshBlock:
        def total(which: tuple[Task, ...]) -> Floats:
            return np.array([sum(each.times[t] for t in tasks if t in which) for each in columns], dtype=np.float64)

        def both(of: Callable[[MeshColumn], Sequence[int]], lacking: int | None) -> Ints:
            found = [of(each) for each in columns]
            ends = [(each[0], each[1] if len(each) > 1 else each[0] if lacking is None else lacking) for each in found]
            return np.array(ends, dtype=np.int64).reshape(-1, 2)

        return MeshBlock(
            tasks=tasks, columns=columns, regions=both(lambda each: [self.region_at[r] for r in each.regions], None),
            at_class=both(lambda each: [self.class_at[pool.device_class] for pool in each.group.pools], -1),
            gpus=both(lambda each: [pool.unit_gpus for pool in each.group.pools], 1),
            num=both(lambda each: [pool.num_units for pool in each.group.pools], 0),
            makes=both(lambda each: [name not in each.idle for name in each.regions], None).astype(bool),
            num_gpus=np.array([each.num_gpus for each in columns], dtype=np.int64),
            train_s=total(TRAINING), score_s=total(SCORING), gen_s=total((Task.GENERATION,)),
            usd=np.array([each.usd_per_hour for each in columns], dtype=np.float64),
            usd_per_step=np.array([each.usd_per_step for each in columns], dtype=np.float64),
        )  # fmt: skip

    def _meshes_in(self, tasks: Tasks, listed: MeshList) -> MeshBlock:
        """The same of meshes that are arrays already."""

        def joined(of: Callable[[MeshPart], Floats]) -> Floats:
            return np.concatenate([np.zeros(0), *(of(part) for part in listed.parts)])

        def both(of: Callable[[MeshPart, int], Ints | int], lacking: int | None) -> Ints:
            found = [np.zeros((0, 2), dtype=np.int64)]
            for part in listed.parts:
                pair = np.empty((len(part), 2), dtype=np.int64)
                pair[:, 0] = of(part, 0)
                pair[:, 1] = of(part, 1) if len(part.at) > 1 else pair[:, 0] if lacking is None else lacking
                found.append(pair)
            return np.concatenate(found)

        regions = both(lambda part, pool: self.region_at[part.at[pool].region.name], None)
        gpus = both(lambda part, pool: part.pools[pool][0].unit[part.pools[pool][1]], 1)
        num = both(lambda part, pool: part.pools[pool][0].num_units[part.pools[pool][1]], 0)
        makes = [part.generating(self.prices) for part in listed.parts]
        return MeshBlock(
            tasks=tasks, columns=listed, regions=regions,
            at_class=both(lambda part, pool: self.class_at[part.at[pool].key], -1), gpus=gpus, num=num,
            makes=np.concatenate([np.ones((0, 2), dtype=bool), *makes]), num_gpus=(gpus * num).sum(axis=1),
            train_s=joined(lambda part: part.seconds(TRAINING)),
            score_s=joined(lambda part: part.seconds(SCORING)),
            gen_s=joined(lambda part: part.seconds((Task.GENERATION,))), usd=joined(lambda part: part.usd_per_hour),
            usd_per_step=joined(lambda part: np.full(len(part), part.usd_per_step)),
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
