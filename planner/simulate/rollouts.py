"""Generation: who has which samples, when a group is leased, what happens when weights come and devices go.

A pool's engines take from one queue. When it is empty and an engine has a free slot, the pool leases another group of
the class of its version, if the window has room and the pool has not had its part of the step. Where several pools
could lease, the one that is emptiest for its size does. At eta 0, and where generation takes turns with training, a
whole step's groups are dealt over the pools instead. What is lost with a device is begun anew by the same pool, or, if
nothing of that is left, by another one whose version is not older than the group's class.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from planner.question.workload import Task, Workload
from planner.simulate.agenda import Agenda
from planner.simulate.draws import Draws
from planner.simulate.engine import Engine, Sample
from planner.simulate.gantt import Gantt
from planner.simulate.shares import Curve, deal_groups
from planner.simulate.turns import Turns
from planner.simulate.window import Window


@dataclass(slots=True)
class Run:
    """One leased group."""

    index: int
    version: int
    """Its class: the oldest version that a token of it may have."""
    leased_s: float
    left: int
    tokens: list[int] = field(default_factory=list)
    """Of each whole sample, its prompt included."""
    ages: Counter[int] = field(default_factory=Counter)
    """Completion tokens by version."""


@dataclass(slots=True, eq=False)
class Worker:
    """An engine and its place."""

    engine: Engine
    pool: "GenPool"
    unit: int
    is_shown: bool
    """Whether its spans are recorded: one replica a unit."""
    began_s: float | None = None


@dataclass(slots=True, eq=False)
class GenPool:
    """One pool that generates."""

    key: str
    region: str
    lag_s: float
    """That the deal of a step counts for its region, from a version's publication to its samples' being home."""
    curve: Curve | None
    """Where a whole step is generated at once."""
    load_s: float
    """From a version's arrival in the region until its engines have it."""
    max_running: int
    """Of all engines together, as many as they are asked to run."""
    quota: float
    """Groups that it is given with each version, at most, where a whole step is not generated at once."""
    credit: float
    """Of that, what is left."""
    workers: list[Worker] = field(default_factory=list)
    queue: deque[Sample] = field(default_factory=deque)
    left_to_lease: int = 0
    """Groups of the step's deal, where a whole step is generated at once."""
    version: int = 0
    """That its engines have."""
    has_leased: bool = True
    """With that version, or it is the first."""

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.engine.is_alive]

    @property
    def num_alive_units(self) -> int:
        return sum(worker.is_shown for worker in self.alive)


class Rollouts:
    """`deliver(run, region)` is called when a group's last sample is whole."""

    def __init__(
        self,
        workload: Workload,
        agenda: Agenda,
        draws: Draws,
        window: Window,
        pools: Sequence[GenPool],
        deliver: Callable[[Run, str], None],
        gantt: Gantt,
    ) -> None:
        self.pools = tuple(pools)
        self.group_s: dict[str, list[float]] = {pool.region: [] for pool in pools}
        self.units_lost = 0
        self.samples_lost = 0
        self._workload = workload
        self._agenda = agenda
        self._draws = draws
        self._window = window
        self._deliver = deliver
        self._gantt = gantt
        self._runs: dict[int, Run] = {}
        self._num_leased = 0
        self._orphans: deque[Sample] = deque()
        self._dealt = -1
        self._by_turns: Turns | None = None
        self._has_turn = False
        self._release: Callable[[], None] | None = None

    def deal(self, version: int) -> None:
        """Which pool makes how many groups of the step that this version's weights generate."""
        self._dealt = version
        pools = [pool for pool in self.pools if pool.alive] or list(self.pools)
        curves = [(max(1, len(pool.alive)), pool.lag_s if version else 0.0, pool.curve) for pool in pools]
        known = [(num, lag, each) for num, lag, each in curves if each is not None]
        dealt = deal_groups(self._workload.prompts_per_step, self._workload.group_size, known)
        for pool, num in zip(pools, dealt, strict=True):
            pool.left_to_lease = num

    def arrive(self, pools: Sequence[GenPool], version: int) -> None:
        """A version is in the regions of some pools; their engines take it between two steps once they have it."""
        if self._by_turns:
            for pool in pools:
                self._load(pool, version)
            self._ask_for_turn()
            return
        for pool in pools:
            self._agenda.at(self._agenda.now_s + pool.load_s, partial(self._loaded, pool, version))

    def _loaded(self, pool: GenPool, version: int) -> None:
        self._load(pool, version)
        self.feed()

    def _load(self, pool: GenPool, version: int) -> None:
        pool.version = version
        pool.credit = min(pool.credit, 1.0 + pool.quota) + pool.quota
        pool.has_leased = False
        for worker in pool.alive:
            self._cut(worker)
            worker.engine.take_weights(version, self._agenda.now_s, 0.0)
            self._due_next(worker)

    def uses(self, region: str) -> bool:
        """Whether a region generates with the version that it has."""
        return self._workload.eta == 0 or any(pool.has_leased for pool in self.pools if pool.region == region)

    def take_turns(self, turns: Turns) -> None:
        """From now on a whole step is generated at once, when it is the devices' turn."""
        self._by_turns = turns
        self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        """One step's groups at a time, and only if all of them have room."""
        oldest = min(pool.version for pool in self.pools)
        if self._by_turns and not self._has_turn and self._window.room(oldest) >= self._workload.prompts_per_step:
            self._has_turn = True
            self._by_turns.request(self._begin_turn)

    def _begin_turn(self, release: Callable[[], None]) -> None:
        """What turned into an engine loads its weights first."""

        def begin() -> None:
            self._release = release
            self.deal(max(pool.version for pool in self.pools))
            self.feed()

        self._agenda.at(self._agenda.now_s + max(pool.load_s for pool in self.pools), begin)

    def feed(self) -> None:
        """Leases what the window has room for, and starts what has a slot."""
        if self._by_turns and not self._release:
            self._ask_for_turn()
            return
        self._adopt()
        open_pools = [(self._fullness(pool), i) for i, pool in enumerate(self.pools) if self._has_slots(pool)]
        heapq.heapify(open_pools)
        while open_pools:
            _, i = heapq.heappop(open_pools)
            pool = self.pools[i]
            if self._lease(pool) and self._has_slots(pool):
                heapq.heappush(open_pools, (self._fullness(pool), i))
        for pool in self.pools:
            self._spread(pool)

    def pause(self) -> float:
        """Stops all engines; when their devices are free."""
        free_s = self._agenda.now_s
        for pool in self.pools:
            for worker in pool.alive:
                free_s = max(free_s, worker.engine.pause(self._agenda.now_s))
                self._cut(worker)
        return free_s

    def resume(self) -> None:
        for pool in self.pools:
            for worker in pool.alive:
                worker.engine.resume(self._agenda.now_s)
                self._due_next(worker)
        self.feed()

    def set_available(self, pool: GenPool, num_units: int, is_paused: bool) -> None:
        """So many of a pool's units are there from now on; the last ones go first."""
        lost: list[Sample] = []
        for worker in pool.workers:
            stays = worker.unit < num_units
            if worker.engine.is_alive and not stays:
                self._cut(worker)
                lost += worker.engine.vanish()
                self.units_lost += worker.is_shown
            elif stays and not worker.engine.is_alive:
                worker.engine.return_at(pool.version, self._agenda.now_s, is_paused)
        self.samples_lost += len(lost)
        pool.queue.extendleft(reversed(lost))
        if not pool.alive:
            self._orphans.extend(pool.queue)
            pool.queue.clear()
            others = [each for each in self.pools if each.alive]
            if others and pool.left_to_lease:
                min(others, key=self._fullness).left_to_lease += pool.left_to_lease
                pool.left_to_lease = 0
        self.feed()

    # ---- one pool ----

    def _fullness(self, pool: GenPool) -> float:
        return (sum(worker.engine.num_running for worker in pool.alive) + len(pool.queue)) / pool.max_running

    def _has_slots(self, pool: GenPool) -> bool:
        alive = pool.alive
        free = sum(worker.engine.max_running - worker.engine.num_running for worker in alive)
        paused = all(worker.engine.is_paused for worker in alive)
        return (free > len(pool.queue) or pool.left_to_lease > 0) and not paused

    def _lease(self, pool: GenPool) -> bool:
        """One more group for that pool's queue."""
        version = pool.version
        if pool.curve is not None:
            if not pool.left_to_lease or (version != self._dealt and not self._by_turns):
                return False
            pool.left_to_lease -= 1
        elif pool.credit < 1 or self._window.room(version) < 1:
            return False
        self._window.open(version)
        pool.credit -= 1
        pool.has_leased = True
        drawn = self._draws.prompt(self._num_leased)
        run = Run(index=self._num_leased, version=version, leased_s=self._agenda.now_s, left=len(drawn.completions))
        self._runs[run.index] = run
        self._num_leased += 1
        for length in drawn.completions:
            pool.queue.append(Sample(group=run.index, prompt=drawn.tokens, length=length))
        return True

    def _spread(self, pool: GenPool) -> None:
        """Gives the queue to engines with free slots, the emptiest first."""
        if not pool.queue:
            return
        workers = pool.alive
        first = pool.queue[0]
        idle = [(worker.engine.num_running, i) for i, worker in enumerate(workers) if worker.engine.has_room(first)]
        if not idle:
            return
        heapq.heapify(idle)
        given: dict[int, deque[Sample]] = {}
        while pool.queue and idle:
            running, i = idle[0]
            given.setdefault(i, deque()).append(pool.queue.popleft())
            if running + 1 < workers[i].engine.max_running:
                heapq.heapreplace(idle, (running + 1, i))
            else:
                heapq.heappop(idle)
        back: list[Sample] = []
        for i in sorted(given):
            self._admit(workers[i], given[i])
            back += given[i]
        pool.queue.extendleft(reversed(back))

    def _admit(self, worker: Worker, queue: deque[Sample]) -> None:
        if worker.engine.admit_from(queue, self._agenda.now_s, len(queue)) or queue:
            self._due_next(worker)

    def _due_next(self, worker: Worker) -> None:
        engine = worker.engine
        if engine.num_running and worker.began_s is None and not engine.is_paused:
            worker.began_s = self._agenda.now_s
        due_s = engine.due_s()
        if due_s < math.inf:
            epoch = engine.epoch
            self._agenda.at(due_s, lambda: self._due(worker, epoch))

    def _due(self, worker: Worker, epoch: int) -> None:
        engine, pool = worker.engine, worker.pool
        if engine.epoch != epoch:
            return
        whole, put_back = engine.finish()
        for sample in whole:
            self._account(sample, pool.region)
        queue = pool.queue
        if put_back:
            queue.appendleft(put_back)
        else:
            while queue or self._lease(pool):
                if not engine.admit_from(queue, self._agenda.now_s, len(queue)):
                    break
        if not engine.num_running:
            self._cut(worker)
        self._due_next(worker)
        if queue and len(pool.workers) > 1:
            self._spread(pool)

    def _account(self, sample: Sample, region: str) -> None:
        run = self._runs[sample.group]
        run.left -= 1
        run.tokens.append(sample.prompt + sample.length)
        for version, tokens in sample.ages:
            run.ages[version] += tokens
        if not run.left:
            del self._runs[run.index]
            self.group_s[region].append(self._agenda.now_s - run.leased_s)
            self._deliver(run, region)
        if self._release and not self._runs and not any(pool.left_to_lease for pool in self.pools):
            release, self._release, self._has_turn = self._release, None, False
            self._agenda.at(self._agenda.now_s, release)
            self._ask_for_turn()

    def _adopt(self) -> None:
        """Samples whose devices are gone go to the emptiest pool that may have them."""
        waiting, self._orphans = self._orphans, deque()
        for sample in waiting:
            oldest = self._runs[sample.group].version
            fit = [pool for pool in self.pools if pool.alive and pool.version >= oldest]
            if fit:
                min(fit, key=self._fullness).queue.append(sample)
            else:
                self._orphans.append(sample)

    def _cut(self, worker: Worker) -> None:
        """Ends the worker's bar, if it has one."""
        if worker.began_s is not None and worker.is_shown:
            pool = worker.pool
            self._gantt.add(
                region=pool.region, place=f"{pool.key}#{worker.unit}", what=Task.GENERATION,
                begin_s=worker.began_s, end_s=self._agenda.now_s, step=pool.version,
            )  # fmt: skip
        worker.began_s = None
