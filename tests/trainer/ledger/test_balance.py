"""Leases go to workers in proportion to their speed and to what they hold, and follow when these change."""

from collections import Counter, deque
from collections.abc import Callable, Mapping

import pytest

from tests.support.ledger.checked import CheckedLedger, answer, leases_of, of_kind
from trainer.ledger.values import (
    BatchReady,
    BatchWanted,
    Effect,
    Granted,
    Lease,
    LeasesStarted,
    PolicyReached,
    ResultArrived,
    StepDone,
)

GROUPS, GROUP_SIZE = 16, 4
TRAIN_S = 1.0


class Fleet:
    """Workers that make one sample after the other, each at a speed of its own, and a trainer of `ledger`."""

    def __init__(self, ledger: CheckedLedger, speeds: Mapping[str, float], tokens_of: Callable[[Lease], int]) -> None:
        self.ledger, self.speeds, self._tokens_of = ledger, dict(speeds), tokens_of
        self._queues: dict[str, deque[Lease]] = {worker_id: deque() for worker_id in speeds}
        self._ready_s = dict.fromkeys(speeds, 0.0)
        self.made: Counter[str] = Counter()
        for worker_id in speeds:
            self._take(self.ledger.effects[:0])
            ledger.worker(worker_id, 1000)
        self._take(ledger.effects)

    def _take(self, effects: list[Effect] | tuple[Effect, ...]) -> None:
        for grant in of_kind(tuple(effects), Granted):
            self._queues[grant.worker_id].extend(grant.leases)

    def step(self) -> float:
        """Generate a batch and train on it. Return the seconds from when it was wanted until it was there."""
        begun_s, self.made = self.ledger.now_s, Counter()
        told = self.ledger.tell(BatchWanted())
        self._take(told)
        while not of_kind(told, BatchReady):
            ends = {
                worker_id: max(self._ready_s[worker_id], begun_s) + self._seconds(worker_id, lease)
                for worker_id in self._queues
                if (lease := self._next(worker_id)) is not None
            }
            worker_id = min(ends, key=lambda each: (ends[each], each))
            lease = self._next(worker_id)
            assert lease is not None
            self._queues[worker_id].remove(lease)
            started = self.ledger.tell(LeasesStarted(worker_id, (lease.lease_id,), self.ledger.policy))
            self._ready_s[worker_id] = ends[worker_id]
            result = answer(lease, self.ledger.policy, worker_id, num_tokens=self._tokens_of(lease))
            # A sample that starts may make its group young enough for a batch to be complete.
            late_s = max(0.0, ends[worker_id] - self.ledger.now_s)
            told = (*started, *self.ledger.tell(ResultArrived(result), after_s=late_s))
            self._take(told)
            self.made[worker_id] += self._tokens_of(lease)
        waited_s = self.ledger.now_s - begun_s
        self._take(self.ledger.tell(StepDone(), after_s=TRAIN_S))
        for each in self.speeds:
            self._take(self.ledger.tell(PolicyReached(each, self.ledger.policy)))
        return waited_s

    def _next(self, worker_id: str) -> Lease | None:
        return next((lease for lease in self._queues[worker_id] if lease.start_at <= self.ledger.policy), None)

    def _seconds(self, worker_id: str, lease: Lease) -> float:
        return self._tokens_of(lease) / self.speeds[worker_id]

    def least_s(self) -> float:
        """The seconds of the batch before, had its tokens been divided in proportion to speed."""
        return self.made.total() / sum(self.speeds.values())


def fleet(speeds: Mapping[str, float], tokens_of: Callable[[Lease], int] = lambda lease: 10, bound: int = 0) -> Fleet:
    ledger = CheckedLedger(
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        bound=bound,
        steps=100,
        max_sample_tokens=100,
        intake_tokens=100_000,
        lease_timeout_s=1e6,
        max_hold_s=1e6,
    )
    return Fleet(ledger, speeds, tokens_of)


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_a_synchronous_batch_is_divided_by_speed(factor: float) -> None:
    run = fleet({"fast": 100.0, "slow": 100.0 / factor})
    first_s = run.step()
    assert first_s > 1.2 * run.least_s(), "at first, all speeds are alike"
    for _ in range(5):
        waited_s = run.step()
    # A group goes to one worker, so a share is a multiple of one in sixteen.
    assert run.least_s() / waited_s > 0.9


def test_a_change_of_speed_is_followed_within_twenty_steps() -> None:
    run = fleet({"a": 100.0, "b": 100.0, "c": 50.0})
    for _ in range(5):
        run.step()
    run.speeds |= {"a": 25.0, "c": 100.0}
    assert run.step() > 1.5 * run.least_s()
    for _ in range(19):
        waited_s = run.step()
    assert run.least_s() / waited_s > 0.85


def test_prompts_with_long_answers_count_for_what_they_take() -> None:
    def tokens_of(lease: Lease) -> int:
        return 60 if lease.item % GROUPS < 3 else 4

    # The prompts of a step come again in the next one, so that their lengths are known.
    run = fleet({"a": 100.0, "b": 100.0}, tokens_of)
    run.ledger.machine._item_of = lambda group: group % GROUPS
    for _ in range(8):
        waited_s = run.step()
    # Three long groups of 240 tokens and thirteen short ones of 16: one worker has two long ones at least.
    assert waited_s == pytest.approx(4.8, abs=0.5)


def test_every_sample_of_a_synchronous_run_is_of_its_batch_s_version_whoever_makes_it() -> None:
    run = fleet({"fast": 100.0, "slow": 20.0})
    for version in range(6):
        run.step()
        (batch, *_) = reversed(of_kind(tuple(run.ledger.effects), BatchReady))
        assert {run_.policy.version for result in batch.results for run_ in result.policies} == {version}


def test_within_a_bound_a_slow_worker_holds_less_and_nobody_waits_for_it() -> None:
    run = fleet({"fast": 100.0, "slow": 25.0}, bound=2)
    for _ in range(10):
        run.step()
    assert run.made["slow"] == pytest.approx(run.made.total() / 5, rel=0.5)
    assert leases_of(tuple(run.ledger.effects))
