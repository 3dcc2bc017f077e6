from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from periplus.policy import Policy
from periplus.trajectory import Purpose, Trajectory
from rollout_worker.isolate import WHY_CHARACTERS, sample_what_can_be
from rollout_worker.queue import Lease


def lease(number: int) -> Lease:
    return Lease(
        lease_id=number, group=number, sample=0, item=number, start_at=Policy(0, 0), consume_by_version=0,
        purpose=Purpose.TRAIN,
    )  # fmt: skip


@given(st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_each_lease_yields_its_sample_or_its_reason_in_order(number: int, poisoned: set[int]) -> None:
    def sample(leases: Sequence[Lease]) -> Sequence[Trajectory]:
        bad = [one.item for one in leases if one.item in poisoned]
        if bad:
            raise KeyError(f"item {bad[0]}")
        return cast(list[Trajectory], [one.lease_id for one in leases])

    sampled, failed = sample_what_can_be([lease(i) for i in range(number)], sample)
    assert list(sampled) == [i for i in range(number) if i not in poisoned]
    assert [each.lease.lease_id for each in failed] == [i for i in range(number) if i in poisoned]
    assert all(each.why == f"KeyError: 'item {each.lease.item}'" for each in failed)


def test_a_long_reason_is_cut() -> None:
    def sample(leases: Sequence[Lease]) -> Sequence[Trajectory]:
        raise ValueError("x" * 10_000)

    ((failed),) = sample_what_can_be([lease(0)], sample)[1]
    assert len(failed.why) == WHY_CHARACTERS
