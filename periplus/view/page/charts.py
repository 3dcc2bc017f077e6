"""Charts of the HTML report: pure functions from numbers to inline SVG.

Each chart has a title, axes with units, and a summary for screen readers. Colours are classes (`c1`, `c2`, `muted`,
`bad`) that the page's style sheet defines, so the same drawing serves light and dark pages.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from periplus.view import units
from periplus.view.terminal.blocks import nice_range, ticks

WIDTH, HEIGHT = 560, 268
"""Size of a chart in the units of its SVG, margins included."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 16, 54, 42
_PLOT_W, _PLOT_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MAX_POINTS = 500
"""Most points of a drawn line, about one for each pixel; more would only make the file longer."""

Points = Sequence[tuple[float, float]]
"""Points (x, y) of a line, in rising order of x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """A line of a chart. `style` is line, faint (raw values behind a smooth line) or dots (joined points)."""

    label: str
    points: Points
    colour: str = "c1"
    style: str = "line"


def line_chart(
    title: str,
    series: Sequence[ChartSeries],
    *,
    unit: str,
    x_label: str = "training step",
    logarithmic: bool = False,
    from_zero: bool = False,
    tick: Callable[[float], str] = units.tick,
) -> str:
    """Draw lines over steps.

    Values that are not finite, or not positive on a logarithmic axis, are left out. `tick` formats a value of the y
    axis.
    """
    shown = [_cleaned(one, logarithmic) for one in series]
    shown = [one for one in shown if one.points]
    if not shown:
        return _frame(
            title, unit, "no data was recorded", '<text class="none" x="280" y="150">no data was recorded</text>'
        )
    xs = [x for one in shown for x, _ in one.points]
    x_range = (min(0.0, *xs), max(1.0, *xs))
    scale = math.log10 if logarithmic else float
    ys = [scale(y) for one in shown for _, y in one.points] + ([0.0] if from_zero else [])
    y_range = (float(math.floor(min(ys))), math.floor(max(ys)) + 1.0) if logarithmic else nice_range(ys)
    y_ticks = ticks(y_range, math.ceil(y_range[1] - y_range[0]) if logarithmic else 4)

    # On a logarithmic axis, y_range and y_ticks hold exponents of ten.
    def place(x: float, y: float) -> tuple[float, float]:
        return _x(x, x_range), _y(scale(y), y_range)

    body = [_grid_line(_y(value, y_range), tick(10.0**value if logarithmic else value)) for value in y_ticks]
    body += [_x_tick(_x(value, x_range), f"{value:,.0f}") for value in ticks(x_range, 5) if value == int(value)]
    body.append(f'<text class="axis" x="{_LEFT + _PLOT_W}" y="{HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>')
    body += [_drawn(one, [place(x, y) for x, y in _thinned(one.points)]) for one in shown]
    body += _legend([one for one in shown if one.style != "faint"] if len(shown) > 1 else [])
    spoken = "; ".join(
        f"{one.label} from {tick(one.points[0][1])} to {tick(one.points[-1][1])}"
        for one in shown
        if one.style != "faint"
    )
    return _frame(title, unit + (", logarithmic" if logarithmic else ""), spoken, "".join(body))


def histogram(title: str, counts: Mapping[int, int], *, bound: int | None, unit: str, x_label: str) -> str:
    """Draw the shares of a total by whole number, such as tokens by staleness.

    A line is drawn after the bar of the `bound`, and bars beyond it have the colour of an error.
    """
    total = sum(counts.values())
    if not total:
        return _frame(
            title, unit, "no data was recorded", '<text class="none" x="280" y="150">no data was recorded</text>'
        )
    last = max(max(counts), bound or 0) + 1
    step = _PLOT_W / (last + 1)
    top = nice_range([0.0, max(counts.values()) / total])[1]
    body = [_grid_line(_y(value, (0, top)), f"{value * 100:.0f}") for value in ticks((0, top), 4)]
    for key in range(last + 1):
        share, middle = counts.get(key, 0) / total, _LEFT + step * (key + 0.5)
        y = _y(share, (0, top))
        wide = min(54.0, step * 0.68)
        colour = "bad" if bound is not None and key > bound else "c1"
        place = f'x="{middle - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_TOP + _PLOT_H - y:.1f}"'
        if share:
            body.append(f'<rect class="{colour} fill" {place} rx="2"/>')
            body.append(f'<text class="value" x="{middle:.1f}" y="{y - 6:.1f}">{share * 100:.1f} %</text>')
        if last <= 24 or key % 5 == 0:
            body.append(_x_tick(middle, str(key)))
    if bound is not None:
        x = _LEFT + step * (bound + 1)
        body.append(f'<path class="bound" d="M{x:.1f} {_TOP - 6}V{_TOP + _PLOT_H}"/>')
        body.append(f'<text class="boundlabel" x="{x + 6:.1f}" y="{_TOP + 4}">bound {bound}</text>')
    body.append(f'<text class="axis" x="{_LEFT + _PLOT_W}" y="{HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>')
    spoken = ", ".join(f"{key}: {count / total * 100:.1f} %" for key, count in sorted(counts.items()))
    return _frame(title, unit, spoken, "".join(body))


def comparison(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw byte counts as bars on one linear scale. A row is (label, bytes, colour class)."""
    longest = max(num_bytes for _, num_bytes, _ in rows)
    body = []
    for i, (label, num_bytes, colour) in enumerate(rows):
        y = 40 + i * 46
        wide = max(2.0, num_bytes / longest * 880) if longest else 0
        body.append(f'<text class="barlabel" x="0" y="{y}">{escape(label)}</text>')
        body.append(f'<rect class="{colour} fill" x="0" y="{y + 7}" width="{wide:.1f}" height="16" rx="3"/>')
        body.append(f'<text class="barvalue" x="{wide + 10:.1f}" y="{y + 20}">{units.size(num_bytes)}</text>')
    spoken = "; ".join(f"{label}: {units.size(num_bytes)}" for label, num_bytes, _ in rows)
    heading = f'<text class="title" x="0" y="14">{escape(title)}</text>'
    return _svg(title, spoken, "".join(body), 1000, 20 + len(rows) * 46, heading)


def smoothed(points: Points, window: int) -> list[tuple[float, float]]:
    """Return the moving average of the finite points: each with up to `window` - 1 points before it."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return [
        (x, sum(y for _, y in finite[max(0, i + 1 - window) : i + 1]) / min(window, i + 1))
        for i, (x, _) in enumerate(finite)
    ]


def _cleaned(series: ChartSeries, logarithmic: bool) -> ChartSeries:
    points = [(x, y) for x, y in series.points if math.isfinite(y) and (y > 0 or not logarithmic)]
    return ChartSeries(label=series.label, points=points, colour=series.colour, style=series.style)


def _thinned(points: Points) -> Points:
    stride = max(1, len(points) // _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _x(value: float, value_range: tuple[float, float]) -> float:
    return _LEFT + (value - value_range[0]) / (value_range[1] - value_range[0]) * _PLOT_W


def _y(value: float, value_range: tuple[float, float]) -> float:
    return _TOP + _PLOT_H - (value - value_range[0]) / (value_range[1] - value_range[0]) * _PLOT_H


def _drawn(series: ChartSeries, places: Sequence[tuple[float, float]]) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    line = f'<path class="{series.colour} {series.style}" d="{path}"/>'
    if series.style == "dots" or len(places) == 1:
        line += "".join(f'<circle class="{series.colour} fill" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places)
    return line


def _legend(series: Sequence[ChartSeries]) -> list[str]:
    # From the right edge inwards, about 6.6 px a letter at 12 px.
    marks, right = [], float(WIDTH - _RIGHT)
    for one in reversed(series):
        right -= 6.6 * len(one.label)
        marks.append(f'<text class="legend" x="{right:.1f}" y="38">{escape(one.label)}</text>')
        marks.append(f'<path class="{one.colour} line" d="M{right - 22:.1f} 34h16"/>')
        right -= 40
    return marks


def _grid_line(y: float, label: str) -> str:
    text = f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    return f'<path class="grid" d="M{_LEFT} {y:.1f}h{_PLOT_W}"/>{text}'


def _x_tick(x: float, label: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{_TOP + _PLOT_H + 17}" text-anchor="middle">{escape(label)}</text>'


def _frame(title: str, unit: str, spoken: str, body: str) -> str:
    heading = (
        f'<text class="title" x="0" y="16">{escape(title)}</text><text class="axis" x="0" y="38">{escape(unit)}</text>'
    )
    return _svg(title, spoken, body, WIDTH, HEIGHT, heading)


def _svg(title: str, spoken: str, body: str, width: int, height: int, heading: str) -> str:
    label = escape(f"{title}. {spoken}", quote=True)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{heading}{body}</svg>'
