import math
from xml.etree import ElementTree

import pytest

from periplus.view.page.charts import ChartSeries, comparison, histogram, line_chart, smoothed

EVIL = "<b a='1'>&\""


def words(chart: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(chart).iter("text")]


def series(*values: float, label: str = "a", style: str = "line") -> ChartSeries:
    return ChartSeries(label=label, points=list(enumerate(values)), style=style)


@pytest.mark.parametrize(
    ("chart", "count"),
    [
        (
            line_chart(
                EVIL,
                [series(1, 2, label=EVIL), series(2, 3)],
                unit=EVIL,
                x_label=EVIL,
                tick=lambda value: EVIL,
            ),
            5,
        ),
        (histogram(EVIL, {0: 3}, bound=1, unit=EVIL, x_label=EVIL), 3),
        (comparison(EVIL, [(EVIL, 3.0, "c1")]), 2),
        (line_chart(EVIL, [], unit=EVIL), 2),
    ],
)
def test_every_word_of_a_chart_is_escaped(chart: str, count: int) -> None:
    assert words(chart).count(EVIL) >= count
    assert ElementTree.fromstring(chart).attrib["aria-label"].startswith(f"{EVIL}. ")


def test_a_logarithmic_chart_has_a_line_at_each_power_of_ten() -> None:
    chart = line_chart("t", [series(20, 3000)], unit="B", logarithmic=True)
    assert words(chart)[2:6] == ["10", "100", "1k", "10k"]


def test_a_point_that_stands_alone_is_drawn_as_a_dot() -> None:
    assert line_chart("t", [series(1)], unit="").count("<circle") == 1
    assert line_chart("t", [series(1, 2)], unit="").count("<circle") == 0
    assert line_chart("t", [series(1, 2, style="dots")], unit="").count("<circle") == 2


def test_bars_beyond_the_bound_are_marked() -> None:
    chart = histogram("t", {0: 3, 1: 1, 2: 1}, bound=1, unit="", x_label="")
    kinds = [bar.attrib["class"] for bar in ElementTree.fromstring(chart).iter("rect")]
    assert kinds == ["c1 fill", "c1 fill", "bad fill"]
    assert "20.0 %" in words(chart)


def test_values_that_are_not_finite_are_left_out_of_a_mean() -> None:
    assert smoothed([(0, 1.0), (1, math.nan), (2, 3.0)], 2) == [(0, 1.0), (2, 2.0)]
