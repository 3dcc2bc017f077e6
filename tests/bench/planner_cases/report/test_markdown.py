"""Numbers in the record are short, and never on the wrong side of their target."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planner_cases.report.markdown import against, bullets, number, paragraph, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0, "0"),
        (0.012345, "0.0123"),
        (1.5, "1.50"),
        (16.1466, "16.1"),
        (79294.7, "79,295"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-9, 1e9), st.sampled_from(["<=", ">=", "=="]), st.floats(1e-3, 1e6))
def test_a_figure_shows_on_which_side_of_its_target_it_is(value: float, op: str, target: float) -> None:
    shown = float(against(value, op, target).replace(",", ""))
    assert (shown <= target, shown >= target) == (value <= target, value >= target) or op == "=="
    assert (shown == target) == (value == target)
    assert shown == pytest.approx(value, rel=0.01)


def test_a_figure_just_beyond_its_target_does_not_look_like_it() -> None:
    assert against(0.0100004, "<=", 0.01) == "0.0100004"
    assert against(0.010004, ">=", 0.01) == "0.010004"
    assert against(0.95, ">=", 0.95) == "0.95"


def test_a_table_refuses_rows_of_another_length() -> None:
    assert table(["a", "b"], [["1", "x|y"]]).splitlines()[-1] == "| 1 | x\\|y |"
    with pytest.raises(ValueError, match="1 cells under 2"):
        table(["a", "b"], [["1"]])


def test_text_is_wrapped_and_headings_and_tables_are_not() -> None:
    words = "word " * 60
    assert max(map(len, paragraph(words).splitlines())) <= 120
    assert bullets([words]).splitlines()[1].startswith("  word")
    for kept in (f"# {words}", f"| {words} |", f"![{words}](a.svg)"):
        assert paragraph(kept) == kept
