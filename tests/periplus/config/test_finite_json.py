import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.config import finite_json

ROOT = Path(__file__).parents[3]

trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@given(trees)
def test_whatever_is_written_is_json(tree: Any) -> None:
    json.loads(finite_json.dumps(tree), parse_constant=refuse)


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_finite_values_are_written_as_json_writes_them(tree: dict[str, float]) -> None:
    assert finite_json.dumps(tree, indent=2) == json.dumps(tree, indent=2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_null(value: float) -> None:
    assert finite_json.dumps({"a": [value, 1.0], "b": (value,)}) == '{"a": [null, 1.0], "b": [null]}'


@pytest.mark.parametrize(
    "path",
    [
        "periplus/values/record.py",
        "periplus/view/recording.py",
        "periplus/view/summary.py",
        "periplus/view/terminal/listing.py",
        "periplus/weights/commands.py",
        "coordinator/client/commands.py",
        "coordinator/demo/run.py",
        "planner/commands/output.py",
        "trainer/checkpointing/checkpoint.py",
    ],
)
def test_who_writes_measured_numbers_as_json_writes_finite_json(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "finite_json.dumps(" in text
