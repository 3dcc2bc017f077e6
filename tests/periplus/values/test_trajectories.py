"""Columns are as fit as their rows: `validate_all` against `validate`, one by one."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.trajectory import decode_columns, encode
from periplus.errors import CorruptFrame
from periplus.values.trajectories import Trajectories, validate_all
from periplus.values.trajectory import Trajectory, TrajectoryLimits, validate
from tests.support.cases.strategies import trajectories

WIDE = TrajectoryLimits(vocab_size=1 << 24, max_prompt_tokens=4, max_completion_tokens=6)


def columns_of(batch: list[Trajectory]) -> Trajectories:
    return decode_columns(encode(batch), max_content_bytes=1 << 20)


def verdict(check: Any, *arguments: object) -> str | None:
    with suppress(CorruptFrame):
        check(*arguments)
        return None
    return "refused"


@given(st.lists(trajectories(), min_size=1, max_size=4), st.sampled_from([WIDE, replace(WIDE, vocab_size=200)]))
def test_columns_are_fit_exactly_when_every_row_is(batch: list[Trajectory], limits: TrajectoryLimits) -> None:
    one_by_one = {verdict(validate, t, limits) for t in batch}
    assert verdict(validate_all, columns_of(batch), limits) == ("refused" if "refused" in one_by_one else None)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("reward", float("inf")),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", float("nan")),
        ("generation_s", float("inf")),
        ("generation_s", float("nan")),
    ],
)
@given(batch=st.lists(trajectories(), min_size=1, max_size=4), data=st.data())
@settings(max_examples=20)
def test_a_row_that_is_spoilt_is_found(name: str, bad: float, batch: list[Trajectory], data: st.DataObject) -> None:
    columns = columns_of(batch)
    values = list(getattr(columns.rows, name))
    values[data.draw(st.integers(0, len(batch) - 1))] = bad
    with pytest.raises(CorruptFrame):
        validate_all(replace(columns, rows=columns.rows._replace(**{name: tuple(values)})), WIDE)


@given(st.lists(trajectories(), min_size=1, max_size=4), st.data())
def test_policy_runs_that_are_spoilt_are_found(batch: list[Trajectory], data: st.DataObject) -> None:
    columns = columns_of(batch)
    if columns.runs:
        runs = list(columns.runs)
        at = data.draw(st.integers(0, len(runs) - 1))
        fork, version, num_tokens, kept = runs[at]
        runs[at] = (fork, version, data.draw(st.sampled_from([0, num_tokens + 1, num_tokens - 1])), kept)
        with pytest.raises(CorruptFrame):
            validate_all(replace(columns, runs=runs), WIDE)


@given(trajectories().filter(lambda t: len(t.policies) > 1))
def test_policies_that_fall_are_found(trajectory: Trajectory) -> None:
    columns = columns_of([trajectory, trajectory])
    validate_all(columns, WIDE)
    falling = [*columns.runs[: len(columns.runs) // 2]] * 2
    falling[0] = (falling[-1][0], falling[-1][1], falling[0][2], False)
    with pytest.raises(CorruptFrame):
        validate_all(replace(columns, runs=falling), WIDE)


@given(st.lists(trajectories(), min_size=1, max_size=4), st.data())
def test_a_first_run_that_kept_a_cache_is_found(batch: list[Trajectory], data: st.DataObject) -> None:
    columns = columns_of(batch)
    starts = [sum(columns.rows.num_runs[:row]) for row in range(len(batch)) if columns.rows.num_runs[row]]
    if starts:
        runs = list(columns.runs)
        at = data.draw(st.sampled_from(starts))
        runs[at] = (*runs[at][:3], True)
        spoilt = replace(columns, runs=runs)
        assert {verdict(validate, t, WIDE) for t in spoilt.views()} >= {"refused"}
        with pytest.raises(CorruptFrame):
            validate_all(spoilt, WIDE)


@given(st.lists(trajectories(), min_size=1, max_size=4), st.data())
def test_a_token_that_is_spoilt_is_found(batch: list[Trajectory], data: st.DataObject) -> None:
    columns = columns_of(batch)
    for name, bad in (("logprobs", np.nan), ("logprobs", -np.inf), ("logprobs", 0.5), ("ids", -1), ("ids", 1 << 24)):
        column = getattr(columns, name).copy()
        if len(column):
            column[data.draw(st.integers(0, len(column) - 1))] = bad
            with pytest.raises(CorruptFrame):
                validate_all(replace(columns, **{name: column}), WIDE)


def test_an_empty_frame_is_fit() -> None:
    columns = columns_of([])
    validate_all(columns, WIDE)
    assert (len(columns), columns.views()) == (0, ())
