import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.policy import Policy, staleness

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
