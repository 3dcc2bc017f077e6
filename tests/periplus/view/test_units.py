import pytest

from periplus.view import units
from periplus.view.terminal.blocks import bar, curve


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (12, "12"), (12.34, "12.3"), (999.6, "1.00k"), (1234, "1.23k"), (5e6, "5M")],
)
def test_short_numbers_have_three_digits(value: float, text: str) -> None:
    assert units.short(value) == text


def test_quantities_carry_their_unit_and_nothing_is_made_up() -> None:
    assert units.size(12_340_000) == "12.3 MB"
    assert units.size(900) == "900 B"
    assert units.clock(3723) == "1:02:03"
    assert units.duration(12.34) == "12.3 s"
    assert units.factor(490, 10) == "49x"
    assert [units.size(None), units.percent(float("nan")), units.factor(1, 0)] == [units.UNKNOWN] * 3


def test_bars_are_as_long_as_their_share() -> None:
    assert [bar(fraction, 4) for fraction in (0, 1e-9, 0.5, 1, 7)] == ["", "▏", "██", "████", "████"]


def test_a_rising_curve_goes_from_the_lower_left_to_the_upper_right() -> None:
    rows = curve([(0, 0.0), (1, 1.0)], (0, 1), (0, 1), (4, 2))
    assert [len(row) for row in rows] == [4, 4]
    assert rows[0][:2] == "  "
    assert rows[1][2:] == "  "
