"""Seconds until a plan is proved within one percent, against the number of GPUs; other planners' times beside it."""

from collections.abc import Sequence

from bench.planner_cases.cells import Row
from bench.planner_cases.report import drawing
from bench.planner_cases.report.captions import MARGIN, NOTE, WIDTH, head, notes
from bench.planner_cases.report.markdown import number
from bench.planner_cases.report.other_solvers import OTHERS, REAL_LIMIT_S, REAL_MOST_GPUS, Other
from bench.planner_cases.report.speed_tables import workload_of
from bench.planner_cases.speed import SIZES
from periplus.view.axes import Axis, log_axis
from periplus.view.svg import Markup

TITLE = "Seconds to a proof within one percent"
_COLOURS = {
    "GRPO async": "actor_training",
    "GRPO sync": "generation",
    "PPO async": "reward",
    "PPO sync": "critic_inference",
}
_HEIGHT = 430.0
_ASIDE = 7.0
"""Between workloads of one fleet, so that those that end together are seen."""
_LEFT, _RIGHT = MARGIN + 44, WIDTH - MARGIN - 12
_LABELS = {
    "DT-FM": (0, 10, 4),
    "FlashFlex": (2, 10, 4),
    "Metis": (0, 10, 4),
    "Sailor, 3 types": (3, 10, 4),
    "Sailor, 2 types": (0, 10, 14),
}
"""Which point a name stands beside, and where from it."""


def speed_svg(rows: Sequence[Row], note: str = "") -> str:
    shapes, y = head(
        TITLE,
        [
            "Our planner on generated fleets of measured links. A ring with an arrow: not proved "
            "within the time allowed.",
            "Grey, for context: other planners, until they end. They solve other problems, and prove nothing.",
            note,
        ],
    )
    more, y = drawing.legend(
        MARGIN, y + 24, [*((c, n) for n, c in _COLOURS.items()), ("bad", "target")], WIDTH - 2 * MARGIN
    )
    shapes += more
    top, bottom = y + 22, y + 22 + _HEIGHT
    x, vertical = log_axis(16, 16000, _LEFT, _RIGHT), _vertical(rows, top, bottom)
    shapes += drawing.grid_x(x, [16, 64, 256, 1024, 4096, 10000], top, bottom) + drawing.grid_y(
        vertical, vertical.ticks(), _LEFT, _RIGHT
    )
    shapes.append(drawing.text(_RIGHT, bottom + 36, "GPUs; upwards seconds", size=NOTE, colour="soft", anchor="end"))
    for other in OTHERS:
        shapes += _other(other, x, vertical)
    shapes += _real(x, vertical) + _targets(x, vertical)
    for i, (name, colour) in enumerate(_COLOURS.items()):
        aside = _ASIDE * (i - (len(_COLOURS) - 1) / 2)
        shapes += _ours([row for row in rows if workload_of(row) == name], colour, x, vertical, aside)
    more, y = notes([_others_words()], bottom + 58)
    return drawing.document(TITLE, _spoken(rows), WIDTH, y + 4, [*shapes, *more])


def _others_words() -> str:
    named = "; ".join(f"{other.name}: {other.problem} ({other.source})" for other in OTHERS)
    return (
        f"Other problems, for context. One run each of public code on two cores: {named}. Not run: ReaL, calls of RLHF "
        f"on equal devices; {REAL_LIMIT_S:g} s is the limit in its code (openpsi-project/ReaLHF)."
    )


def _vertical(rows: Sequence[Row], top: float, bottom: float) -> Axis:
    others = [s for other in OTHERS for _, s in (*other.seconds, *other.stopped)]
    ours = [_seconds(row) for row in rows]
    return log_axis(0.8 * min([*others, *ours]), 1.6 * max([*others, *ours]), bottom, top)


def _seconds(row: Row) -> float:
    found: float = row["wall_s"] if row["one_percent_s"] is None else row["one_percent_s"]
    return found


def _ours(rows: Sequence[Row], colour: str, x: Axis, vertical: Axis, aside: float) -> list[Markup]:
    points = [(x.at(row["num_gpus"]) + aside, vertical.at(_seconds(row)), row) for row in rows]
    shapes = [drawing.line([(a, b) for a, b, _ in points], colour, width=2.0)] if len(points) > 1 else []
    for a, b, row in points:
        is_proved = row["one_percent_s"] is not None
        words = f"{number(row['one_percent_s'])} s" if is_proved else f"not within {number(row['wall_s'])} s"
        shapes.append(
            drawing.ring(
                a, b, colour, 10, filled=is_proved, tip=f"{row['num_gpus']:,} GPUs, {workload_of(row)}: {words}"
            )
        )
        if not is_proved:
            shapes += _arrow(a, b - 7, colour)
    return shapes


def _arrow(x: float, y: float, colour: str) -> list[Markup]:
    """Upwards."""
    return [
        drawing.line([(x, y), (x, y - 14)], colour, width=1.8),
        drawing.line([(x - 4, y - 9), (x, y - 14), (x + 4, y - 9)], colour, width=1.8),
    ]


def _other(other: Other, x: Axis, vertical: Axis) -> list[Markup]:
    points = [(x.at(num), vertical.at(seconds)) for num, seconds in (*other.seconds, *other.stopped)]
    shapes = [drawing.line(points, "soft", dashed=True)] if len(points) > 1 else []
    shapes += [drawing.ring(a, b, "soft", 7, filled=True) for a, b in points[: len(other.seconds)]]
    for a, b in points[len(other.seconds) :]:
        shapes += [drawing.ring(a, b, "soft", 7), *_arrow(a, b - 5, "soft")]
    at, right, down = _LABELS[other.name]
    a, b = points[at]
    words = f"{other.name}, stopped" if other.stopped else other.name
    return [*shapes, drawing.text(a + right, b + down, words, size=NOTE, colour="soft")]


def _real(x: Axis, vertical: Axis) -> list[Markup]:
    y = vertical.at(REAL_LIMIT_S)
    ends = [(x.start, y), (x.at(REAL_MOST_GPUS), y)]
    return [drawing.line(ends, "soft"), drawing.text(x.start + 6, y - 6, "ReaL, fixed limit", size=NOTE, colour="soft")]


def _targets(x: Axis, vertical: Axis) -> list[Markup]:
    shapes = []
    for num, seconds in SIZES.items():
        a, b = x.at(num), vertical.at(seconds)
        shapes.append(drawing.line([(a - 16, b), (a + 16, b)], "bad", width=2.4))
    return shapes


def _spoken(rows: Sequence[Row]) -> str:
    parts = []
    for row in rows:
        proved = row["one_percent_s"]
        words = f"not within {number(row['wall_s'])} s" if proved is None else f"{number(proved)} s"
        parts.append(f"{row['num_gpus']:,} GPUs {workload_of(row)}: {words}")
    return "; ".join(parts)
