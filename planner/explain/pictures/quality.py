"""Chart of solution quality: the best objective value of each method over time, and the proved lower bound."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from periplus.view import units
from periplus.view.terminal.blocks import nice_range, ticks
from planner.explain.pictures import svg

WIDTH, _HEIGHT = 980.0, 470.0
"""Width of the picture in pixels. The other lengths are pixels too."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 190.0, 74.0, 58.0
"""Margins around the plot; the right one holds the legend."""
_LINES = (
    ("generation", ""),
    ("reward", "9 3"),
    ("actor_training", ""),
    ("critic_training", "9 3"),
    ("reference", "3 3"),
    ("critic_inference", ""),
    ("weights", "9 3"),
    ("pink", ""),
    ("ink", "3 3"),
)
"""Colour and dashes of each method, which keep lines apart that lie on each other."""
_BOUND = ("bad", "4 4")
"""Colour and dashes of the proved bound."""
_APART = 17.0
"""Least distance between the baselines of two labels, in pixels."""
_FIRST_S = 1e-3
"""Start of the axis of time: one millisecond."""

Trace = Sequence[tuple[float, float]]
"""Pairs (seconds of search, objective value) with falling values."""


def quality_svg(traces: Mapping[str, Trace], *, unit: str, bound: float | None, budget_s: float, title: str) -> str:
    """Return one line per method on a logarithmic axis of time. Methods that found nothing are only named."""
    found = {name: _steps(trace, budget_s) for name, trace in traces.items() if trace}
    shapes = [svg.text(28, 40, title, size=18, bold=True), svg.text(28, 62, unit, size=12, colour="soft")]
    if not found:
        shapes.append(svg.text(28, 110, "no method found a placement"))
        return svg.document(title, "no method found a placement", WIDTH, 140, shapes)
    axis = _Axis.over([steps[-1][1] for steps in found.values()] + ([bound] if bound else []))
    first_s = min(budget_s / 10, min(at for steps in found.values() for at, _ in steps))
    x_range = (math.floor(math.log10(first_s)), math.log10(budget_s))

    def place(at_s: float, value: float) -> tuple[float, float]:
        share = (math.log10(max(at_s, _FIRST_S)) - x_range[0]) / max(x_range[1] - x_range[0], 1e-9)
        wide, tall = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + share * wide, _TOP + tall - axis.share(value) * tall

    shapes += _axes(x_range, axis, budget_s, place)
    if bound is not None:
        shapes.append(
            svg.line([(_LEFT, place(1, bound)[1]), (WIDTH - _RIGHT, place(1, bound)[1])], _BOUND[0], dashes=_BOUND[1])
        )
    ends = [
        (place(*steps[-1])[1], name, steps[-1][1], _LINES[i % len(_LINES)], steps)
        for i, (name, steps) in enumerate(found.items())
    ]
    for _, _, _, (colour, dashes), steps in ends:
        shapes.append(svg.line([place(*step) for step in steps], colour, width=2.2, dashes=dashes))
    marks = [(y, f"{name} {units.short(value)}", style) for y, name, value, style, _ in ends]
    if bound is not None:
        marks.append((place(1, bound)[1], f"proved bound {units.short(bound)}", _BOUND))
    shapes += _labels(marks)
    lost = ", ".join(name for name, trace in traces.items() if not trace)
    if lost:
        shapes.append(svg.text(28, _HEIGHT - 8, f"found nothing: {lost}", size=12, colour="soft"))
    spoken = "; ".join(f"{name} {units.short(value)}" for _, name, value, _, _ in ends)
    return svg.document(title, spoken, WIDTH, _HEIGHT, shapes)


def _steps(trace: Trace, budget_s: float) -> list[tuple[float, float]]:
    """Return the trace as a staircase: a value holds until a better one is found."""
    points: list[tuple[float, float]] = []
    for at_s, value in trace:
        if points:
            points.append((max(at_s, _FIRST_S), points[-1][1]))
        points.append((max(at_s, _FIRST_S), value))
    return [*points, (max(budget_s, points[-1][0]), points[-1][1])]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis of objective values, logarithmic if the final values differ by more than three times.

    Early values beyond its upper end are cut off.
    """

    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, answers: Sequence[float]) -> "_Axis":
        """Return the axis that shows these final values."""
        low, high = min(answers), max(answers)
        if high > 3 * low > 0:
            return cls(0.8 * low, 1.25 * high, True)
        return cls(*nice_range([low, high, low + 1.3 * (high - low)]), False)

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return the values at which the axis has labels."""
        if not self.is_log:
            return ticks((self.low, self.high), 5)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
        return [m * 10.0**p for p in powers for m in (1, 2, 5) if self.low <= m * 10.0**p <= self.high]


def _axes(
    x_range: tuple[float, float], axis: _Axis, budget_s: float, place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    """Return the shapes of both axes with their labels."""
    shapes = []
    for value in axis.ticks():
        y = place(1, value)[1]
        shapes += [
            svg.line([(_LEFT, y), (WIDTH - _RIGHT, y)], "line"),
            svg.text(_LEFT - 8, y + 4, units.tick(value), size=12, colour="soft", anchor="end"),
        ]
    for power in range(int(x_range[0]), math.floor(x_range[1]) + 1):
        x = place(10.0**power, axis.low)[0]
        shapes += [
            svg.line([(x, _TOP), (x, _HEIGHT - _BOTTOM)], "line"),
            svg.text(x, _HEIGHT - _BOTTOM + 18, f"{10.0**power:g}", size=12, colour="soft", anchor="middle"),
        ]
    words = f"seconds of search, of {budget_s:g} allowed"
    shapes.append(svg.text(WIDTH - _RIGHT, _HEIGHT - _BOTTOM + 38, words, size=12, colour="soft", anchor="end"))
    return shapes


def _labels(marks: Sequence[tuple[float, str, tuple[str, str]]]) -> list[str]:
    """Return labels at the ends of the lines, moved apart so that they do not overlap."""
    shapes, order, left = [], sorted(marks), WIDTH - _RIGHT
    for (y, words, (colour, dashes)), at in zip(order, _apart([y for y, _, _ in order]), strict=True):
        shapes.append(svg.line([(left + 2, y), (left + 12, at)], colour, width=1.2))
        shapes.append(svg.line([(left + 12, at), (left + 30, at)], colour, width=2.2, dashes=dashes))
        shapes.append(svg.text(left + 35, at + 4, svg.fitted(words, _RIGHT - 39, 12), size=12, colour="soft"))
    return shapes


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return heights near the ascending wanted ones: first pushed down, then up from the plot's lower edge."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + _APART) if places else y)
    lowest = _HEIGHT - _BOTTOM
    for i in reversed(range(len(places))):
        places[i] = min(places[i], lowest)
        lowest = places[i] - _APART
    return places
