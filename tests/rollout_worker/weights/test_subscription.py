from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_worker.weights.subscription import FAILURES_IN_A_ROW, REFUSALS_IN_A_ROW, SubscriptionState

EVENTS: dict[str, Callable[[SubscriptionState], SubscriptionState]] = {
    "proven": SubscriptionState.proven,
    "refused": lambda state: state.refused(derived=False),
    "derived refused": lambda state: state.refused(derived=True),
    "mismatched": SubscriptionState.mismatched,
    "engine failed": SubscriptionState.engine_failed,
    "engine sound": SubscriptionState.engine_sound,
}


def after(*names: str) -> SubscriptionState:
    state = SubscriptionState()
    for name in names:
        state = EVENTS[name](state)
    return state


def test_a_refusal_asks_again_from_what_is_held_and_the_second_asks_from_nothing() -> None:
    assert not after("refused").asks_from_nothing
    assert after("refused", "refused").asks_from_nothing
    assert not after("refused", "refused").distrust
    assert not after("refused", "proven", "refused").asks_from_nothing


@pytest.mark.parametrize("name", ["derived refused", "mismatched", "engine failed"])
def test_what_a_gateway_may_have_spoilt_is_asked_of_the_trainer_until_a_version_is_proven(name: str) -> None:
    assert after(name).distrust
    assert not after(name, "proven").distrust


@pytest.mark.parametrize("name", ["mismatched", "engine failed"])
def test_a_failure_that_repeats_is_hopeless(name: str) -> None:
    assert not after(*[name] * (FAILURES_IN_A_ROW - 1)).hopeless
    assert after(*[name] * FAILURES_IN_A_ROW).hopeless


def test_an_engine_that_fails_each_time_although_each_copy_is_proven_is_hopeless() -> None:
    assert after(*["engine failed", "proven"] * FAILURES_IN_A_ROW).hopeless
    assert not after(*["engine failed", "proven", "engine sound"] * FAILURES_IN_A_ROW).hopeless


def test_refusals_without_end_are_hopeless_and_a_proven_version_ends_them() -> None:
    refusals = ["refused"] * (REFUSALS_IN_A_ROW - 1)
    assert not after(*refusals).hopeless
    assert "refused" in after(*refusals, "refused").hopeless
    assert not after(*refusals, "proven", "refused").hopeless


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=12))
def test_a_proven_version_and_a_sound_engine_end_everything(names: list[str]) -> None:
    assert after(*names, "proven", "engine sound") == SubscriptionState()
