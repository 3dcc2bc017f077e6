"""Transitions of what the subscription and the engine's updater share."""

import pytest

from periplus.errors import PeriplusError
from periplus.values.policy import Policy
from rollout_worker.weights.host_copy import Signed
from rollout_worker.weights.pending_versions import Version
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.subscription import FAILURES_IN_A_ROW, SubscriptionRequest

VERSION = Version(
    signed=Signed(policy=Policy(0, 1), state_digest=bytes(32)), staged=None, recovers=False, fallback=False
)


def request_of(weights: ProvenWeights) -> SubscriptionRequest:
    return weights.failures.request(weights.host.policy, has_bundle=True)


def test_a_proven_version_waits_for_the_engine_and_disproves_refusals() -> None:
    weights = ProvenWeights()
    weights.refused(is_derived=True)
    assert request_of(weights).distrusts_copies
    weights.proven(VERSION)
    assert len(weights.pending) == 1
    assert not request_of(weights).distrusts_copies


def test_a_mismatch_loses_what_only_the_host_copy_had() -> None:
    weights = ProvenWeights()
    weights.proven(VERSION)
    weights.mismatched()
    assert len(weights.pending) == 0
    assert request_of(weights) == SubscriptionRequest(have=None, has_bundle=True, distrusts_copies=True)


def test_a_failed_engine_asks_for_another_subscription_and_ends_the_process_in_the_end() -> None:
    weights = ProvenWeights()
    for _ in range(FAILURES_IN_A_ROW):
        weights.raise_if_hopeless()
        weights.engine_failed()
    assert weights.again.is_set()
    with pytest.raises(PeriplusError, match="engine failed its check"):
        weights.raise_if_hopeless()
    weights.engine_sound()
    weights.raise_if_hopeless()


def test_to_begin_anew_is_to_ask_from_nothing() -> None:
    weights = ProvenWeights()
    weights.host.version = VERSION.signed
    weights.begin_anew()
    assert request_of(weights).have is None
