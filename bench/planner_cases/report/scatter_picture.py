"""Predicted against simulated seconds a step of placements drawn by chance, and of the best tenth of them."""

from collections.abc import Sequence
from itertools import product

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.report import drawing
from bench.planner_cases.report.captions import MARGIN, NOTE, WIDTH, head, notes
from bench.planner_cases.report.markdown import percent
from periplus.view.axes import log_axis
from periplus.view.svg import Markup

TITLE = "Predicted against simulated"
KINDS = tuple(product(("grpo", "ppo"), ("sync", "async")))
_COLOURS = {"random": "actor_training", "best tenth": "reward"}
_TALL = 330.0
_GAP_X, _GAP_Y = 62.0, 76.0
_OFF = 1.1
"""Lines on either side of equality."""


def has_pairs(rows: Rows) -> bool:
    return any(each.get("pairs") for row in rows.values() for each in row["compared"])


def scatter_svg(rows: Rows, note: str = "") -> str:
    """One panel an algorithm and timing. Raises: ValueError for rows without pairs."""
    if not has_pairs(rows):
        raise ValueError("these rows have no pairs of predicted and simulated seconds")
    shapes, y = head(
        TITLE,
        [
            "Seconds a step that the cost model predicts of a placement, and those that the simulator sees when it "
            "plays it. HetRL's 64 GPUs in four networks. Full line: equal; dashed: ten percent off.",
            note,
        ],
    )
    more, y = drawing.legend(MARGIN, y + 24, [(_COLOURS[which], which) for which in _COLOURS], WIDTH - 2 * MARGIN)
    shapes += more
    top, wide = y + 42, (WIDTH - 2 * MARGIN - 44 - _GAP_X) / 2
    for i, kind in enumerate(KINDS):
        left, upper = MARGIN + 44 + (i % 2) * (wide + _GAP_X), top + (i // 2) * (_TALL + _GAP_Y)
        shapes += _panel(
            " ".join(kind).replace("grpo", "GRPO").replace("ppo", "PPO"), _of(rows, kind), left, upper, wide
        )
    lines = [
        "Simulated throughput is simulated: cost model and simulator share the physics of devices, and nothing else. "
        "No GPU was used.",
    ]
    more, y = notes(lines, top + 2 * _TALL + _GAP_Y + 56)
    return drawing.document(TITLE, _spoken(rows), WIDTH, y + 4, [*shapes, *more])


def _of(rows: Rows, kind: tuple[str, str]) -> list[Row]:
    """Sets of the cells of an algorithm and timing; a cell's name has both."""
    return [each for name, row in rows.items() if set(kind) <= set(name.split()) for each in row["compared"]]


def _panel(title: str, sets: Sequence[Row], left: float, top: float, wide: float) -> list[Markup]:
    shapes = [drawing.text(left, top - 12, title, bold=True)]
    pairs = {which: [p for each in sets if each["which"] == which for p in each.get("pairs", ())] for which in _COLOURS}
    every = [value for found in pairs.values() for pair in found for value in pair]
    if not every:
        return [*shapes, drawing.text(left, top + 24, "not measured", colour="soft")]
    low, high = 0.85 * min(every), 1.18 * max(every)
    x, y = log_axis(low, high, left, left + wide), log_axis(low, high, top + _TALL, top)
    shapes += drawing.grid_x(x, x.ticks(), top, top + _TALL) + drawing.grid_y(y, y.ticks(), left, left + wide)
    words = "predicted s a step; upwards simulated"
    shapes.append(drawing.text(left + wide, top + _TALL + 36, words, size=NOTE, colour="soft", anchor="end"))
    for which, found in pairs.items():
        shapes.append(drawing.dots([(x.at(a), y.at(b)) for a, b in found], _COLOURS[which], 4.5, opacity=0.55))
    for factor in (1 / _OFF, 1.0, _OFF):
        ends = [(x.at(value), y.at(value * factor)) for value in (max(low, low / factor), min(high, high / factor))]
        shapes.append(drawing.line(ends, "ink", dashed=factor != 1.0))
    means = [each["mean_error"] for each in sets]
    counted = f"{sum(map(len, pairs.values())):,} placements, mean error {percent(sum(means) / len(means))} %"
    return [*shapes, drawing.text(left + 12, top + 20, counted, size=NOTE, colour="soft")]


def _spoken(rows: Rows) -> str:
    sets = [each for row in rows.values() for each in row["compared"]]
    errors = [f"{each['cell']} {each['which']}: mean error {percent(each['mean_error'])} %" for each in sets]
    return "; ".join(errors)
