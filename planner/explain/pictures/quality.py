"""Chart of solution quality: the best objective value of each method over time, and the proved lower bound."""

import math
from collections.abc import Mapping, Sequence

from periplus.view import units
from periplus.view.axes import Axis, log_axis, nice_range
from periplus.view.svg import Markup
from planner.explain.pictures import drawing

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
    shapes = [drawing.text(28, 40, title, size=18, bold=True), drawing.text(28, 62, unit, size=12, colour="soft")]
    if not found:
        shapes.append(drawing.text(28, 110, "no method found a placement"))
        return drawing.document(title, "no method found a placement", WIDTH, 140, shapes)
    # The axis starts at the power of ten before the first answer, and shows at least one decade.
    first_s = min(budget_s / 10, min(at for steps in found.values() for at, _ in steps))
    across = log_axis(10.0 ** math.floor(math.log10(first_s)), budget_s, _LEFT, WIDTH - _RIGHT)
    # The axis of values fits the final answers and the bound. Early incumbents may be far above and are cut off.
    up = _vertical([steps[-1][1] for steps in found.values()] + ([bound] if bound else []))
    shapes += drawing.grid_y(up, up.ticks(), across.start, across.end, label=units.tick)
    shapes += drawing.grid_x(across, across.ticks(mantissas=(1,)), up.end, up.start)
    words = f"seconds of search, of {budget_s:g} allowed"
    shapes.append(drawing.text(across.end, up.start + 38, words, size=12, colour="soft", anchor="end"))
    # A dashed line across the plot: no method can get below it.
    if bound is not None:
        y = up.at(bound)
        shapes.append(drawing.line([(across.start, y), (across.end, y)], _BOUND[0], dashes=_BOUND[1]))
    # Styles go by the order of methods and repeat when there are more methods than styles.
    ends = [
        (up.at(steps[-1][1]), name, steps[-1][1], _LINES[i % len(_LINES)], steps)
        for i, (name, steps) in enumerate(found.items())
    ]
    for _, _, _, (colour, dashes), steps in ends:
        places = [(across.at(at_s), up.at(value)) for at_s, value in steps]
        shapes.append(drawing.line(places, colour, width=2.2, dashes=dashes))
    marks = [(y, f"{name} {units.short(value)}", style) for y, name, value, style, _ in ends]
    if bound is not None:
        marks.append((up.at(bound), f"proved bound {units.short(bound)}", _BOUND))
    shapes += _labels(marks)
    # Methods without an answer have no line, so they are named below the plot.
    lost = ", ".join(name for name, trace in traces.items() if not trace)
    if lost:
        shapes.append(drawing.text(28, _HEIGHT - 8, f"found nothing: {lost}", size=12, colour="soft"))
    spoken = "; ".join(f"{name} {units.short(value)}" for _, name, value, _, _ in ends)
    return drawing.document(title, spoken, WIDTH, _HEIGHT, shapes)


def _steps(trace: Trace, budget_s: float) -> list[tuple[float, float]]:
    """Return the trace as a staircase: a value holds until a better one is found."""
    points: list[tuple[float, float]] = []
    for at_s, value in trace:
        if points:
            # The old value holds until this moment: the corner of the staircase. A logarithmic axis has no 0, so times
            # start at `_FIRST_S`.
            points.append((max(at_s, _FIRST_S), points[-1][1]))
        points.append((max(at_s, _FIRST_S), value))
    return [*points, (max(budget_s, points[-1][0]), points[-1][1])]


def _vertical(answers: Sequence[float]) -> Axis:
    """Return the axis that shows these final values, logarithmic if they differ by more than three times.

    Early values beyond its upper end are cut off.
    """
    low, high, bottom = min(answers), max(answers), _HEIGHT - _BOTTOM
    # Answers of very different size need a logarithmic axis to stay apart.
    if high > 3 * low > 0:
        return log_axis(0.8 * low, 1.25 * high, bottom, _TOP)
    # Room above the worst answer shows some of the way there.
    return Axis(*nice_range([low, high, low + 1.3 * (high - low)]), bottom, _TOP)


def _labels(marks: Sequence[tuple[float, str, tuple[str, str]]]) -> list[Markup]:
    """Return labels at the ends of the lines, moved apart so that they do not overlap."""
    shapes, order, left = [], sorted(marks), WIDTH - _RIGHT
    for (y, words, (colour, dashes)), at in zip(order, _apart([y for y, _, _ in order]), strict=True):
        # A thin line leads from the end of the method's line to its label, then a sample of its style follows.
        shapes.append(drawing.line([(left + 2, y), (left + 12, at)], colour, width=1.2))
        shapes.append(drawing.line([(left + 12, at), (left + 30, at)], colour, width=2.2, dashes=dashes))
        shapes.append(drawing.text(left + 35, at + 4, drawing.fitted(words, _RIGHT - 39, 12), size=12, colour="soft"))
    return shapes


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return heights near the ascending wanted ones: first pushed down, then up from the plot's lower edge."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + _APART) if places else y)
    # The first pass may have pushed labels below the plot; the second one moves them up again, from the lowest on.
    lowest = _HEIGHT - _BOTTOM
    for i in reversed(range(len(places))):
        places[i] = min(places[i], lowest)
        lowest = places[i] - _APART
    return places
