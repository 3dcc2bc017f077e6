"""Generation in a run: which pool has which samples, when groups are leased, and what weights and faults change.

The engines of a pool take samples from one queue. When the queue is empty and an engine has a free slot, the pool
leases another group of its version's class, if the staleness window has room and the pool has credit left. If several
pools could lease, the one that is emptiest relative to its size does.

At eta 0, and where generation shares the devices with training, the groups of a whole step are split over the pools in
advance instead: generation is a *phase* of each step. Samples that are lost with a device are started again by the same
pool. If the pool has no device left, another pool takes them whose version is not older than the group's class.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from planner.problem.workload import Workload
from planner.simulate.event_queue import EventQueue
from planner.simulate.generation.draws import Draws
from planner.simulate.generation.engine import SimulatedEngine, SimulatedSample
from planner.simulate.generation.group_shares import Curve, split_groups
from planner.simulate.generation.staleness_window import Window
from planner.simulate.generation.time_sharing import DeviceQueue


@dataclass(slots=True)
class LeasedGroup:
    """One group of samples that a pool has leased, from its lease until it is trained on."""

    index: int
    version: int
    """Class of the group: the oldest version that one of its tokens may have."""
    leased_s: float
    num_incomplete: int
    """Number of samples that are not complete."""
    tokens: list[int] = field(default_factory=list)
    """Tokens of each complete sample, its prompt included."""
    ages: Counter[int] = field(default_factory=Counter)
    """Number of completion tokens by version."""


@dataclass(slots=True, eq=False)
class PlacedEngine:
    """One engine and its place in a pool."""

    engine: SimulatedEngine
    pool: "GenPool"
    unit: int
    is_first_replica: bool
    """Whether it is the first replica of its unit. Units are counted by these."""


@dataclass(slots=True, eq=False)
class GenPool:
    """State of one pool that generates."""

    key: str
    region: str
    lag_s: float
    """Seconds from a version's publication to the arrival of its samples, as the split of a synchronous step counts
    them."""
    curve: Curve | None
    """Phase curve of one replica if a whole step is generated at once, otherwise None."""
    load_s: float
    """Seconds from a version's arrival in the region until the engines have it."""
    max_running: int
    """Largest number of running sequences of all engines together."""
    quota: float
    """Largest number of groups that the pool may lease per version, if generation is continuous."""
    credit: float
    """Groups that it may still lease."""
    workers: list[PlacedEngine] = field(default_factory=list)
    queue: deque[SimulatedSample] = field(default_factory=deque)
    left_to_lease: int = 0
    """Groups of the current step that it still has to lease, if a whole step is generated at once."""
    version: int = 0
    """Version that its engines have."""
    has_leased: bool = True
    """Whether it has leased anything with that version. It holds for the first version."""

    @property
    def alive(self) -> list[PlacedEngine]:
        """Engines whose devices are present."""
        return [worker for worker in self.workers if worker.engine.is_alive]

    @property
    def num_alive_units(self) -> int:
        """Number of units whose devices are present."""
        return sum(worker.is_first_replica for worker in self.alive)


class Rollouts:
    """State of generation in one run.

    `deliver(group, region)` is called when the last sample of a group is complete.
    """

    def __init__(
        self,
        workload: Workload,
        events: EventQueue,
        draws: Draws,
        window: Window,
        pools: Sequence[GenPool],
        deliver: Callable[[LeasedGroup, str], None],
    ) -> None:
        self.pools = tuple(pools)
        self.group_s: dict[str, list[float]] = {pool.region: [] for pool in pools}
        self.units_lost = 0
        self.samples_lost = 0
        self._workload = workload
        self._events = events
        self._draws = draws
        self._window = window
        self._deliver = deliver
        self._open_groups: dict[int, LeasedGroup] = {}
        """Groups with samples that are not complete, by index."""
        self._num_leased = 0
        self._stranded: deque[SimulatedSample] = deque()
        """Samples whose pool has no devices left, until another pool may make them."""
        self._split_version = -1
        """Version for which the groups of a step were last split over the pools."""
        self._shared_queue: DeviceQueue | None = None
        """Queue of the devices that generation shares with training. None if it does not."""
        self._has_requested = False
        """Whether a phase is queued or runs, if the devices are shared."""
        self._release: Callable[[], None] | None = None
        """Function that releases the shared devices while a phase runs, otherwise None."""

    def split_step(self, version: int) -> None:
        """Split the groups of the step that this version generates over the pools."""
        self._split_version = version
        # If no pool has devices, the groups are split over all of them: their devices may return.
        pools = [pool for pool in self.pools if pool.alive] or list(self.pools)
        # Version 0 is everywhere at the start, so no pool starts late.
        curves = [(max(1, len(pool.alive)), pool.lag_s if version else 0.0, pool.curve) for pool in pools]
        # Every pool has a curve when whole steps are generated at once; this tells the type checker so.
        known = [(num, lag, each) for num, lag, each in curves if each is not None]
        num_groups_by_pool = split_groups(self._workload.prompts_per_step, self._workload.group_size, known)
        for pool, num in zip(pools, num_groups_by_pool, strict=True):
            pool.left_to_lease = num

    def arrive(self, pools: Sequence[GenPool], version: int) -> None:
        """Note that a version has arrived in the regions of some pools. Their engines take it once it is loaded."""
        if self._shared_queue:
            # The devices are not generation's now, so loading takes no time here: its seconds are spent at the start of
            # the phase.
            for pool in pools:
                self._load(pool, version)
            self._request_devices()
            return
        for pool in pools:
            self._events.at(self._events.now_s + pool.load_s, partial(self._loaded, pool, version))

    def _loaded(self, pool: GenPool, version: int) -> None:
        self._load(pool, version)
        self.refill()

    def _load(self, pool: GenPool, version: int) -> None:
        pool.version = version
        # A pool that waited for others may catch up on the quota of one version and one group, not more: otherwise it
        # would lease too many groups of one class.
        pool.credit = min(pool.credit, 1.0 + pool.quota) + pool.quota
        pool.has_leased = False
        for worker in pool.alive:
            worker.engine.take_weights(version, self._events.now_s, 0.0)
            # The change of weights has made the engine's scheduled event void.
            self._due_next(worker)

    def uses(self, region: str) -> bool:
        """Return whether a region generates with the version that it has."""
        return self._workload.eta == 0 or any(pool.has_leased for pool in self.pools if pool.region == region)

    def share_devices(self, queue: DeviceQueue) -> None:
        """Generate a whole step at once from now on, in phases that are requested from the queue of the devices."""
        self._shared_queue = queue
        self._request_devices()

    def _request_devices(self) -> None:
        """Request a phase for the groups of one step, if the window has room for all of them."""
        # The whole phase must fit into the window of the oldest version that one of the pools has.
        oldest = min(pool.version for pool in self.pools)
        if (
            self._shared_queue
            and not self._has_requested
            and self._window.room(oldest) >= self._workload.prompts_per_step
        ):
            self._has_requested = True
            self._shared_queue.request(self._begin_phase)

    def _begin_phase(self, release: Callable[[], None]) -> None:
        """Load the weights into the engines, then start the step's groups."""

        def begin() -> None:
            # From here on `refill` may lease and start samples; the last sample of the step calls `release`.
            self._release = release
            self.split_step(max(pool.version for pool in self.pools))
            self.refill()

        self._events.at(self._events.now_s + max(pool.load_s for pool in self.pools), begin)

    def refill(self) -> None:
        """Lease groups as far as window and slots allow, and start samples in free slots."""
        if self._shared_queue and not self._release:
            # Generation does not hold the devices: nothing may start.
            self._request_devices()
            return
        self._reassign_stranded()
        # Groups go one by one to the pool that is emptiest relative to its size. The index breaks ties.
        open_pools = [(self._fullness(pool), i) for i, pool in enumerate(self.pools) if self._has_slots(pool)]
        heapq.heapify(open_pools)
        while open_pools:
            _, i = heapq.heappop(open_pools)
            pool = self.pools[i]
            # A pool that may not lease is out for this call: others' leases only take room away.
            if self._lease(pool) and self._has_slots(pool):
                heapq.heappush(open_pools, (self._fullness(pool), i))
        for pool in self.pools:
            self._distribute(pool)

    def pause(self) -> float:
        """Stop all engines. Return the time at which their devices are free."""
        free_s = self._events.now_s
        for pool in self.pools:
            for worker in pool.alive:
                free_s = max(free_s, worker.engine.pause(self._events.now_s))
        return free_s

    def resume(self) -> None:
        """Continue all engines."""
        for pool in self.pools:
            for worker in pool.alive:
                worker.engine.resume(self._events.now_s)
                self._due_next(worker)
        self.refill()

    def set_available(self, pool: GenPool, num_units: int, is_paused: bool) -> None:
        """Make exactly `num_units` of a pool's units present. Units with the highest numbers vanish first."""
        lost: list[SimulatedSample] = []
        for worker in pool.workers:
            # All replicas of a unit vanish or return together.
            stays = worker.unit < num_units
            if worker.engine.is_alive and not stays:
                lost += worker.engine.vanish()
                self.units_lost += worker.is_first_replica
            elif stays and not worker.engine.is_alive:
                # Returned devices load the version that the pool has now.
                worker.engine.return_at(pool.version, self._events.now_s, is_paused)
        self.samples_lost += len(lost)
        # To the front of the queue in their old order, because their groups are older than what is queued.
        pool.queue.extendleft(reversed(lost))
        if not pool.alive:
            # Nobody of this pool can make its samples: other pools may, if their version allows it
            # (`_reassign_stranded`).
            self._stranded.extend(pool.queue)
            pool.queue.clear()
            others = [each for each in self.pools if each.alive]
            # Its share of the step is leased by the emptiest other pool. Without one it keeps the share until devices
            # return.
            if others and pool.left_to_lease:
                min(others, key=self._fullness).left_to_lease += pool.left_to_lease
                pool.left_to_lease = 0
        self.refill()

    # ---- one pool ----

    def _fullness(self, pool: GenPool) -> float:
        return (sum(worker.engine.num_running for worker in pool.alive) + len(pool.queue)) / pool.max_running

    def _has_slots(self, pool: GenPool) -> bool:
        alive = pool.alive
        # Samples in the queue will fill some of the free slots. A pool in a phase may lease its whole share at once.
        free = sum(worker.engine.max_running - worker.engine.num_running for worker in alive)
        # `all` of no engines is true: a pool without devices has no slots.
        paused = all(worker.engine.is_paused for worker in alive)
        return (free > len(pool.queue) or pool.left_to_lease > 0) and not paused

    def _lease(self, pool: GenPool) -> bool:
        """Lease one more group for the pool's queue. Return False if it may not."""
        version = pool.version
        if pool.curve is not None:
            # In a synchronous step, a pool whose weights are still those of the last step waits for the new ones.
            if not pool.left_to_lease or (version != self._split_version and not self._shared_queue):
                return False
            pool.left_to_lease -= 1
        # In continuous generation both the pool's quota and the staleness window limit the leases.
        elif pool.credit < 1 or self._window.room(version) < 1:
            return False
        self._window.open(version)
        pool.credit -= 1
        pool.has_leased = True
        # Lengths belong to the number of the lease, so the same seed gives the same prompts in the same order.
        drawn = self._draws.prompt(self._num_leased)
        group = LeasedGroup(
            index=self._num_leased, version=version, leased_s=self._events.now_s, num_incomplete=len(drawn.completions)
        )
        self._open_groups[group.index] = group
        self._num_leased += 1
        for length in drawn.completions:
            pool.queue.append(SimulatedSample(group=group.index, prompt=drawn.tokens, length=length))
        return True

    def _distribute(self, pool: GenPool) -> None:
        """Give queued samples to engines with free slots, the emptiest engine first."""
        if not pool.queue:
            return
        workers = pool.alive
        first = pool.queue[0]
        # A heap of (running sequences, index of the engine) with the engines that can take the first sample.
        idle = [(worker.engine.num_running, i) for i, worker in enumerate(workers) if worker.engine.has_room(first)]
        if not idle:
            return
        heapq.heapify(idle)
        # Samples are first only assigned, so that each engine reads all of its new prompts together.
        given: dict[int, deque[SimulatedSample]] = {}
        while pool.queue and idle:
            running, i = idle[0]
            given.setdefault(i, deque()).append(pool.queue.popleft())
            if running + 1 < workers[i].engine.max_running:
                heapq.heapreplace(idle, (running + 1, i))
            else:
                heapq.heappop(idle)
        # An engine leaves samples in its part that its caches have no room for. They return to the front of the queue.
        back: list[SimulatedSample] = []
        for i in sorted(given):
            self._admit(workers[i], given[i])
            back += given[i]
        pool.queue.extendleft(reversed(back))

    def _admit(self, worker: PlacedEngine, queue: deque[SimulatedSample]) -> None:
        # An engine that admits nothing may still have moved to the end of its step, which voids its event. So the event
        # is scheduled again whenever samples are left over.
        if worker.engine.admit_from(queue, self._events.now_s, len(queue)) or queue:
            self._due_next(worker)

    def _due_next(self, worker: PlacedEngine) -> None:
        engine = worker.engine
        due_s = engine.due_s()
        if due_s < math.inf:
            # The event is void if the engine has changed by then.
            epoch = engine.epoch
            self._events.at(due_s, lambda: self._due(worker, epoch))

    def _due(self, worker: PlacedEngine, epoch: int) -> None:
        """Handle the next completion of an engine, or full caches, and refill its slots."""
        engine, pool = worker.engine, worker.pool
        if engine.epoch != epoch:
            return
        # Either some samples are complete or the caches are full and one sample was put back.
        whole, put_back = engine.finish()
        for sample in whole:
            self._record(sample, pool.region)
        queue = pool.queue
        if put_back:
            # A full engine gets nothing new. The sample is first in the queue once there is room.
            queue.appendleft(put_back)
        else:
            # Take queued samples first, then lease groups one at a time as long as the engine admits any of their
            # samples.
            while queue or self._lease(pool):
                if not engine.admit_from(queue, self._events.now_s, len(queue)):
                    break
        self._due_next(worker)
        # A leased group may have more samples than this engine took: other engines may have free slots.
        if queue and len(pool.workers) > 1:
            self._distribute(pool)

    def _record(self, sample: SimulatedSample, region: str) -> None:
        """Record a complete sample.

        Deliver its group if it was the last sample of the group. End the phase if it was the last one of the step.
        """
        group = self._open_groups[sample.group]
        group.num_incomplete -= 1
        group.tokens.append(sample.prompt + sample.length)
        for version, tokens in sample.ages:
            group.ages[version] += tokens
        if not group.num_incomplete:
            del self._open_groups[group.index]
            self.group_s[region].append(self._events.now_s - group.leased_s)
            self._deliver(group, region)
        # A phase ends when all groups of the step are complete. The devices are released by an event of their own, so
        # that the engine's event under way is handled to its end first.
        if self._release and not self._open_groups and not any(pool.left_to_lease for pool in self.pools):
            release, self._release, self._has_requested = self._release, None, False
            self._events.at(self._events.now_s, release)
            self._request_devices()

    def _reassign_stranded(self) -> None:
        """Give samples whose pool has no devices left to the emptiest pool that may make them."""
        waiting, self._stranded = self._stranded, deque()
        for sample in waiting:
            oldest = self._open_groups[sample.group].version
            # No token may be older than the class of its group.
            fit = [pool for pool in self.pools if pool.alive and pool.version >= oldest]
            if fit:
                min(fit, key=self._fullness).queue.append(sample)
            else:
                self._stranded.append(sample)
