"""How good each method's best placement was after how much thinking, over all of HetRL's cases."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from bench.planner_cases.cells import Row
from bench.planner_cases.fleets.published_workloads import ALGORITHMS
from bench.planner_cases.hetrl import OURS
from bench.planner_cases.report import drawing
from bench.planner_cases.report.captions import MARGIN, NOTE, WIDTH, head, notes
from bench.planner_cases.report.hetrl_tables import METHODS, AtTime, best_ever, over_time
from bench.planner_cases.report.markdown import counted
from periplus.view.axes import Axis, log_axis
from periplus.view.svg import Markup

TITLE = "Quality against thinking time"
_COLOURS = dict(zip(METHODS, ("actor_training", "reward", "reference"), strict=True))
_NAMES = {OURS: "auto (ours)", "hetrl": "HetRL's search, re-implemented", "areal_hex": "AReaL-Hex's, re-implemented"}
_HEIGHT = 330.0
_GAP = 64.0


def time_svg(rows: Sequence[Row], note: str = "") -> str:
    """One panel an algorithm."""
    shapes, y = head(
        TITLE,
        [
            "Seconds a step of each method's best placement over the best that any of them ever found, geometric mean "
            "over HetRL's cases. A ring: in some cases the method has no placement yet (how many); "
            "the mean is of the others.",
            note,
        ],
    )
    entries = [(_COLOURS[method], _NAMES[method]) for method in METHODS]
    more, y = drawing.legend(
        MARGIN, y + 24, [*entries, ("bad", "no placement can be below (certified)")], WIDTH - 2 * MARGIN
    )
    shapes += more
    top, bottom = y + 44, y + 44 + _HEIGHT
    wide = (WIDTH - 2 * MARGIN - 44 - _GAP) / 2
    panels = [[row for row in rows if row["algorithm"] == name] for name in ALGORITHMS]
    vertical = _vertical(panels, top, bottom)
    for i, (name, chosen) in enumerate(zip(ALGORITHMS, panels, strict=True)):
        left = MARGIN + 44 + i * (wide + _GAP)
        shapes += _panel(f"{name.upper()}, {counted(len(chosen), 'case')}", chosen, vertical, left, left + wide)
    lines = ["All methods choose among the same placements and are judged by the same oracle; one run each."]
    more, y = notes(lines, bottom + 56)
    return drawing.document(TITLE, _spoken(rows), WIDTH, y + 4, [*shapes, *more])


def _vertical(panels: Sequence[Sequence[Row]], top: float, bottom: float) -> Axis:
    """The same in both panels."""
    means = [
        at.mean for rows in panels for found in over_time(rows).values() for at in found.values() if at.mean is not None
    ]
    least = min([1.0, *(least for rows in panels if (least := _least(rows)))])
    return log_axis(0.97 * least, 1.06 * max([1.2, *means]), bottom, top)


def _panel(title: str, rows: Sequence[Row], vertical: Axis, left: float, right: float) -> list[Markup]:
    top, bottom = vertical.end, vertical.start
    shapes = [drawing.text(left, top - 12, title, bold=True)]
    found = over_time(rows)
    times = list(found[OURS])
    if not rows or len(times) < 2:
        return [*shapes, drawing.text(left, top + 24, "not measured", colour="soft")]
    axis = log_axis(times[0] * 0.9, times[-1] * 1.1, left, right)
    shapes += drawing.grid_x(axis, times, top, bottom) + drawing.grid_y(vertical, _ticks(vertical), left, right)
    shapes.append(drawing.text(right, bottom + 36, "seconds of thinking", size=NOTE, colour="soft", anchor="end"))
    if least := _least(rows):
        y = vertical.at(least)
        shapes.append(drawing.line([(left, y), (right, y)], "bad", width=1.6, dashed=True))
    for i, method in reversed(list(enumerate(METHODS))):
        shapes += _line(method, found[method], axis, vertical)
        shapes += _nothing(method, found[method], axis, top + 8 + 14 * i)
    return shapes


def _ticks(axis: Axis) -> list[float]:
    return axis.ticks(mantissas=(1, 1.1, 1.2, 1.5, 2, 3, 5, 7)) if axis.high / axis.low < 6 else axis.ticks()


def _least(rows: Sequence[Row]) -> float | None:
    """Of what is certified, over the best found; None where a case has no bound."""
    if not rows or any(not row["bound_s"] for row in rows):
        return None
    return geometric_mean([min(1.0, row["bound_s"] / best_ever(row)) for row in rows])


def _line(method: str, found: Mapping[float, AtTime], axis: Axis, vertical: Axis) -> list[Markup]:
    colour = _COLOURS[method]
    points = [(axis.at(s), vertical.at(at.mean), at) for s, at in found.items() if at.mean is not None]
    shapes = [drawing.line([(x, y) for x, y, _ in points], colour, width=2.2)] if len(points) > 1 else []
    for x, y, at in points:
        tip = f"{method}: {at.mean:.3f}, behind in {counted(at.num_behind, 'case')}, none yet in {at.num_without}"
        shapes.append(drawing.ring(x, y, colour, 9, filled=not at.num_without, tip=tip))
        if at.num_without:
            shapes.append(drawing.text(x + 7, y - 7, str(at.num_without), size=NOTE, colour=colour))
    return shapes


def _nothing(method: str, found: Mapping[float, AtTime], axis: Axis, y: float) -> list[Markup]:
    """Rings at the top, at times when the method has a placement in none of the cases."""
    colour = _COLOURS[method]
    empty = [(axis.at(seconds), at.num_without) for seconds, at in found.items() if at.mean is None]
    rings = [drawing.ring(x, y, colour, 9, tip=f"{method}: no placement in any case") for x, _ in empty]
    return rings + [drawing.text(x + 8, y + 4, str(num), size=NOTE, colour=colour) for x, num in empty]


def _spoken(rows: Sequence[Row]) -> str:
    parts = []
    for method, found in over_time(rows).items():
        for seconds, at in found.items():
            mean = "no placement" if at.mean is None else f"{at.mean:.3f}"
            parts.append(f"{method} after {seconds:g} s: {mean}")
    return "; ".join(parts)
