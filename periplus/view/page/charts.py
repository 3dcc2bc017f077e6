"""Charts of the HTML report: pure functions from numbers to inline SVG.

Each chart has a title, axes with units, and a summary for screen readers. Colours are classes (`c1`, `c2`, `muted`,
`bad`) that the page's style sheet defines, so the same drawing serves light and dark pages.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from periplus.view import svg, units
from periplus.view.axes import Axis, log_axis, nice_range
from periplus.view.svg import Markup

WIDTH, HEIGHT = 560, 268
"""Size of a chart in the units of its SVG, margins included."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 16, 54, 42
_PLOT_W, _PLOT_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MAX_POINTS = 500
"""Most points of a drawn line, about one for each pixel; more would only make the file longer."""
_NOTHING = "no data was recorded"

Points = Sequence[tuple[float, float]]
"""Points (x, y) of a line, in rising order of x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """A line of a chart. `style` is line, faint (raw values behind a smooth line) or dots (joined points).

    `band` has the lower and the upper end of each point's interval, or nothing.
    """

    label: str
    points: Points
    colour: str = "c1"
    style: str = "line"
    band: Sequence[tuple[float, float]] = ()


def line_chart(
    title: str,
    series: Sequence[ChartSeries],
    *,
    unit: str,
    x_label: str = "training step",
    logarithmic: bool = False,
    from_zero: bool = False,
    tick: Callable[[float], str] = units.tick,
) -> Markup:
    """Draw lines over steps.

    Values that are not finite, or not positive on a logarithmic axis, are left out. `tick` formats a value of the y
    axis.
    """
    shown = [_cleaned(one, logarithmic) for one in series]
    shown = [one for one in shown if one.points]
    if not shown:
        return _empty(title, unit)
    xs = [x for one in shown for x, _ in one.points]
    # The x axis always holds 0 and 1, so that even a single point has an axis.
    x_axis = Axis(min(0.0, *xs), max(1.0, *xs), _LEFT, _LEFT + _PLOT_W)
    ys = [y for one in shown for _, y in one.points] + [end for one in shown for ends in one.band for end in ends]
    y_axis = _vertical(ys, logarithmic=logarithmic, from_zero=from_zero)
    body = _grid(y_axis, tick)
    # Steps are whole numbers: the axis may offer halves when it is short.
    body += [_x_tick(x_axis.at(value), f"{value:,.0f}") for value in x_axis.ticks() if value == int(value)]
    body.append(_x_title(x_label))
    # Positions come after thinning, since a long run has more points than the chart has pixels.
    for one in shown:
        if one.band:
            body.append(_band(one, x_axis, y_axis))
        body += _drawn(one, [(x_axis.at(x), y_axis.at(y)) for x, y in _thinned(one.points)])
    # A faint series only underlies its smoothed one, and needs no entry of its own.
    body += _legend([one for one in shown if one.style != "faint"] if len(shown) > 1 else [])
    spoken = "; ".join(
        f"{one.label} from {tick(one.points[0][1])} to {tick(one.points[-1][1])}"
        for one in shown
        if one.style != "faint"
    )
    return _frame(title, unit + (", logarithmic" if logarithmic else ""), spoken, body)


def histogram(title: str, counts: Mapping[int, int], *, bound: int | None, unit: str, x_label: str) -> Markup:
    """Draw the shares of a total by whole number, such as tokens by staleness.

    A line is drawn after the bar of the `bound`, and bars beyond it have the colour of an error.
    """
    total = sum(counts.values())
    if not total:
        return _empty(title, unit)
    # One more column than the largest key, so that something stands to the right of the bound's line.
    last = max(max(counts), bound or 0) + 1
    step = _PLOT_W / (last + 1)
    y_axis = _vertical([max(counts.values()) / total], logarithmic=False, from_zero=True)
    body = _grid(y_axis, lambda share: f"{share * 100:.0f}")
    bar_width = min(54.0, step * 0.68)
    for key in range(last + 1):
        share, middle = counts.get(key, 0) / total, _LEFT + step * (key + 0.5)
        if share:
            y = y_axis.at(share)
            colour = "bad" if bound is not None and key > bound else "c1"
            body.append(_bar(colour, middle - bar_width / 2, y, bar_width, y_axis.start - y, radius=2))
            body.append(_words("value", middle, y - 6, f"{share * 100:.1f} %"))
        # Beyond that the labels would touch.
        if last <= 24 or key % 5 == 0:
            body.append(_x_tick(middle, str(key)))
    if bound is not None:
        x = _LEFT + step * (bound + 1)
        body.append(svg.element("path", class_="bound", d=svg.path("M", x, _TOP - 6, "V", y_axis.start)))
        body.append(_words("boundlabel", x + 6, _TOP + 4, f"bound {bound}"))
    body.append(_x_title(x_label))
    spoken = ", ".join(f"{key}: {count / total * 100:.1f} %" for key, count in sorted(counts.items()))
    return _frame(title, unit, spoken, body)


def comparison(title: str, rows: Sequence[tuple[str, float, str]]) -> Markup:
    """Draw byte counts as bars on one linear scale. A row is (label, bytes, colour class)."""
    longest = max(num_bytes for _, num_bytes, _ in rows)
    body = [_words("title", 0, 14, title)]
    for i, (label, num_bytes, colour) in enumerate(rows):
        y = 40 + i * 46
        wide = max(2.0, num_bytes / longest * 880) if longest else 0
        body.append(_words("barlabel", 0, y, label))
        body.append(_bar(colour, 0, y + 7, wide, 16, radius=3))
        body.append(_words("barvalue", wide + 10, y + 20, units.size(num_bytes)))
    spoken = "; ".join(f"{label}: {units.size(num_bytes)}" for label, num_bytes, _ in rows)
    return svg.inline(f"{title}. {spoken}", 1000, 20 + len(rows) * 46, body)


def smoothed(points: Points, window: int) -> list[tuple[float, float]]:
    """Return the moving average of the finite points: each with up to `window` - 1 points before it."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return [
        (x, sum(y for _, y in finite[max(0, i + 1 - window) : i + 1]) / min(window, i + 1))
        for i, (x, _) in enumerate(finite)
    ]


def _cleaned(series: ChartSeries, logarithmic: bool) -> ChartSeries:
    points = [(x, y) for x, y in series.points if math.isfinite(y) and (y > 0 or not logarithmic)]
    return replace(series, points=points)


def _band(series: ChartSeries, x_axis: Axis, y_axis: Axis) -> Markup:
    xs = [x_axis.at(x) for x, _ in series.points]
    # A single interval has no width in steps; it is drawn as wide as its dot.
    xs = [xs[0] - 4, xs[0] + 4] if len(xs) == 1 else xs
    ends = list(series.band) * 2 if len(series.band) == 1 else list(series.band)
    upper = [(x, y_axis.at(high)) for x, (_, high) in zip(xs, ends, strict=True)]
    lower = [(x, y_axis.at(low)) for x, (low, _) in zip(xs, ends, strict=True)]
    return svg.element("path", class_=f"{series.colour} fill band", d=svg.polyline([*upper, *reversed(lower)]) + " Z")


def _thinned(points: Points) -> Points:
    stride = max(1, len(points) // _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _vertical(values: Sequence[float], *, logarithmic: bool, from_zero: bool) -> Axis:
    bottom = _TOP + _PLOT_H
    if logarithmic:
        low, high = math.floor(math.log10(min(values))), math.floor(math.log10(max(values))) + 1
        return log_axis(10.0**low, 10.0**high, bottom, _TOP)
    return Axis(*nice_range([*values, 0.0] if from_zero else values), bottom, _TOP)


def _drawn(series: ChartSeries, places: Sequence[tuple[float, float]]) -> list[Markup]:
    line = svg.element("path", class_=f"{series.colour} {series.style}", d=svg.polyline(places))
    if series.style != "dots" and len(places) > 1:
        return [line]
    return [line, *(svg.element("circle", class_=f"{series.colour} fill", cx=x, cy=y, r=4) for x, y in places)]


def _legend(series: Sequence[ChartSeries]) -> list[Markup]:
    # From the right edge inwards, about 6.6 px a letter at 12 px.
    marks, right = [], float(WIDTH - _RIGHT)
    for one in reversed(series):
        right -= 6.6 * len(one.label)
        marks.append(_words("legend", right, 38, one.label))
        marks.append(svg.element("path", class_=f"{one.colour} line", d=svg.path("M", right - 22, 34, "h", 16)))
        right -= 40
    return marks


def _grid(up: Axis, tick: Callable[[float], str]) -> list[Markup]:
    shapes = []
    for value in up.ticks(num_steps=4, mantissas=(1,)):
        y = up.at(value)
        shapes.append(svg.element("path", class_="grid", d=svg.path("M", _LEFT, y, "h", _PLOT_W)))
        shapes.append(_words("tick", _LEFT - 8, y + 4, tick(value), anchor="end"))
    return shapes


def _x_tick(x: float, label: str) -> Markup:
    return _words("tick", x, _TOP + _PLOT_H + 17, label, anchor="middle")


def _x_title(label: str) -> Markup:
    return _words("axis", _LEFT + _PLOT_W, HEIGHT - 8, label, anchor="end")


def _words(kind: str, x: float, y: float, words: str, *, anchor: str | None = None) -> Markup:
    return svg.element("text", svg.text(words), class_=kind, x=x, y=y, text_anchor=anchor)


def _bar(colour: str, x: float, y: float, width: float, height: float, *, radius: float) -> Markup:
    return svg.element("rect", class_=f"{colour} fill", x=x, y=y, width=width, height=height, rx=radius)


def _empty(title: str, unit: str) -> Markup:
    return _frame(title, unit, _NOTHING, [_words("none", WIDTH / 2, 150, _NOTHING)])


def _frame(title: str, unit: str, spoken: str, body: Sequence[Markup]) -> Markup:
    heading = [_words("title", 0, 16, title), _words("axis", 0, 38, unit)]
    return svg.inline(f"{title}. {spoken}", WIDTH, HEIGHT, [*heading, *body])
