"""An oracle of the ledger: what it must have done, worked out from its events and effects alone.

The oracle follows the tree of forks, who holds which lease, which samples are in, and what each fork consumed, with
arithmetic of its own. After every event the ledger's state must equal it, and each batch must keep the promises.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import assert_never

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from tests.support.ledger.surroundings import Key
from trainer.ledger import consumption
from trainer.ledger.machine import Ledger
from trainer.ledger.values import (
    EVAL_GROUPS_START,
    Arrival,
    BatchReady,
    Drop,
    Effect,
    EvalAsked,
    EvalReady,
    Event,
    Granted,
    GroupDropped,
    Holding,
    JudgedResult,
    Lease,
    LeaseLost,
    LeasesStarted,
    LedgerLimits,
    Loss,
    PolicyReached,
    Result,
    Revoked,
    WorkerJoined,
    WorkerLeft,
)


@dataclass(slots=True)
class Live:
    lease: Lease
    worker_id: str
    oldest: int
    is_started: bool = False


@dataclass(slots=True)
class Fork:
    """One life of the trainer, from its start to its death, with all that its ledger did."""

    start: Policy
    parent: Policy | None
    next_group: int
    open_groups: frozenset[int]
    consumed: dict[Key, int] = field(default_factory=dict)  # the step that took it
    accepted: dict[Key, Result] = field(default_factory=dict)  # and neither consumed nor dropped
    opened: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    lost: set[Key] = field(default_factory=set)  # a dead or silent worker had it
    hedged: set[Key] = field(default_factory=set)  # leased to two workers at once
    failed: set[Key] = field(default_factory=set)  # a started lease of it expired, or its worker died
    live: dict[int, Live] = field(default_factory=dict)
    reached: dict[str, Policy | None] = field(default_factory=dict)  # of the workers that said hello
    lease_ids: set[int] = field(default_factory=set)
    eval_groups: tuple[int, ...] = ()
    eval_items: dict[int, int] = field(default_factory=dict)
    num_filtered: int = 0
    hold_until_s: float | None = None
    revoked: list[Live] = field(default_factory=list)  # within this event
    expired: dict[int, str] = field(default_factory=dict)  # lease id -> worker that is still to be told
    overdue_ages: list[int] = field(default_factory=list)  # of what was dropped for the batch that comes next


class LedgerOracle:
    def __init__(self, limits: LedgerLimits, item_of_base: int) -> None:
        self.limits = limits
        self._item_of_base = item_of_base
        self.forks: list[Fork] = []
        self.arrivals: Counter[Arrival] = Counter()
        self.drops: Counter[Drop] = Counter()
        self.num_holds = self.num_hedges = 0

    def begin(self, start: Policy, parent: Policy | None, next_group: int, open_groups: tuple[int, ...]) -> None:
        assert start.fork == len(self.forks)
        self.forks.append(Fork(start, parent, next_group, frozenset(open_groups)))

    @property
    def now(self) -> Fork:
        return self.forks[-1]

    # ---- the tree of forks ----------------------------------------------------------------------------------------

    def is_history(self, policy: Policy) -> bool:
        """Return whether the policy is of the newest fork or of the history that it was restored from."""
        fork, last = len(self.forks) - 1, None
        while fork != policy.fork:
            parent = self.forks[fork].parent
            if parent is None:
                return False
            fork, last = parent.fork, parent.version
        return self.forks[fork].start.version <= policy.version and (last is None or policy.version <= last)

    def consumed_in_history(self) -> dict[Key, int]:
        """Return the samples that the surviving history trained on, each with its step."""
        found: dict[Key, int] = {}
        fork, before = len(self.forks) - 1, None
        while True:
            steps = self.forks[fork].consumed
            found |= {key: step for key, step in steps.items() if before is None or step < before}
            parent = self.forks[fork].parent
            if parent is None:
                return found
            fork, before = parent.fork, parent.version

    # ---- the window -----------------------------------------------------------------------------------------------

    def open_groups(self) -> set[int]:
        closed = self.now.dropped | {group for group, _ in self.now.consumed}
        return {group for group in self.now.opened - closed if group < EVAL_GROUPS_START}

    def ages(self, fresh: int, *, instead: dict[int, int] | None = None) -> list[int]:
        """Return, sorted, the oldest version that each open group has or may have; `fresh` where nobody produces it."""
        oldest: dict[int, int] = dict.fromkeys(self.open_groups(), 1 << 30)
        for (group, _), result in self.now.accepted.items():
            if group in oldest:
                oldest[group] = min(oldest[group], *(run.policy.version for run in result.policies))
        for live in self.now.live.values():
            if live.lease.group in oldest:
                oldest[live.lease.group] = min(oldest[live.lease.group], live.oldest)
        for group, version in (instead or {}).items():
            oldest[group] = min(oldest[group], version)
        return sorted(fresh if version == 1 << 30 else version for version in oldest.values())

    def all_in_time(self, ages: list[int], next_step: int) -> bool:
        """Return whether steps that take the oldest groups first consume every group within the bound."""
        return all(
            next_step + place // self.limits.groups_per_step - age <= self.limits.bound
            for place, age in enumerate(ages)
        )

    # ---- what is told ---------------------------------------------------------------------------------------------

    def told(self, event: Event, policy: Policy) -> None:
        """Take note of an event, before its effects. `policy` is the trainer's."""
        now = self.now
        now.revoked.clear()
        match event:
            case WorkerJoined(worker_id):
                now.reached[worker_id] = None
            case WorkerLeft(worker_id):
                now.reached.pop(worker_id, None)
            case PolicyReached(worker_id, reached):
                now.reached[worker_id] = reached
            case LeasesStarted(worker_id, lease_ids, started):
                if self.is_history(started) and started <= policy:
                    for lease_id in lease_ids:
                        self._started(worker_id, lease_id, started)
            case EvalAsked(items):
                first = max([EVAL_GROUPS_START - 1, *now.opened]) + 1
                now.eval_groups = tuple(range(first, first + len(items)))
                now.eval_items |= dict(zip(now.eval_groups, items, strict=True))
                now.opened.update(now.eval_groups)
            case _:
                pass

    def _started(self, worker_id: str, lease_id: int, policy: Policy) -> None:
        live = self.now.live.get(lease_id)
        if live and live.worker_id == worker_id and not live.is_started and policy >= live.lease.start_at:
            live.is_started, live.oldest = True, policy.version

    # ---- what is done ---------------------------------------------------------------------------------------------

    def did(self, effect: Effect, policy: Policy, next_step: int, latest_s: float) -> None:
        """Check an effect and take note of it.

        `policy` is the trainer's, `next_step` that before the event, `latest_s` the latest time that the ledger saw.
        """
        now = self.now
        match effect:
            case Granted(worker_id, leases):
                assert leases
                for lease in leases:
                    self._granted(worker_id, lease, policy)
            case Revoked(worker_id, lease_ids):
                for lease_id in lease_ids:
                    if now.expired.pop(lease_id, None) == worker_id:
                        continue  # it has ended already; the worker is told so
                    live = now.live.pop(lease_id)
                    assert live.worker_id == worker_id
                    now.revoked.append(live)
            case LeaseLost(lease, worker_id, why):
                live = now.live.pop(lease.lease_id)
                assert (live.lease, live.worker_id) == (lease, worker_id)
                others = [other for other in now.live.values() if other.lease.hedges == lease.lease_id]
                is_first = not lease.hedges or lease.hedges not in now.live
                assert len(others) <= 1
                if live.is_started and is_first and why in (Loss.EXPIRED, Loss.WORKER_DIED):
                    now.failed.add((lease.group, lease.sample))
                if why in (Loss.WORKER_GONE, Loss.WORKER_DIED, Loss.EXPIRED) and is_first:
                    now.lost.add((lease.group, lease.sample))
                if why in (Loss.EXPIRED, Loss.WITHDRAWN):
                    now.expired[lease.lease_id] = worker_id
            case JudgedResult(result, arrival):
                self._judged(result, arrival, policy, next_step)
            case GroupDropped(group, why, results):
                self._dropped(group, why, results, latest_s)
            case Holding(groups, until_s):
                assert groups
                assert set(groups) <= self.open_groups()
                now.hold_until_s, self.num_holds = until_s, self.num_holds + 1
            case BatchReady(consumer, results):
                assert consumer == policy
                self._consumed(consumer, results)
            case EvalReady(results):
                self._evaluated(results)
            case _:
                assert_never(effect)

    def _granted(self, worker_id: str, lease: Lease, policy: Policy) -> None:
        now, key = self.now, (lease.group, lease.sample)
        reached = now.reached[worker_id]
        assert reached is None or self.is_history(reached)
        assert reached is None or policy.version - reached.version <= max(1, self.limits.bound), "too far behind"
        assert lease.lease_id not in now.lease_ids
        assert key not in now.accepted
        assert key not in self.consumed_in_history()
        assert lease.group not in now.dropped
        others = [live for live in now.live.values() if (live.lease.group, live.lease.sample) == key]
        assert [live.lease.lease_id for live in others] == ([lease.hedges] if lease.hedges else [])
        if lease.hedges:
            assert worker_id not in {live.worker_id for live in others}
            assert key not in now.hedged, "hedged twice"
            assert key not in now.failed, "hedged after a failed attempt"
            assert self.limits.hedge
            now.hedged.add(key)
            self.num_hedges += 1
        assert lease.start_at.fork == policy.fork
        assert now.start.version <= lease.start_at.version <= policy.version + 1
        if lease.purpose is Purpose.TRAIN:
            assert lease.group < EVAL_GROUPS_START
            assert lease.group not in range(now.next_group) or lease.group in now.open_groups
            assert lease.item == self._item_of_base + lease.group
            assert policy.version <= lease.consume_by_version <= lease.start_at.version + self.limits.bound
        else:
            assert lease.group in now.eval_groups
            assert lease.item == now.eval_items[lease.group]
        now.opened.add(lease.group)
        now.lease_ids.add(lease.lease_id)
        now.live[lease.lease_id] = Live(lease, worker_id, lease.start_at.version)

    def _judged(self, result: Result, arrival: Arrival, policy: Policy, next_step: int) -> None:
        now, key = self.now, (result.group, result.sample)
        expected = self.expected_arrival(result, policy, next_step)
        assert arrival in expected, f"{arrival} in place of {expected}: {result}"
        live = now.live.get(result.lease_id)
        if live and (live.lease.group, live.lease.sample, live.worker_id) == (*key, result.worker_id):
            del now.live[result.lease_id]
        self.arrivals[arrival] += 1
        if arrival is Arrival.ACCEPTED:
            now.accepted[key] = result
            now.opened.add(result.group)

    def expected_arrival(self, result: Result, policy: Policy, next_step: int) -> set[Arrival]:
        now, limits = self.now, self.limits
        if not all(self.is_history(run.policy) for run in result.policies):
            return {Arrival.DEAD_BRANCH}
        is_eval = result.group >= EVAL_GROUPS_START
        consumed = {group for group, _ in self.consumed_in_history()}
        was_closed = result.group in range(now.next_group) and result.group not in now.open_groups
        is_open = result.group in (now.eval_groups if is_eval else self.open_groups()) and result.group in now.opened
        if not is_open and not was_closed and result.group not in consumed | now.opened:
            if not now.lease_ids:  # a replay, of which the ledger may choose what it continues
                return {Arrival.UNKNOWN, Arrival.ACCEPTED, Arrival.TOO_OLD}
            return {Arrival.UNKNOWN}
        if not 0 <= result.sample < (1 if is_eval else limits.group_size):
            return {Arrival.UNKNOWN}
        if not is_open or result.group in now.dropped:
            return {Arrival.LATE if result.group in now.dropped else Arrival.DUPLICATE}
        if self._is_unfit(result, policy, is_eval=is_eval):
            return {Arrival.UNFIT}
        if (result.group, result.sample) in now.accepted:
            return {Arrival.DUPLICATE}
        if is_eval:
            return {Arrival.ACCEPTED, Arrival.TOO_OLD}
        oldest = min(run.policy.version for run in result.policies)
        ages = self.ages(policy.version + 1, instead={result.group: oldest})
        if not self.all_in_time(ages, next_step):
            return {Arrival.TOO_OLD}
        nobody_is_at = len(ages) - len({live.lease.group for live in now.live.values()} | {g for g, _ in now.accepted})
        return {Arrival.ACCEPTED, Arrival.TOO_OLD} if nobody_is_at > 0 else {Arrival.ACCEPTED}

    def _is_unfit(self, result: Result, policy: Policy, *, is_eval: bool) -> bool:
        item = self.now.eval_items[result.group] if is_eval else self._item_of_base + result.group
        purpose = Purpose.EVAL if is_eval else Purpose.TRAIN
        if (result.item, result.purpose) != (item, purpose) or not result.policies:
            return True
        if any(run.policy.version > policy.version for run in result.policies):
            return True
        return not is_eval and not 0 < result.num_tokens <= self.limits.max_sample_tokens

    def _dropped(self, group: int, why: Drop, results: tuple[Result, ...], latest_s: float) -> None:
        now, limits = self.now, self.limits
        done = [now.accepted.pop(key) for key in sorted(now.accepted) if key[0] == group]
        assert list(results) == done
        assert group in now.opened
        assert group not in now.dropped
        if why is Drop.FILTERED:
            now.num_filtered += 1
            assert limits.filter_uniform
            assert len(done) == limits.group_size
            assert len({result.outcome for result in done}) == 1
            assert now.num_filtered <= limits.max_filtered_per_step * limits.groups_per_step
        else:
            assert len(done) < limits.group_size, "what is whole is never given up"
        if why is Drop.OVERDUE:
            assert now.hold_until_s is not None
            missing = {(group, s) for s in range(limits.group_size)} - {(group, result.sample) for result in done}
            assert latest_s >= now.hold_until_s or missing <= now.lost, "a live lease is waited for"
            cut = [live.oldest for live in now.revoked if live.lease.group == group]
            now.overdue_ages.append(min([*cut, *(run.policy.version for result in done for run in result.policies)]))
        now.dropped.add(group)
        now.eval_groups = tuple(number for number in now.eval_groups if number != group)
        self.drops[why] += 1

    def _consumed(self, consumer: Policy, results: tuple[Result, ...]) -> None:
        now, limits = self.now, self.limits
        keys = [(result.group, result.sample) for result in results]
        groups = sorted({group for group, _ in keys})
        assert keys == [(group, sample) for group in groups for sample in range(limits.group_size)], "whole groups"
        assert len(groups) == limits.groups_per_step
        assert not set(keys) & set(self.consumed_in_history()), "trained on twice"
        assert [now.accepted.pop(key) for key in keys] == list(results), "what was accepted, and nothing else"
        for run in (run for result in results for run in result.policies):
            assert self.is_history(run.policy), f"{run.policy} is of a dead branch to {consumer}"
            assert 0 <= consumer.version - run.policy.version <= limits.bound, f"{run.policy} consumed at {consumer}"
        now.consumed |= dict.fromkeys(keys, consumer.version)
        if now.overdue_ages:
            kept = sorted([*self.ages(consumer.version + 1), max(now.overdue_ages)])
            assert not self.all_in_time(kept, consumer.version + 1), "one of what was dropped could have stayed"
        now.num_filtered, now.hold_until_s, now.overdue_ages = 0, None, []

    def _evaluated(self, results: tuple[Result, ...]) -> None:
        now = self.now
        assert [result.group for result in results] == list(now.eval_groups)
        assert [now.accepted.pop((group, 0)) for group in now.eval_groups] == list(results)
        assert all(result.purpose is Purpose.EVAL for result in results)
        now.eval_groups = ()

    # ---- what must hold between events -----------------------------------------------------------------------------

    def check(self, ledger: Ledger, latest_s: float) -> None:
        state, limits, now = ledger.state, self.limits, self.now
        assert now.hold_until_s is None or latest_s < now.hold_until_s, "the hold is over"
        state.check(limits.max_sample_tokens)
        assert {i: (held.lease, held.worker_id) for i, held in state.held.items()} == {
            i: (live.lease, live.worker_id) for i, live in now.live.items()
        }
        assert {group.number for group in state.training_groups()} == self.open_groups()
        done = {(group.number, s): result for group in state.groups.values() for s, result in group.done.items()}
        assert done == now.accepted
        assert self.all_in_time(self.ages(state.policy.version + 1), state.next_step)
        assert len(self.open_groups()) <= (limits.steps - state.next_step) * limits.groups_per_step
        in_tokens = [result.num_tokens for (group, _), result in now.accepted.items() if group < EVAL_GROUPS_START]
        to_come = len(self.open_groups()) * limits.group_size - len(in_tokens)
        assert sum(in_tokens) + to_come * limits.max_sample_tokens == state.reserved_tokens <= limits.intake_tokens
        due_s = next_due_s(ledger)
        for held in state.held.values():
            if held.lease.start_at <= state.policy:
                assert held.deadline_s is not None, "it may start and would never expire"
                assert due_s is not None
                assert due_s <= (state.deadline_of(held) or 0.0)


def next_due_s(ledger: Ledger) -> float | None:
    """Return when time alone changes something: a deadline of a lease or the end of a hold; None if nothing is due."""
    times_s = [*map(ledger.state.deadline_of, ledger.state.held.values())]
    times_s.append(consumption.hold_until_s(ledger.state, ledger.limits))
    return min((time_s for time_s in times_s if time_s is not None), default=None)
