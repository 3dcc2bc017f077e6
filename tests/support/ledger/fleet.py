"""A whole job in fake time: a trainer, and one worker in each of three regions, which may stand still for a while."""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

from periplus.values.policy import Policy
from tests.support.ledger.checked import MAX_TOKENS, CheckedLedger, answer
from trainer.ledger.values import (
    Arrival,
    BatchReady,
    BatchWanted,
    ClockTicked,
    Event,
    Granted,
    JudgedResult,
    Lease,
    LeasesStarted,
    PolicyReached,
    ResultArrived,
    Revoked,
    RoomOffered,
    StepDone,
    WorkerJoined,
)

STEP_S, LINK_S, PUBLISH_S = 1.0, 0.1, 0.3


@dataclass(slots=True)
class Region:
    """A region's worker, which generates SLOTS samples at a time, `speed` times as fast as the others."""

    speed: float
    policy: Policy = field(default_factory=lambda: Policy(0, 0))
    queue: dict[int, Lease] = field(default_factory=dict)
    busy: int = 0
    stopped_until_s: float = 0.0


SLOTS = 8


class Fleet:
    """Three regions and a trainer. A sample is 0.5 to 2 s long, by its group and number and at any worker."""

    def __init__(self, *, speeds: tuple[float, float, float] = (1.0, 1.0, 1.0), bound: int = 2, **changed: Any) -> None:
        settings: dict[str, Any] = {
            "groups_per_step": 6,
            "group_size": 4,
            "steps": 10**6,
            "lease_timeout_s": 60.0,
            "max_hold_s": 600.0,
        }
        settings |= {"bound": bound, "intake_tokens": 10**5, "depth": None}
        self.ledger = CheckedLedger(**{**settings, **changed})
        self.bound = bound
        self.regions = {name: Region(speed) for name, speed in zip(("eu", "us", "asia"), speeds, strict=True)}
        self.batches_s: list[float] = []
        self.num_leases = self.num_hedges = 0
        self.arrivals: Counter[Arrival] = Counter()
        self._events: list[tuple[float, int, str, object]] = []  # when, order, in which region ("": trainer), what
        self._began: dict[int, Policy] = {}
        self._order = count()
        for name in self.regions:
            for event in (WorkerJoined(name, 1, name), PolicyReached(name, Policy(0, 0)), RoomOffered(name, 2 * SLOTS)):
                self._at(0.0, "", event)
        self._at(0.0, "", BatchWanted())
        self._at(1.0, "", ClockTicked())

    def run(self, until_s: float) -> None:
        """Let everything happen that happens until then."""
        while self._events[0][0] <= until_s:
            time_s, order, name, what = heapq.heappop(self._events)
            region = self.regions.get(name)
            if region is not None and region.stopped_until_s > time_s:
                heapq.heappush(self._events, (region.stopped_until_s, order, name, what))
                continue
            self.ledger.now_s = time_s
            if region is None:
                self._tell(what)  # type: ignore[arg-type]
            else:
                self._happens(name, region, what)
                self._start(name, region)

    def stop(self, name: str, seconds: float) -> None:
        self.regions[name].stopped_until_s = self.ledger.now_s + seconds

    def longest_pause_s(self, from_s: float, until_s: float) -> float:
        """The longest time between two batches of this span."""
        times_s = [time_s for time_s in self.batches_s if from_s <= time_s <= until_s]
        return max(after_s - before_s for before_s, after_s in pairwise([*times_s, until_s]))

    def _at(self, time_s: float, name: str, what: object) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), name, what))

    def _soon(self, name: str, what: object, after_s: float = LINK_S) -> None:
        self._at(self.ledger.now_s + after_s, name, what)

    def _tell(self, event: Event) -> None:
        if isinstance(event, ClockTicked):
            self._soon("", ClockTicked(), 0.5)
        for effect in self.ledger.tell(event):
            match effect:
                case Granted(name, leases):
                    self.num_leases += len(leases)
                    self.num_hedges += sum(lease.hedges > 0 for lease in leases)
                    self._soon(name, leases)
                case Revoked(name):
                    self._soon(name, effect)
                case JudgedResult(_, arrival):
                    self.arrivals[arrival] += 1
                case BatchReady(policy, results):
                    self.batches_s.append(self.ledger.now_s)
                    assert all(policy.version - result.oldest_version <= self.bound for result in results)
                    self._soon("", StepDone(), STEP_S)
                case _:
                    pass
        if isinstance(event, StepDone):
            for name in self.regions:
                self._soon(name, self.ledger.policy, PUBLISH_S)
            self._soon("", BatchWanted(), 0.0)

    def _happens(self, name: str, region: Region, what: object) -> None:
        match what:
            case Policy():
                region.policy = what
                self._soon("", PolicyReached(name, what))
            case Revoked(_, lease_ids):
                for lease_id in lease_ids:
                    region.queue.pop(lease_id, None)
            case Lease():
                region.busy -= 1
                tokens = 1 + int(seconds_of(what) * MAX_TOKENS / 3.0)
                self._soon("", ResultArrived(answer(what, self._began[what.lease_id], name, tokens)))
            case tuple():
                region.queue |= {lease.lease_id: lease for lease in what}

    def _start(self, name: str, region: Region) -> None:
        able = [lease for lease in region.queue.values() if lease.start_at <= region.policy]
        chosen = sorted(able, key=lambda lease: (lease.group, lease.sample))[: SLOTS - region.busy]
        if chosen:
            region.busy += len(chosen)
            for lease in chosen:
                del region.queue[lease.lease_id]
                self._began[lease.lease_id] = region.policy
                self._soon(name, lease, seconds_of(lease) / region.speed)
            self._soon("", LeasesStarted(name, tuple(lease.lease_id for lease in chosen), region.policy))


def seconds_of(lease: Lease) -> float:
    return 0.5 + 1.5 * ((lease.group * 7919 + lease.sample * 104729) % 101) / 100.0
