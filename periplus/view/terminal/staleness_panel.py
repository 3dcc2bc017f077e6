"""The panel on staleness: how old the tokens were that the job trained on, and how that moved over its recent steps.

Above, a bar for each staleness up to the bound, over all steps. Below, as far as there is room, the mean staleness of
each recent step as a curve between 0 and the bound, and what the bound costs: the share of the steps' time that the
trainer waited for samples, and how many samples came too late and were dropped.
"""

from collections.abc import Sequence

from rich.panel import Panel
from rich.text import Text

from periplus.view import units
from periplus.view.state import Point, ViewState
from periplus.view.terminal.blocks import bar
from periplus.view.terminal.panels import axes, panel

# A minute or so of training: what happens now does not drown in what happened at the start.
_RECENT_STEPS = 100
# Three rows of curve, the foot of its axes, its heading, and the line on costs; with less there is no curve.
_TREND_ROWS = 6


def staleness_panel(state: ViewState, width: int, rows: int) -> Panel:
    """The panel, with `rows` rows between the lines of its frame."""
    cells = width - 4
    total = sum(state.staleness_tokens.values())
    lines = _histogram(state, total, cells, rows)
    recent, free = state.staleness_means[-_RECENT_STEPS:], rows - len(lines)
    has_trend = bool(recent) and free >= _TREND_ROWS
    if has_trend:
        lines += _trend(state, recent, (cells, free - 1))
    if recent and free >= 1:
        lines += [Text()] * (rows - len(lines) - 1)
        lines.append(_costs(state, recent, cells, has_trend=has_trend))
    lines += [Text()] * (rows - len(lines))
    title = f"staleness, {units.short(total)} tokens" if total else "staleness of tokens"
    return panel(title, Text("\n", no_wrap=True, overflow="crop").join(lines))


def _histogram(state: ViewState, total: int, cells: int, rows: int) -> list[Text]:
    bins = _bins(state, rows - 1)
    label_cells = max(len(label) for label, _, _ in bins)
    bar_cells = max(4, cells - label_cells - 9)
    largest = max((count for _, count, _ in bins), default=0) or 1
    allowed: list[Text] = []
    beyond: list[Text] = []
    for label, count, is_beyond in bins:
        share = f"{count / total * 100:.1f} %" if total else ""
        line = Text.assemble(
            (f"{label:>{label_cells}} ", "dim"),
            (f"{bar(count / largest, bar_cells):<{bar_cells}}", "bold red" if is_beyond and count else "cyan"),
            (f"{share:>8}", "" if count else "dim"),
        )
        (beyond if is_beyond else allowed).append(line)
    bound = [] if state.staleness_bound is None else [_bound_line(state.staleness_bound, cells)]
    return [*allowed, *bound, *beyond]


def _bins(state: ViewState, rows: int) -> list[tuple[str, int, bool]]:
    """(label, tokens, beyond the bound), the bound's own bin last among the allowed."""
    bound = state.staleness_bound
    top = max(bound or 0, state.staleness_max or 0)
    allowed = (top if bound is None else bound) + 1
    per_bin = max(1, -(-allowed // max(1, rows - (1 if top >= allowed else 0))))
    bins = []
    for first in range(0, allowed, per_bin):
        last = min(first + per_bin, allowed) - 1
        count = sum(tokens for age, tokens in state.staleness_tokens.items() if first <= age <= last)
        bins.append((str(first) if first == last else f"{first}-{last}", count, False))
    if top >= allowed:
        beyond = sum(tokens for age, tokens in state.staleness_tokens.items() if age >= allowed)
        bins.append((f">{allowed - 1}", beyond, True))
    return bins


def _bound_line(bound: int, cells: int) -> Text:
    label = f" bound {bound} "
    return Text.assemble(("╌" * max(0, cells - len(label) - 2), "bright_black"), label, ("╌╌", "bright_black"))


def _trend(state: ViewState, recent: Sequence[Point], size: tuple[int, int]) -> list[Text]:
    """The mean staleness of the recent steps: a heading, and a curve from 0 to the bound."""
    cells, rows = size
    top = max(float(state.staleness_bound or 0), 1.0, *(point.value for point in recent))
    steps = (recent[0].step, max(recent[-1].step, recent[0].step + 1))
    heading = Text.assemble(("mean of each step  ", "dim"), (f"{recent[-1].value:.2f}", "bold cyan"))
    return [heading, *axes(recent, steps, (0.0, top), (cells, rows - 1)).split("\n")]


def _costs(state: ViewState, recent: Sequence[Point], cells: int, *, has_trend: bool) -> Text:
    """As many of the figures as fit, the most important first; the mean stands in the trend's heading, if any."""
    waits = [point.value for point in state.wait_fractions[-len(recent) :]]
    figures = [] if has_trend else [("mean", f"{recent[-1].value:.2f}")]
    figures += [("waiting", units.percent(sum(waits) / len(waits)))] if waits else []
    figures.append(("dropped", f"{state.dropped_samples:,}"))
    line = Text()
    for label, value in figures:
        gap = "   " if line else ""
        if len(line) + len(gap) + len(label) + 1 + len(value) <= cells:
            line.append(gap).append(f"{label} ", style="dim").append(value, style="bold")
    return line
