"""Panel of the live view on staleness: the age of the tokens that the job trained on, in versions.

The upper part has a bar for each age up to the bound, over all steps. The lower part, as far as there is room, shows
the mean staleness of each recent step as a curve between 0 and the bound. Its last line is the cost of the bound: the
share of the steps' time in which the trainer waited for samples, and the number of samples that were dropped.
"""

from collections.abc import Sequence

from rich.panel import Panel
from rich.text import Text

from periplus.view import units
from periplus.view.state import Point, ViewState
from periplus.view.terminal.blocks import bar
from periplus.view.terminal.panels import axes, panel

_RECENT_STEPS = 100
"""Steps of the curve and of the mean waiting time, so that the present is not lost in the whole run. Chosen by hand."""
_TREND_ROWS = 6
"""Rows without which there is no curve: three of the curve, its x axis, its heading, and the line on costs."""


def staleness_panel(state: ViewState, width: int, rows: int) -> Panel:
    """Return the panel, `width` cells wide and with `rows` rows inside of its frame."""
    # The frame and its padding take two cells at each side.
    cells = width - 4
    total = sum(state.staleness_tokens.values())
    lines = _histogram(state, total, cells, rows)
    recent, free = state.staleness_means[-_RECENT_STEPS:], rows - len(lines)
    has_trend = bool(recent) and free >= _TREND_ROWS
    # One row below the trend stays free for the line on costs, which is the last of the panel.
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
    # The longest bar fills its cells; the numbers beside it are shares of all tokens.
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
    # The line of the bound stands between the allowed ages and those beyond.
    bound = [] if state.staleness_bound is None else [_bound_line(state.staleness_bound, cells)]
    return [*allowed, *bound, *beyond]


def _bins(state: ViewState, rows: int) -> list[tuple[str, int, bool]]:
    """Return the bars as (label, tokens, whether beyond the bound), by rising age.

    Ages are put together as far as `rows` requires. All ages beyond the bound share the last bar.
    """
    bound = state.staleness_bound
    top = max(bound or 0, state.staleness_max or 0)
    allowed = (top if bound is None else bound) + 1
    # Rounded up, so that all allowed ages fit into the rows; one row is kept for ages beyond the bound if there are
    # any.
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
    """Return the mean staleness of the recent steps: a heading, and a curve from 0 to the bound."""
    cells, rows = size
    top = max(float(state.staleness_bound or 0), 1.0, *(point.value for point in recent))
    steps = (recent[0].step, max(recent[-1].step, recent[0].step + 1))
    heading = Text.assemble(("mean of each step  ", "dim"), (f"{recent[-1].value:.2f}", "bold cyan"))
    return [heading, *axes(recent, steps, (0.0, top), (cells, rows - 1)).split("\n")]


def _costs(state: ViewState, recent: Sequence[Point], cells: int, *, has_trend: bool) -> Text:
    """Return the line of figures, as many as fit. The mean is left out if the heading of the curve shows it."""
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
