"""Parts of a reward come from metadata that may hold anything."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.job.samples.reward_parts import reward_parts_of


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
