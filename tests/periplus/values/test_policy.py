import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Lineage, Policy, staleness

policies = st.builds(Policy, st.integers(0, 3), st.integers(0, 9))


@given(policies, policies)
def test_policies_are_ordered_by_fork_and_then_by_version(a: Policy, b: Policy) -> None:
    assert (a < b) == ((a.fork, a.version) < (b.fork, b.version))


@given(policies)
def test_one_batch_later_a_policy_is_one_version_older(policy: Policy) -> None:
    assert staleness(policy.next(), policy) == 1
    assert staleness(policy, policy) == 0
    assert policy.next().fork == policy.fork


@given(policies, policies)
def test_staleness_is_a_distance_within_one_fork_and_never_negative(consumer: Policy, sampled_by: Policy) -> None:
    if consumer.fork == sampled_by.fork and consumer.version >= sampled_by.version:
        assert staleness(consumer, sampled_by) == consumer.version - sampled_by.version
    else:
        with pytest.raises(ValueError, match=f"{sampled_by}"):
            staleness(consumer, sampled_by)


def test_a_policy_is_written_as_fork_and_version() -> None:
    assert str(Policy(2, 17)) == "2.17"


KILLED = Lineage(0).restored(1, Policy(0, 2))


def test_a_restored_fork_counts_its_parents_history_and_not_what_came_after_the_checkpoint() -> None:
    assert [Policy(0, v) in KILLED for v in range(5)] == [True, True, True, False, False]
    assert [Policy(1, v) in KILLED for v in range(1, 4)] == [False, True, True]
    assert staleness(Policy(1, 4), Policy(0, 1), KILLED) == 3
    with pytest.raises(ValueError, match=r"0\.3"):
        staleness(Policy(1, 4), Policy(0, 3), KILLED)


def test_a_fork_restored_from_a_grandparent_leaves_the_parent_out_of_its_history() -> None:
    again = KILLED.restored(2, Policy(0, 1))
    assert again == Lineage(2, (Policy(0, 1),))
    assert Policy(1, 2) not in again
    deeper = KILLED.restored(2, Policy(1, 5))
    assert Policy(0, 2) in deeper
    assert Policy(1, 5) in deeper
    assert Policy(1, 6) not in deeper


def test_a_fork_cannot_begin_on_a_dead_branch() -> None:
    with pytest.raises(ValueError, match=r"0\.3"):
        KILLED.restored(2, Policy(0, 3))
    with pytest.raises(ValueError, match="forks of a lineage rise"):
        Lineage(1, (Policy(1, 2),))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=6), policies)
def test_every_version_of_a_history_was_had_by_exactly_one_fork_but_for_the_copies_at_its_joints(
    restores: list[tuple[int, int]], probe: Policy
) -> None:
    lineage = Lineage(0)
    for back, ahead in restores:
        at = Policy(lineage.fork, lineage.first_version + ahead)
        if back and lineage.parents:
            at = lineage.parents[-min(back, len(lineage.parents))]
        lineage = lineage.restored(lineage.fork + 1, at)
    version = probe.version
    holders = [fork for fork in range(lineage.fork + 1) if Policy(fork, version) in lineage]
    joints = [parent for parent in lineage.parents if parent.version == version]
    assert len(holders) == 1 + len(joints)
