"""Ratios over the static families by network, HetRL's published ranges behind them, certified bounds on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.planner_cases.cells import Row
from bench.planner_cases.fleets.published_workloads import ALGORITHMS, HETRL_MODELS
from bench.planner_cases.hetrl import FAMILIES, PUBLISHED
from bench.planner_cases.report import drawing
from bench.planner_cases.report.captions import MARGIN, NOTE, WIDTH, head, notes
from bench.planner_cases.report.hetrl_tables import Compared, compared, timing_of
from periplus.view.axes import Axis, log_axis
from periplus.view.svg import Markup

TITLE = "How much faster than the best placement of a static family"
_COLOURS = {"ppo": "reward", "grpo": "actor_training"}
_GUTTER = 108.0
_GAP = 26.0
_LANE = 12.0
_LANES = len(HETRL_MODELS) * len(ALGORITHMS)
_BAND = _LANE * _LANES + 10
_NAMES = {"verl": "over one shared pool (verl-like, our best)", "streamrl": "over two pools (StreamRL-like, our best)"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where bands stand."""

    tops: dict[tuple[str, str], float]
    """By network and timing."""
    top: float
    bottom: float


def ratios_svg(rows: Sequence[Row], note: str = "") -> str:
    """One panel a family; a band for each network and timing, a lane for each model and algorithm."""
    shapes, y = head(
        TITLE,
        [
            "Seconds a step of the family's best placement over ours, both under our oracle. Every dot is a case; the "
            "red mark is the certified upper bound on that ratio. Grey: what HetRL publishes, "
            "measured on real clusters.",
            note,
        ],
    )
    more, y = drawing.legend(MARGIN, y + 24, _entries(rows), WIDTH - 2 * MARGIN)
    shapes += more
    place = _placed(y + 46)
    shapes += _gutter(place)
    wide = (WIDTH - MARGIN * 2 - _GUTTER - _GAP) / 2
    found = compared(rows)
    for i, family in enumerate(FAMILIES):
        left = MARGIN + _GUTTER + i * (wide + _GAP)
        shapes += _panel([each for each in found if each.family == family], family, place, left, left + wide)
    lines = [
        "Of each model first PPO, then GRPO. No placement: the family has none here. Seconds a step are the cost "
        "model's; no GPU was used.",
        "HetRL's baselines ran as their authors configured them; ours are the best placement found of each family.",
    ]
    more, y = notes(lines, place.bottom + 44)
    return drawing.document(TITLE, _spoken(found), WIDTH, y + 4, [*shapes, *more])


def _entries(rows: Sequence[Row]) -> list[tuple[str, str]]:
    entries = [(_COLOURS[name], name.upper()) for name in ALGORITHMS]
    entries += [("bad", "certified upper bound"), ("idle", "HetRL's published range")]
    cut = any(not row[f"{name}_is_whole"] for row in rows for name in FAMILIES)
    return [*entries, ("soft", "ring: the family's search was cut by time")] if cut else entries


def _placed(top: float) -> _Place:
    tops, y = {}, top
    for scenario in PUBLISHED:
        for timing in ("sync", "async"):
            tops[scenario, timing] = y
            y += _BAND + 4
        y += 14
    return _Place(tops=tops, top=top, bottom=y - 12)


def _gutter(place: _Place) -> list[Markup]:
    shapes = []
    for (scenario, timing), top in place.tops.items():
        if timing == "sync":
            words = enumerate(drawing.wrapped(scenario.replace("-", " "), _GUTTER - 40, NOTE))
            shapes += [drawing.text(MARGIN, top + 14 + 15 * i, each, bold=True) for i, each in words]
        shapes.append(drawing.text(MARGIN, top + _BAND - 8, timing, size=NOTE, colour="soft"))
        for i, model in enumerate(HETRL_MODELS):
            y = top + 5 + (i + 0.5) * _LANE * len(ALGORITHMS) + 4
            size = model.rpartition("-")[2]
            shapes.append(drawing.text(MARGIN + _GUTTER - 8, y, size, size=11, colour="soft", anchor="end"))
    return shapes


def _panel(found: Sequence[Compared], family: str, place: _Place, left: float, right: float) -> list[Markup]:
    axis = _axis(found, left, right)
    shapes = [drawing.text(left, place.top - 14, _NAMES[family], bold=True)]
    shapes += drawing.grid_x(
        axis, axis.ticks(mantissas=(1, 1.5, 2, 3, 5, 7)), place.top, place.bottom, label="{:,g}x".format
    )
    shapes.append(drawing.line([(axis.at(1), place.top), (axis.at(1), place.bottom)], "soft"))
    for each in found:
        shapes += _band(each, axis, place.tops[each.scenario, each.timing], right)
    return shapes


def _axis(found: Sequence[Compared], left: float, right: float) -> Axis:
    values = [value for each in found for value in (*each.ratios, *each.at_most, *(each.published or ()))]
    return log_axis(0.95 * min([0.95, *values]), max([2.0, *values]) * 1.12, left, right)


def _band(each: Compared, axis: Axis, top: float, right: float) -> list[Markup]:
    shapes = [drawing.line([(axis.start, top + _BAND + 2), (right, top + _BAND + 2)], "line")]
    if each.published:
        low, high = (axis.at(value) for value in each.published)
        tip = f"HetRL publishes {each.published[0]:.2f} to {each.published[1]:.2f}"
        shapes.append(drawing.box(low, top, high - low, _BAND, "idle", tip=tip))
    for row in each.rows:
        lane = HETRL_MODELS.index(row["model"]) * len(ALGORITHMS) + ALGORITHMS.index(row["algorithm"])
        shapes += _case(row, each.family, axis, top + 5 + (lane + 0.5) * _LANE)
    return shapes


def _case(row: Row, family: str, axis: Axis, y: float) -> list[Markup]:
    ratio, bound = row[f"{family}_ratio"], row[f"{family}_ratio_at_most"]
    if not ratio:
        return [drawing.text(axis.at(1) + 6, y + 4, "no placement", size=11, colour="soft")]
    shapes, colour = [], _COLOURS[row["algorithm"]]
    tip = f"{row['scenario']} {row['model']} {row['algorithm'].upper()} {timing_of(row)}: {ratio:.2f}"
    if bound:
        x = axis.at(bound)
        shapes.append(drawing.line([(axis.at(ratio), y), (x, y)], "bad", width=1.2))
        shapes.append(drawing.line([(x, y - 5), (x, y + 5)], "bad", width=2.2))
        tip += f", certified at most {bound:.2f}"
    shapes.append(drawing.ring(axis.at(ratio), y, colour, 8, filled=row[f"{family}_is_whole"], tip=tip))
    return shapes


def _spoken(found: Sequence[Compared]) -> str:
    parts = [
        f"{each.scenario} {each.timing} over {each.family}: {min(each.ratios):.2f} to {max(each.ratios):.2f}"
        for each in found
        if each.ratios
    ]
    return "; ".join(parts)
