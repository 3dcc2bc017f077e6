from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from rollout_worker.episodes.queue import SPARE_ENTRIES, LeaseQueue, QueuedLease


def lease(
    lease_id: int, group: int = 0, sample: int = 0, start: int = 0, fork: int = 0, purpose: Purpose = Purpose.TRAIN
) -> QueuedLease:
    return QueuedLease(
        lease_id=lease_id,
        group=group,
        sample=sample,
        item=0,
        start_at=Policy(fork, start),
        consume_by_version=start,
        purpose=purpose,
    )


def queue_of(*leases: QueuedLease) -> LeaseQueue:
    queue = LeaseQueue()
    for one in leases:
        queue.add(one)
    return queue


def test_evaluation_comes_first_and_then_the_oldest_group() -> None:
    queue = queue_of(lease(1, group=5), lease(2, group=1), lease(3, group=1 << 40, purpose=Purpose.EVAL))
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [3, 2, 1]


def test_a_lease_waits_for_its_weights_without_blocking_later_ones() -> None:
    queue = queue_of(lease(1, group=0, start=2), lease(2, group=1))
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [2]
    assert not queue.has_startable(Policy(0, 1))
    assert [one.lease_id for one in queue.take(Policy(0, 2), 9, is_idle=True)] == [1]


def test_without_proven_weights_nothing_may_start() -> None:
    assert not queue_of(lease(1)).has_startable(None)


def test_a_lease_that_comes_twice_is_worked_on_once() -> None:
    queue = queue_of(lease(1), lease(1))
    assert len(queue.take(Policy(0, 0), 9, is_idle=True)) == 1
    assert queue.take(Policy(0, 0), 9, is_idle=True) == ()


def test_leases_of_two_forks_may_share_a_number() -> None:
    queue = queue_of(lease(1, group=0, fork=0), lease(1, group=3, fork=1))
    assert [one.group for one in queue.take(Policy(1, 0), 9, is_idle=True)] == [3]
    assert len(queue) == 0, "the dead fork's lease can never start"


def test_a_lease_of_a_fork_to_come_waits() -> None:
    queue = queue_of(lease(1, fork=1))
    assert not queue.has_startable(Policy(0, 99))
    assert queue.take(Policy(0, 99), 9, is_idle=True) == ()
    assert len(queue) == 1


def test_a_revoked_lease_is_not_worked_on_and_one_that_was_taken_is_not_missed() -> None:
    queue = queue_of(lease(1, group=1), lease(2, group=2), lease(3, group=3), lease(4, group=4, start=1))
    assert [one.lease_id for one in queue.take(Policy(0, 0), 1, is_idle=True)] == [1]
    queue.revoke({1, 2, 4, 77})
    assert len(queue) == 1
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [3]
    assert not queue.has_startable(Policy(0, 1))
    queue.add(lease(2, group=2))
    assert [one.lease_id for one in queue.take(Policy(0, 1), 9, is_idle=True)] == [2], "it was given anew"
    assert queue.take(Policy(0, 1), 9, is_idle=True) == ()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4)), max_size=12), st.integers(1, 4))
def test_every_lease_is_taken_once_at_a_policy_that_it_allows(rows: list[tuple[int, int, int]], at_most: int) -> None:
    queue = queue_of(*(lease(i, group, sample, start) for i, (group, sample, start) in enumerate(rows)))
    taken: list[QueuedLease] = []
    for version in range(5):
        while queue.has_startable(Policy(0, version)):
            batch = queue.take(Policy(0, version), at_most, is_idle=True)
            assert 0 < len(batch) <= at_most
            assert all(one.start_at.version <= version for one in batch)
            taken += batch
    assert sorted(one.lease_id for one in taken) == list(range(len(rows)))


def test_a_lease_that_is_to_be_worked_on_alone_is_taken_alone_and_in_its_turn() -> None:
    queue = queue_of(
        lease(1, group=0), replace(lease(2, group=1), alone=True), lease(3, group=2), replace(lease(4), alone=True)
    )
    batches = [[one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] for _ in range(5)]
    assert [sorted(batch) for batch in batches if 4 not in batch] == [[1], [2], [3], []]
    assert [4] in batches


def test_a_lease_that_is_to_be_worked_on_alone_waits_for_what_is_under_way_and_nothing_passes_it() -> None:
    queue = queue_of(replace(lease(1, group=0), alone=True), lease(2, group=1))
    assert queue.take(Policy(0, 0), 9, is_idle=False) == ()
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [1]
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [2]


def test_a_lease_that_is_put_back_begins_again_with_no_older_policy_than_it_was_started_with() -> None:
    queue = queue_of(lease(1), lease(2, group=1))
    one, two = queue.take(Policy(0, 3), 9, is_idle=True)
    queue.put_back(one, Policy(0, 3))
    queue.end(two)
    assert queue.take(Policy(0, 2), 9, is_idle=True) == ()
    assert [each.lease_id for each in queue.take(Policy(0, 4), 9, is_idle=True)] == [1]


def test_a_lease_that_is_under_way_is_not_added_again_and_not_put_back_once_nobody_waits_for_it() -> None:
    queue = queue_of(lease(1), lease(2, group=1), lease(3, group=2))
    one, two, three = queue.take(Policy(0, 0), 9, is_idle=True)
    queue.add(lease(1))
    assert len(queue) == 0
    assert queue.revoke({1, 9}) == (one,)
    queue.put_back(one, Policy(0, 0))
    queue.clear()
    queue.put_back(two, Policy(0, 0))
    assert len(queue) == 0
    queue.add(lease(3, group=2))
    assert len(queue) == 0, "its result comes all the same"
    queue.end(three)
    queue.add(lease(3, group=2))
    assert len(queue) == 1


def test_what_is_revoked_before_it_was_taken_leaves_nothing_behind() -> None:
    queue = queue_of(lease(0))
    for number in range(1, 10_000):
        queue.add(lease(number, group=number % 7))
        queue.revoke([number])
    assert len(queue) == 1
    assert len(queue._heap) <= 2 + SPARE_ENTRIES
    assert [one.lease_id for one in queue.take(Policy(0, 0), 9, is_idle=True)] == [0]
