"""Parts of a reward come from metadata that may hold anything."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.errors import RewardCrashed, RewardFailed, RewardRaised, RewardTimedOut
from periplus.job.samples.reward_parts import reward_failures_of, reward_metadata, reward_parts_of
from periplus.values.reward_failure import RewardFailureKind, failure_kind


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)))
def test_parts_come_back_as_they_were_put_in(parts: dict[str, float]) -> None:
    assert reward_parts_of(json.dumps({"turns": 1, "reward_parts": parts})) == parts


@pytest.mark.parametrize(
    "metadata",
    ["", "{}", '{"reward_parts": 3}', '{"reward_parts": [1]}', '["reward_parts"]', '{"reward_parts": {', "[" * 9999],
)
def test_what_is_no_object_of_parts_is_none(metadata: str) -> None:
    assert reward_parts_of(metadata) == {}


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    reward_parts_of('{"reward_parts"' + text)


def test_values_that_are_no_finite_number_are_left_out() -> None:
    huge = 10**400
    text = f'{{"reward_parts": {{"a": NaN, "b": true, "c": "1", "d": 1e999, "e": {huge}, "f": 2}}}}'
    assert reward_parts_of(text) == {"f": 2.0}


def test_what_a_worker_writes_is_what_the_trainer_reads() -> None:
    parts, failures = {"math": 1.0, "my_rewards:score": -2.5}, {"my_rewards:score": "timed_out"}
    metadata = reward_metadata(parts, failures)
    assert reward_parts_of(metadata) == parts
    assert reward_failures_of(metadata) == {"my_rewards:score": RewardFailureKind.TIMED_OUT}
    assert reward_metadata({}, {}) == ""
    assert reward_failures_of('{"reward_failures": {"a": "unheard of", "b": 3, "c": "crashed"}}') == {"c": "crashed"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RewardTimedOut("x"), "timed_out"), (RewardCrashed("x"), "crashed"), (RewardRaised("x"), "raised")],
)
def test_each_error_of_a_reward_function_has_its_kind(error: RewardFailed, kind: str) -> None:
    assert failure_kind(error) == kind
