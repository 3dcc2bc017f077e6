"""Gantt chart of a simulated run: a row for each unit, with bars coloured by task, over a few steps."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from periplus.view import units
from periplus.view.axes import Axis, ticks
from periplus.view.svg import Markup
from planner.explain.pictures import drawing
from planner.problem.workload import TASKS, TRAINING
from planner.simulate.run_record import BusySpan, Simulated

WIDTH = 980.0
"""Width of the picture in pixels. `_MARGIN`, `_LABELS` and `_ROW` are pixels too."""
_MARGIN = 28.0
_LABELS = 210.0
_ROW = 16.0
_MAX_ROWS_A_PLACE = 6
"""Largest number of rows of one class or link in a region; further units look the same."""
_SHORTEST_WAIT = 0.003
"""Shortest wait that is drawn, as a share of its row."""


def gantt_svg(simulated: Simulated, title: str = "") -> str:
    """Return the chart of the recorded bars, shifted to begin at 0. The default title gives the number of steps."""
    spans = simulated.spans
    title = title or _title(spans)
    if not spans:
        shapes = [
            drawing.text(_MARGIN, 42, title, size=18, bold=True),
            drawing.text(_MARGIN, 76, "no step was simulated"),
        ]
        return drawing.document(title, "no step was simulated", WIDTH, 100, shapes)
    begin_s, end_s = min(s.begin_s for s in spans), max(s.end_s for s in spans)
    # Time starts at 0 in the picture. Labels of rows take the left part.
    place = Axis(begin_s, end_s, _MARGIN + _LABELS, WIDTH - _MARGIN).at
    shapes = [drawing.text(_MARGIN, 40, title, size=18, bold=True)]
    used = {span.what for span in spans}
    # Known tasks in their usual order, then everything else by name, such as weights.
    order = [task.value for task in TASKS if task in used] + sorted(used - {task.value for task in TASKS})
    entries = [(what if what in {*TASKS, "weights"} else "idle", drawing.task_name(what)) for what in order]
    # The legend names waiting only if a gap is drawn.
    entries += [("waits", "training waits")] * any(_waits(spans))
    more, y = drawing.legend(_MARGIN, 68, entries, WIDTH - 2 * _MARGIN)
    shapes += more
    top = y + 22
    # The rows decide the height, so grid and labels come after them. In the file the grid is below the bars.
    rows, y = _rows(spans, top, place)
    axis = [
        drawing.line([(place(begin_s + at), top - 4), (place(begin_s + at), y)], "line")
        for at in ticks((0.0, end_s - begin_s), 6)
    ]
    labels = [
        drawing.text(place(begin_s + at), y + 18, units.tick(at), size=12, colour="soft", anchor="middle")
        for at in ticks((0.0, end_s - begin_s), 6)
    ]
    labels.append(drawing.text(_MARGIN, y + 18, "seconds", size=12, colour="soft"))
    step = f"{units.short(simulated.step_s)} s a step, {units.short(simulated.samples_per_s)} samples/s"
    labels.append(drawing.text(WIDTH - _MARGIN, 40, step, colour="soft", anchor="end"))
    return drawing.document(title, f"{step}; {len(spans)} spans", WIDTH, y + 34, [*shapes, *axis, *rows, *labels])


def _title(spans: Sequence[BusySpan]) -> str:
    num = len({span.step for span in spans if span.what in TRAINING})
    return "nothing" if not spans else "one simulated step" if num <= 1 else f"{num} simulated steps"


def _rows(spans: Sequence[BusySpan], y: float, place: Callable[[float], float]) -> tuple[list[Markup], float]:
    """Return the shapes of all rows from `y` on, and the height below them."""
    shapes: list[Markup] = []
    first_s = min(span.begin_s for span in spans)
    for region in dict.fromkeys(sorted(span.region for span in spans)):
        shapes.append(drawing.text(_MARGIN, y + 10, drawing.fitted(region, _LABELS - 10, 13), bold=True))
        y += 20
        # One row per unit, units of one pool together. Units beyond the limit are summarised.
        for places in _grouped(span.place for span in spans if span.region == region):
            for name in places[:_MAX_ROWS_A_PLACE]:
                label = drawing.fitted(_label(name, region), _LABELS - 22, 11)
                shapes.append(drawing.text(_MARGIN + 10, y + 10, label, size=11, colour="soft"))
                # A name with overlapping bars gets several rows.
                for lane in _lanes([span for span in spans if span.region == region and span.place == name]):
                    gaps = _gaps(lane, first_s)
                    shapes += [_wait(begin_s, end_s, y, place) for begin_s, end_s in gaps]
                    shapes += [_bar(span, y, place) for span in lane]
                    y += _ROW
            if len(places) > _MAX_ROWS_A_PLACE:
                words = f"and {len(places) - _MAX_ROWS_A_PLACE} more like these"
                shapes.append(drawing.text(_MARGIN + 10, y + 9, words, size=11, colour="soft"))
                y += _ROW
        y += 8
    return shapes, y


def _label(place: str, region: str) -> str:
    src, arrow, dst = place.partition(">")
    if arrow:
        return "weights" if src == dst else f"weights from {src}"
    return place.removeprefix(f"{region}/")


def _lanes(spans: Sequence[BusySpan]) -> list[list[BusySpan]]:
    """Distribute bars over lanes without overlap. Several groups may share the name of a class."""
    lanes: list[list[BusySpan]] = []
    for span in sorted(spans, key=lambda each: (each.begin_s, each.end_s)):
        # First fit in the order of starts uses as few lanes as possible.
        free = next((lane for lane in lanes if lane[-1].end_s <= span.begin_s + 1e-9), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _gaps(lane: Sequence[BusySpan], first_s: float) -> list[tuple[float, float]]:
    """Return the times in which devices that train were idle: before each bar of a lane, from `first_s` on."""
    if not any(span.what in TRAINING for span in lane):
        return []
    # Shorter gaps would only clutter the row.
    shortest_s = _SHORTEST_WAIT * (lane[-1].end_s - first_s)
    # The wait before the first bar counts too; after the last bar nothing is known.
    pairs = [(first_s, lane[0].begin_s), *((a.end_s, b.begin_s) for a, b in pairwise(lane))]
    return [(begin_s, end_s) for begin_s, end_s in pairs if end_s - begin_s > shortest_s]


def _waits(spans: Sequence[BusySpan]) -> list[tuple[float, float]]:
    first_s = min(span.begin_s for span in spans)
    of_place = [[s for s in spans if (s.region, s.place) == at] for at in {(s.region, s.place) for s in spans}]
    return [gap for found in of_place for lane in _lanes(found) for gap in _gaps(lane, first_s)]


def _wait(begin_s: float, end_s: float, y: float, place: Callable[[float], float]) -> Markup:
    tip = f"training waits: {units.short(end_s - begin_s)} s"
    return drawing.box(
        place(begin_s), y + 2, place(end_s) - place(begin_s) - 0.5, _ROW - 8, "waits", radius=1.5, tip=tip
    )


def _grouped(places: Iterable[str]) -> list[list[str]]:
    """Group the names of units by pool: `us/A100/8#0`, `us/A100/8#1`."""
    found: dict[str, list[str]] = {}
    # Sorting by length first puts `#10` after `#9`.
    for name in sorted(set(places), key=lambda n: (n.rpartition("#")[0], len(n), n)):
        found.setdefault(name.rpartition("#")[0] or name, []).append(name)
    return list(found.values())


def _bar(span: BusySpan, y: float, place: Callable[[float], float]) -> Markup:
    # Half a pixel of space keeps neighbouring bars apart; a bar is never thinner than 0.8 pixels.
    x, wide = place(span.begin_s), max(place(span.end_s) - place(span.begin_s) - 0.5, 0.8)
    tip = f"{drawing.task_name(span.what)}, step {span.step}: {units.short(span.end_s - span.begin_s)} s"
    colour = span.what if span.what in {*TASKS, "weights"} else "idle"
    return drawing.box(x, y, wide, _ROW - 4, colour, radius=1.5, tip=tip)
