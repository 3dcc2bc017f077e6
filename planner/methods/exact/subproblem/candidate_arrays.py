"""Candidates of one problem as arrays, and network constants between its regions: the input of all linear models.

`UnitArrays` and `MeshArrays` hold the candidates of one group (`planner.cost.candidates.columns`), a row each.
`TransferArrays` holds the transfers from and to one region that may host the trainer (its `trainer_region`).
`ProblemArrays` makes each of these when it is first asked for and shares them among all groupings. Classes and regions
are numbered in the order of their sorted names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from planner.cost.candidates.columns import MayPair, UnitColumn, any_pair, mesh_list, unit_columns
from planner.cost.candidates.mesh_lists import ClassMeshes, MeshColumn, MeshList
from planner.cost.candidates.meshes import MeshTimeLimits
from planner.cost.tables import transfers as between
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.version_overlap import NONE, Overlaps, overlaps_of
from planner.methods.exact.program.linear_model import Bools, Floats, Ints
from planner.methods.exact.settings import DEFAULT_SETTINGS, ExactSettings
from planner.problem.goal import Objective
from planner.problem.groupings import FEW_GROUPINGS, Tasks, groupings
from planner.problem.workload import SCORING, TRAINING, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitArrays:
    """Candidate units of one group without training; arrays are `[num_rows]` unless said otherwise."""

    tasks: Tasks
    """Tasks of the group."""
    columns: Sequence[UnitColumn]
    """The candidates as objects, in the order of the rows."""
    at_class: Ints
    """Index of the device class; rows of one class are next to each other."""
    at_region: Ints
    """Index of the region."""
    gpus: Ints
    """Devices of a unit."""
    most: Floats
    """Units that an empty class holds."""
    shares: Floats
    """Devices of the class over devices of a unit, which may be fractional. No mix of units of the class makes more
    than this number of its best units."""
    rates: Floats
    """Samples per second of one unit, `[num_rows, num_tasks]`."""
    seconds: Floats
    """Time grid of the problem, `[num_knots]`; empty without generation."""
    samples: Floats
    """Samples of generation by the end of a phase that starts with a version's arrival, `[num_rows, num_knots]`."""
    overlaps: Overlaps
    """Slow-down of overlapping generation windows."""
    first_s: Floats
    """Seconds until generation's first sample is done; 0 without generation."""
    starts_s: Floats
    """Seconds before which nothing is made: `first_s`, or the knot before it where the table does not jump there."""
    usd: Floats
    """Rent of one unit in dollars per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshArrays:
    """Candidate meshes of one group with training; arrays are `[num_rows]` or, for both pools, `[num_rows, 2]`."""

    tasks: Tasks
    """Tasks of the group."""
    columns: Sequence[MeshColumn]
    """The candidates as objects, in the order of the rows."""
    regions: Ints
    """Region of both pools; a mesh of one pool has the same region twice."""
    at_class: Ints
    """Device class of both pools; -1 for a missing second pool."""
    gpus: Ints
    """Devices of a unit of both pools."""
    num: Ints
    """Units of both pools; 0 for a missing second pool."""
    makes: Bools
    """Whether each pool's region finishes a sample in generation's phase. Otherwise it sends nothing and receives
    nothing."""
    num_gpus: Ints
    """Devices of the mesh."""
    train_s: Floats
    """Busy seconds per step of all training tasks."""
    score_s: Floats
    """Busy seconds per step of all scoring tasks."""
    gen_s: Floats
    """Seconds of generation's phase; 0 without."""
    usd: Floats
    """Rent in dollars per hour."""
    usd_per_step: Floats
    """Egress dollars per step of the gradients between the mesh's regions."""

    @property
    def source_region(self) -> Ints:
        """Region of the first pool, from which versions are published."""
        return self.regions[:, 0]

    @property
    def busy_s(self) -> Floats:
        """Busy seconds per step of all tasks."""
        return self.train_s + self.score_s + self.gen_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferArrays:
    """Transfers between the trainer's region and each region, `[num_regions]` each; inf without a route."""

    trainer_region: int
    """Index of the trainer's region."""
    weights_s: Floats
    """Seconds of one version that is sent alone; 0 for the trainer's region."""
    half_rtt_s: Floats
    """The part of `weights_s` that does not occupy the link: half a round trip."""
    link_s: Floats
    """Seconds that one version occupies the link."""
    up_s: float
    """Seconds of the uplink that one version takes for each receiving region; 0 without a cap."""
    trajectories_s: Floats
    """Seconds of a step's last group from the region."""
    samples_per_s: Floats
    """Samples per second that the route from the region carries."""
    down_per_s: float
    """Samples per second that may enter the trainer's region."""
    scoring_s: Floats
    """Seconds of a step's last group to the region and back."""
    training_s: Floats
    """Seconds of a step's last group to the region."""
    usd_version: Floats
    """Egress dollars of one version sent to the region."""
    usd_there: Floats
    """Egress dollars of all samples of a step, sent to the region."""
    usd_back: Floats
    """Egress dollars of all samples of a step, sent from the region."""


class ProblemArrays:
    """All candidates and transfers of one problem as arrays, made when they are first asked for.

    `max_s` leaves out meshes that alone take longer than a step may. `num_blocks` is the largest number of pools in a
    mesh. `settings` are those of the method, for everything that works on the problem.
    """

    def __init__(
        self, cost_tables: CostTables, max_s: float, num_blocks: int, settings: ExactSettings = DEFAULT_SETTINGS
    ) -> None:
        self.cost_tables = cost_tables
        self.settings = settings
        self.num_blocks = min(num_blocks, cost_tables.problem.limits.max_train_blocks)
        self.max_s = max_s
        self.classes = tuple(cost_tables.classes[key] for key in sorted(cost_tables.classes))
        self.class_at = {each.key: i for i, each in enumerate(self.classes)}
        self.regions = tuple(sorted({each.region.name for each in self.classes}))
        self.region_at = {name: i for i, name in enumerate(self.regions)}
        # Region of each class, [num_classes].
        self.class_region = np.array([self.region_at[each.region.name] for each in self.classes], dtype=np.int64)
        self.mesh_limits: dict[tuple[Tasks, int | None], tuple[MeshTimeLimits, MayPair]] = {}
        """Limits of the meshes of each group that trains; without an entry, all that take at most `max_s` are listed.
        The key is the group's tasks and, if it trains the actor, the trainer's region (None: any)."""
        self._units: dict[Tasks, UnitArrays] = {}
        self._meshes: dict[Tasks, MeshArrays] = {}
        self._transfers: dict[int, TransferArrays] = {}
        self._known: dict[object, object] = {}

    @cached_property
    def samples(self) -> float:
        """Samples of one step."""
        return float(self.cost_tables.problem.workload.samples_per_step)

    @property
    def minimises_usd(self) -> bool:
        """Whether the objective is least dollars, not least seconds per step."""
        return self.cost_tables.problem.goal.objective is Objective.COST_AT_THROUGHPUT

    @cached_property
    def pays_for_few(self) -> bool:
        """Whether the goal is least dollars and there are few groupings.

        Relaxations alone then find good placements soon.
        """
        return self.minimises_usd and len(groupings(self.cost_tables.problem)) <= FEW_GROUPINGS

    @property
    def ends(self) -> int:
        """Number of steps that a path may take: eta + 1."""
        return self.cost_tables.problem.workload.eta + 1

    @property
    def is_sync(self) -> bool:
        """Whether the job is synchronous (eta is 0)."""
        return self.cost_tables.problem.workload.eta == 0

    def units(self, tasks: Tasks) -> UnitArrays:
        """Return the candidate units of a group without training."""
        if tasks not in self._units:
            self._units[tasks] = self._units_of(tasks, unit_columns(self.cost_tables, tasks))
        return self._units[tasks]

    def meshes(self, tasks: Tasks, trainer_region: int | None = None) -> MeshArrays:
        """Return the candidate meshes of a group with training.

        With `trainer_region`, only meshes for the trainer in that region are listed. To list meshes of two pools for
        all regions is slow.
        """
        if tasks not in self._meshes:
            if trainer_region is not None and self.num_blocks > 1 and Task.ACTOR_TRAINING in tasks:
                return self.known(
                    ("meshes", tasks, trainer_region),
                    lambda: self._meshes_of(tasks, self._listed(tasks, trainer_region)),
                )
            self._meshes[tasks] = self._meshes_of(tasks, self._listed(tasks, None))
        return self._meshes[tasks]

    def known(self, key: object, find: Callable[[], T]) -> T:
        """Return what `find()` returns, calling it only for the first use of `key`."""
        if key not in self._known:
            self._known[key] = find()
        return cast(T, self._known[key])

    def transfers(self, trainer_region: int) -> TransferArrays:
        """Return the transfers from and to a region that hosts the trainer."""
        if trainer_region not in self._transfers:
            self._transfers[trainer_region] = self._transfers_of(trainer_region)
        return self._transfers[trainer_region]

    def critic_s(self, src: int, dst: int) -> tuple[float, float]:
        """Return (seconds, seconds that occupy the link) of the critic's weights; inf without a route."""
        transfer = between.critic_transfer(self.cost_tables, self.regions[src], self.regions[dst])
        return (np.inf, np.inf) if transfer is None else (transfer.weights_s, transfer.link_s)

    def critic_usd(self, src: int, dst: int) -> float:
        """Return the egress dollars of one version of the critic's weights; inf without a route."""
        transfer = between.critic_transfer(self.cost_tables, self.regions[src], self.regions[dst])
        return np.inf if transfer is None else transfer.usd_per_version

    def _listed(self, tasks: Tasks, trainer_region: int | None) -> MeshList:
        """Return the meshes within the limits that `mesh_limits` states for the group, or within `max_s`."""
        # Meshes of one pool are quick to list, so they are listed for all regions at once.
        key = (tasks, trainer_region) if self.num_blocks > 1 else (tasks, None)
        limits, may_pair = self.mesh_limits.get(key, (MeshTimeLimits(busy_s=self.max_s), any_pair))
        name = None if trainer_region is None else self.regions[trainer_region]
        found = mesh_list(self.cost_tables, tasks, limits, blocks=1, first_region=name, may_pair=may_pair)
        if self.num_blocks > 1:
            found += mesh_list(self.cost_tables, tasks, limits, blocks=2, first_region=name, may_pair=may_pair)
        return found

    def _units_of(self, tasks: Tasks, columns: Sequence[UnitColumn]) -> UnitArrays:
        phases = [column.phase for column in columns if column.phase is not None]
        at_class = np.array([self.class_at[each.unit.device_class] for each in columns], dtype=np.int64)
        sizes = [each.unit.unit_gpus for each in columns]
        of_class = [self.classes[c] for c in at_class.tolist()]
        # `most` counts whole units within machines, `shares` all devices of the class over the unit's size, which may
        # be more.
        held = [at.num_units(size) for at, size in zip(of_class, sizes, strict=True)]
        shares = [at.num_gpus / size for at, size in zip(of_class, sizes, strict=True)]
        return UnitArrays(
            tasks=tasks,
            columns=columns,
            at_class=at_class,
            at_region=np.array([self.region_at[each.region] for each in columns], dtype=np.int64),
            gpus=np.array(sizes, dtype=np.int64),
            most=np.array(held, dtype=np.float64),
            shares=np.array(shares, dtype=np.float64),
            rates=np.array([[each.rates[task] for task in tasks] for each in columns]).reshape(-1, len(tasks)),
            seconds=phases[0].seconds if phases else np.zeros(0),
            samples=np.array([each.samples for each in phases]) if phases else np.zeros((len(columns), 0)),
            overlaps=overlaps_of([each.phase.overlap if each.phase else NONE for each in columns]),
            first_s=np.array([each.first_s for each in phases]) if phases else np.zeros(len(columns)),
            # The knot before the first one with samples: interpolation makes some from there on.
            starts_s=np.array([each.seconds[max(int(np.argmax(each.samples > 0)) - 1, 0)] for each in phases])
            if phases
            else np.zeros(len(columns)),
            usd=np.array([each.usd_per_hour for each in columns]),
        )

    def _meshes_of(self, tasks: Tasks, listed: MeshList) -> MeshArrays:
        """Return these candidates as arrays."""

        def joined(of: Callable[[ClassMeshes], Floats]) -> Floats:
            return np.concatenate([np.zeros(0), *(of(part) for part in listed.parts)])

        # [num_meshes, 2]: one entry for each pool, filled part by part from arrays, without making an object of each
        # mesh. A mesh of one pool repeats its first entry, or has `lacking` in second place.
        def both(of: Callable[[ClassMeshes, int], Ints | int], lacking: int | None) -> Ints:
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
        # The empty arrays in front give the result its type and shape if the list has no parts.
        makes = [part.generating(self.cost_tables) for part in listed.parts]
        return MeshArrays(
            tasks=tasks,
            columns=listed,
            regions=regions,
            at_class=both(lambda part, pool: self.class_at[part.at[pool].key], -1),
            gpus=gpus,
            num=num,
            makes=np.concatenate([np.ones((0, 2), dtype=bool), *makes]),
            num_gpus=(gpus * num).sum(axis=1),
            train_s=joined(lambda part: part.seconds(TRAINING)),
            score_s=joined(lambda part: part.seconds(SCORING)),
            gen_s=joined(lambda part: part.seconds((Task.GENERATION,))),
            usd=joined(lambda part: part.usd_per_hour),
            usd_per_step=joined(lambda part: np.full(len(part), part.usd_per_step)),
        )

    def _transfers_of(self, trainer_region: int) -> TransferArrays:
        found = between.trainer_transfers(self.cost_tables, self.regions[trainer_region])
        transfers = [found.transfers.get(name) for name in self.regions]

        # [num_regions]; inf for a region without a route.
        def each(name: str) -> Floats:
            return np.array(
                [np.inf if transfer is None else getattr(transfer, name) for transfer in transfers], dtype=np.float64
            )

        link_s = each("link_s")
        # A version takes link time and half a round trip. They are kept apart, since only the first grows where regions
        # share the uplink.
        rtt_s = each("weights_s") - np.where(np.isfinite(link_s), link_s, 0.0)
        return TransferArrays(
            trainer_region=trainer_region,
            weights_s=each("weights_s"),
            half_rtt_s=rtt_s,
            link_s=link_s,
            up_s=found.uplink_s,
            trajectories_s=each("trajectories_s"),
            samples_per_s=each("samples_per_s"),
            down_per_s=found.samples_per_s,
            scoring_s=each("scoring_s"),
            training_s=each("training_s"),
            usd_version=each("usd_per_version"),
            usd_there=each("usd_per_step_from_trainer"),
            usd_back=each("usd_per_step_to_trainer"),
        )
