import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.process.telemetry import METRICS
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind

records = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    policy=st.builds(Policy, st.integers(0, 9), st.integers(0, 1 << 40)),
    time_s=st.integers(0, 10**9).map(lambda n: n / 10_000),
    values=st.dictionaries(st.sampled_from(sorted(METRICS)), st.floats(allow_nan=False, allow_infinity=False)),
    staleness_tokens=st.dictionaries(st.integers(0, 1000), st.integers(0, 1 << 50)),
    text=st.text(max_size=20),
)


@given(records)
def test_a_record_is_one_line_and_comes_back_as_it_was(record: Record) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


def test_the_line_holds_the_values_under_their_own_names() -> None:
    record = Record(
        kind=RecordKind.STEP, policy=Policy(1, 2), time_s=3.00004, values={"loss": 0.5}, staleness_tokens={1: 7, 0: 9}
    )
    assert json.loads(record.to_json()) == {
        "kind": "step",
        "fork": 1,
        "version": 2,
        "time_s": 3.0,
        "loss": 0.5,
        "staleness_tokens": {"0": 9, "1": 7},
    }


@pytest.mark.parametrize("line", ["", "{", "5", "[]", '"x"', "{}", '{"kind": "no such", "fork": 0, "version": 0}'])
def test_a_line_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Record.from_json(line)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_value_that_is_not_finite_is_null_in_the_line_and_missing_when_it_is_read(value: float) -> None:
    record = Record(
        kind=RecordKind.STEP, policy=Policy(0, 1), time_s=1.0, values={"mean_ratio": value, "approx_kl": 0.5}
    )

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    assert json.loads(record.to_json(), parse_constant=refuse)["mean_ratio"] is None
    assert Record.from_json(record.to_json()).values == {"approx_kl": 0.5}
