from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose, Trajectory, TrajectoryLimits, read_only
from rollout_worker.episodes.per_sample_fallback import WHY_CHARACTERS, only_valid, sample_with_fallback
from rollout_worker.episodes.queue import QueuedLease
from tests.periplus.values.test_trajectory import GOOD


def lease(number: int) -> QueuedLease:
    return QueuedLease(
        lease_id=number,
        group=number,
        sample=0,
        item=number,
        start_at=Policy(0, 0),
        consume_by_version=0,
        purpose=Purpose.TRAIN,
    )


@given(st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_each_lease_yields_its_sample_or_its_reason_in_order(number: int, poisoned: set[int]) -> None:
    def sample(leases: Sequence[QueuedLease]) -> Sequence[Trajectory]:
        bad = [one.item for one in leases if one.item in poisoned]
        if bad:
            raise KeyError(f"item {bad[0]}")
        return cast(list[Trajectory], [one.lease_id for one in leases])

    sampled, failed = sample_with_fallback([lease(i) for i in range(number)], sample)
    assert list(sampled) == [i for i in range(number) if i not in poisoned]
    assert [each.lease.lease_id for each in failed] == [i for i in range(number) if i in poisoned]
    assert all(each.why == f"KeyError: 'item {each.lease.item}'" for each in failed)


def test_a_long_reason_is_cut() -> None:
    def sample(leases: Sequence[QueuedLease]) -> Sequence[Trajectory]:
        raise ValueError("x" * 10_000)

    ((failed),) = sample_with_fallback([lease(0)], sample)[1]
    assert len(failed.why) == WHY_CHARACTERS


def test_a_sample_that_the_trainer_would_refuse_costs_its_own_lease_alone() -> None:
    limits = TrajectoryLimits(vocab_size=100, max_prompt_tokens=4, max_completion_tokens=3)
    nan = read_only([-1.0, float("nan"), 0], np.float32)
    produced = [
        replace(GOOD, lease_id=0),
        replace(GOOD, lease_id=1, reward=1e200),
        replace(GOOD, lease_id=2, logprobs=nan),
        replace(GOOD, lease_id=3),
    ]
    valid, failed = only_valid([lease(number) for number in range(4)], produced, limits)
    assert [trajectory.lease_id for trajectory in valid] == [0, 3]
    assert [each.lease.lease_id for each in failed] == [1, 2]
    assert "1e+200" in failed[0].why
    assert "logprob" in failed[1].why
