"""A discrete-event simulation of one trainer and its rollout workers, under a scheduler that is plugged in.

The scheduler sits beside the trainer. It is told messages (a worker joined, or was found dead; samples began or are
finished; the trainer is idle, or has done a step) and gives orders (start samples on a worker, cancel some, train on
these, drop those). Both travel to and from the workers in the time that the links take. What the scheduler believes is
its own affair: ages, losses and lengths are recorded here, from what happened.

- A worker decodes up to its slots at a time, each at a constant rate, and starts the waiting sample that is first in
  the order (group, sample) among those that its weights allow.
- New weights reach a region a fixed time after the step, and its samples that start from then on use them. One that is
  under way counts as of the version at its start: the oldest of its tokens, whether or not the engine swaps under it.
- A worker dies after an exponential time, with what it runs and holds; its scheduler hears of it after `detection_s`,
  another worker takes its place after `replacement_s`. Results that had been sent still arrive.
- A step takes `step_s`; the version rises by one when it is done.

Every attempt ends in exactly one way (`Fate`). Same seed, same run.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from bench.staleness.lengths import Lengths
from bench.staleness.world import World

TICK_S = 1.0
"""How often the scheduler is told that time has passed."""


class Fate(StrEnum):
    """How an attempt at a sample ended."""

    OPEN = "open"  # it has not
    TRAINED = "trained"
    DROPPED = "dropped"  # finished, and not used
    LOST = "lost"  # its worker died under it
    CANCELLED = "cancelled"  # cut while it was being produced
    VOID = "void"  # ended before it began: it cost nothing


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a sample. `key` is the scheduler's name for it."""

    key: int
    group: int
    sample: int
    number: int  # 0: the first one
    length: int
    worker: str
    start_at: int
    version: int = -1  # of the weights at its start; -1: not begun
    begin_s: float = -1.0
    end_s: float = -1.0  # when it was finished or cut
    tokens: float = 0.0  # produced when it ended
    fate: Fate = Fate.OPEN


# ---- messages to the scheduler ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """`room`: how many samples the worker offers to hold."""

    worker: str
    room: int
    version: int


@dataclass(frozen=True, slots=True)
class Left:
    worker: str


@dataclass(frozen=True, slots=True)
class Reached:
    """The worker has these weights."""

    worker: str
    version: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker did: in one message, for a sample that ends lets another begin."""

    worker: str
    finished: tuple[Attempt, ...]
    begun: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class BatchWanted:
    version: int


@dataclass(frozen=True, slots=True)
class StepDone:
    version: int


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


Message = Joined | Left | Reached | Progress | BatchWanted | StepDone | Ticked

# ---- orders of the scheduler -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Produce this sample, with weights of at least this version."""

    key: int
    group: int
    sample: int
    start_at: int


@dataclass(frozen=True, slots=True)
class Start:
    worker: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """`running` too: cut what is being produced, else only what waits."""

    worker: str
    keys: tuple[int, ...]
    running: bool


@dataclass(frozen=True, slots=True)
class Train:
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """These finished samples will not be used."""

    attempts: tuple[Attempt, ...]


Order = Start | Cancel | Train | Drop


class Scheduler(Protocol):
    """A policy of leasing and consuming."""

    def hears(self, message: Message, now_s: float) -> Sequence[Order]: ...


# ---- the simulation --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    place: int
    region: str
    slots: int
    version: int
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # heap of (group, sample, key)
    held: dict[int, Attempt] = field(default_factory=dict)  # waiting and running, by key
    running: dict[int, Attempt] = field(default_factory=dict)
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """One training step, and what it consumed: attempts and their tokens by age."""

    version: int
    begin_s: float
    samples_by_age: dict[int, int]
    tokens_by_age: dict[int, int]


class Simulator:
    """Owns the clock, the workers, the trainer and the record of all attempts."""

    def __init__(self, world: World, lengths: Lengths, scheduler: Scheduler, seed: int) -> None:
        self.world = world
        self.now_s = 0.0
        self.version = 0
        self.steps: list[Step] = []
        self.attempts: dict[int, list[Attempt]] = defaultdict(list)  # by group
        self.num_deaths = 0
        self._lengths, self._scheduler = lengths, scheduler
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._num_events = 0
        self._workers: dict[str, _Worker] = {}
        self._region_version = dict.fromkeys(world.links, 0)
        self._group_lengths: dict[int, Sequence[int]] = {}
        self._num_joined = 0
        self._outage: tuple[str, float] = ("", 0.0)  # region, until
        self._is_training = False
        for place in range(len(world.worker_regions)):
            self._join(place)
        self._after(0.0, self._want, None)
        self._after(TICK_S, self._tick, None)
        if world.outages:
            self._after(world.outages.every_s, self._cut_off, 0)

    def run(self, until_version: int) -> None:
        """Until this version exists. Raises: RuntimeError when nothing can happen any more, or nothing gets trained."""
        idle_limit_s = self.now_s + 1e3 * self.world.step_s + 1e5
        while self.version < until_version:
            if self.now_s > idle_limit_s:
                raise RuntimeError(f"version {self.version} was never left: the scheduler is stuck")
            before = self.version
            self.now_s, _, action, argument = heapq.heappop(self._events)
            action(argument)
            if self.version != before:
                idle_limit_s = self.now_s + 1e3 * self.world.step_s + 1e5

    def _after(self, delay_s: float, action: Callable[..., None], argument: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._num_events, action, argument))

    # ---- messages and orders --------------------------------------------------------------------------------------

    def _travel(self, region: str, delay_s: float, action: Callable[..., None], argument: Any) -> None:
        """Over the region's link, which may be cut off for a while."""
        cut_off, until_s = self._outage
        wait_s = max(0.0, until_s - self.now_s) if region == cut_off else 0.0
        self._after(wait_s + delay_s, action, argument)

    def _tell(self, message: Message) -> None:
        for order in self._scheduler.hears(message, self.now_s):
            match order:
                case Start(worker, asks):
                    self._start(worker, asks)
                case Cancel(worker, keys, running):
                    region = self._workers[worker].region
                    self._travel(region, self.world.message_s(region), self._cancel, (worker, keys, running))
                case Train(attempts):
                    self._train(attempts)
                case Drop(attempts):
                    for attempt in attempts:
                        assert attempt.end_s >= 0.0, "dropped before it was finished"
                        self._end(attempt, Fate.DROPPED)

    def _send_up(self, worker: _Worker, message: Message, num_tokens: int = 0) -> None:
        self._travel(worker.region, self.world.result_s(worker.region, num_tokens), self._tell, message)

    def _start(self, worker: str, asks: tuple[Ask, ...]) -> None:
        attempts = []
        for ask in asks:
            if ask.group not in self._group_lengths:
                self._group_lengths[ask.group] = self._lengths.group(ask.group)
            earlier = self.attempts[ask.group]
            number = sum(attempt.sample == ask.sample for attempt in earlier)
            length = (
                self._lengths.again(ask.group, ask.sample, number)
                if number
                else self._group_lengths[ask.group][ask.sample]
            )
            attempt = Attempt(ask.key, ask.group, ask.sample, number, length, worker, ask.start_at)
            earlier.append(attempt)
            attempts.append(attempt)
        region = self._workers[worker].region
        self._travel(region, self.world.message_s(region), self._arrive, (worker, attempts))

    @staticmethod
    def _end(attempt: Attempt, fate: Fate) -> None:
        assert attempt.fate is Fate.OPEN, f"{attempt} ends again as {fate}"
        attempt.fate = fate

    # ---- workers --------------------------------------------------------------------------------------------------

    def _join(self, place: int) -> None:
        region = self.world.worker_regions[place]
        self._num_joined += 1
        worker = _Worker(
            name=f"w{place:02}.{self._num_joined:04}",
            place=place,
            region=region,
            slots=self.world.slots[place],
            version=self._region_version[region],
        )
        self._workers[worker.name] = worker
        self._send_up(worker, Joined(worker.name, self.world.room(place), worker.version))
        if self.world.deaths_per_hour > 0.0:
            self._after(self._rng.expovariate(self.world.deaths_per_hour / 3600.0), self._die, worker)

    def _die(self, worker: _Worker) -> None:
        worker.is_alive = False
        self.num_deaths += 1
        for attempt in worker.held.values():
            self._stop(attempt, Fate.LOST)
        worker.held, worker.running, worker.waiting = {}, {}, []
        self._after(self.world.detection_s, lambda gone: self._send_up(gone, Left(gone.name)), worker)
        self._after(self.world.replacement_s, self._join, worker.place)

    def _stop(self, attempt: Attempt, fate: Fate) -> None:
        """The attempt is cut here and now."""
        if attempt.version < 0:
            self._end(attempt, Fate.VOID)
            return
        attempt.end_s = self.now_s
        attempt.tokens = (self.now_s - attempt.begin_s) * self.world.tokens_per_s
        self._end(attempt, fate)

    def _arrive(self, argument: tuple[str, list[Attempt]]) -> None:
        worker = self._workers[argument[0]]
        for attempt in argument[1]:
            if not worker.is_alive:
                self._end(attempt, Fate.VOID)
                continue
            worker.held[attempt.key] = attempt
            heapq.heappush(worker.waiting, (attempt.group, attempt.sample, attempt.key))
        if worker.is_alive:
            self._begin(worker, ())

    def _cancel(self, argument: tuple[str, tuple[int, ...], bool]) -> None:
        worker = self._workers[argument[0]]
        for key in argument[1]:
            attempt = worker.held.get(key)
            if attempt is not None and (argument[2] or attempt.version < 0):
                del worker.held[key]
                worker.running.pop(key, None)
                self._stop(attempt, Fate.CANCELLED)
        if worker.is_alive:
            self._begin(worker, ())

    def _begin(self, worker: _Worker, finished: tuple[Attempt, ...]) -> None:
        """Fill the slots, and report."""
        begun: list[Attempt] = []
        later: list[tuple[int, int, int]] = []
        while worker.waiting and len(worker.running) < worker.slots:
            entry = heapq.heappop(worker.waiting)
            attempt = worker.held.get(entry[2])
            if attempt is None:
                continue
            if attempt.start_at > worker.version:
                later.append(entry)
                continue
            attempt.version, attempt.begin_s = worker.version, self.now_s
            worker.running[attempt.key] = attempt
            begun.append(attempt)
            self._after(attempt.length / self.world.tokens_per_s, self._finish, (worker, attempt))
        for entry in later:
            heapq.heappush(worker.waiting, entry)
        if begun or finished:
            num_tokens = sum(attempt.length for attempt in finished)
            self._send_up(worker, Progress(worker.name, finished, tuple(begun)), num_tokens)

    def _finish(self, argument: tuple[_Worker, Attempt]) -> None:
        worker, attempt = argument
        if worker.running.pop(attempt.key, None) is None:  # died, or was cancelled
            return
        del worker.held[attempt.key]
        attempt.end_s, attempt.tokens = self.now_s, float(attempt.length)
        self._begin(worker, (attempt,))

    def _cut_off(self, turn: int) -> None:
        outages = self.world.outages
        assert outages is not None
        remote = [region for region, link in self.world.links.items() if link.one_way_s > 0.0]
        self._outage = (remote[turn % len(remote)], self.now_s + outages.length_s)
        self._after(outages.every_s, self._cut_off, turn + 1)

    # ---- the trainer ----------------------------------------------------------------------------------------------

    def _tick(self, _: None) -> None:
        self._tell(Ticked())
        self._after(TICK_S, self._tick, None)

    def _want(self, _: None) -> None:
        self._tell(BatchWanted(self.version))

    def _train(self, attempts: tuple[Attempt, ...]) -> None:
        assert not self._is_training, "two batches at a time"
        assert len(attempts) == self.world.groups_per_step * self.world.group_size, "not a batch"
        samples: dict[int, int] = defaultdict(int)
        tokens: dict[int, int] = defaultdict(int)
        for attempt in attempts:
            assert attempt.end_s >= 0.0, "trained before it was finished"
            self._end(attempt, Fate.TRAINED)
            samples[self.version - attempt.version] += 1
            tokens[self.version - attempt.version] += attempt.length
        self.steps.append(Step(self.version, self.now_s, dict(samples), dict(tokens)))
        self._is_training = True
        self._after(self.world.step_s, self._done, None)

    def _done(self, _: None) -> None:
        self._is_training = False
        self.version += 1
        for region in self.world.links:
            self._travel(region, self.world.weights_s(region), self._publish, (region, self.version))
        self._tell(StepDone(self.version))
        self._tell(BatchWanted(self.version))

    def _publish(self, argument: tuple[str, int]) -> None:
        region, version = argument
        self._region_version[region] = max(self._region_version[region], version)
        for worker in self._workers.values():
            if worker.region == region and worker.is_alive and worker.version < version:
                worker.version = version
                self._send_up(worker, Reached(worker.name, version))
                self._begin(worker, ())
