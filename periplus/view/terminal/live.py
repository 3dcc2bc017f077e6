"""Live view of a running job in a terminal: a `rich` renderable of one ViewState, the same for the same state.

It shows, from top to bottom, the job and its progress, the regions, the links between them, the curve of the reward
beside the panel on staleness, what the plan predicted of a step beside what was measured, and a strip of figures.
Before the first step, the progress line shows the current activity and its duration, and earlier activities are listed
in place of the curve. The bar of a link is its use: the current rate over the measured capacity.

The layout is designed for 100 x 30 cells. A wider terminal widens links and curve. A lower one first shortens the
curve, then shows fewer rows of what was predicted, and then lists fewer links, of which the busiest stay. Below 64
columns the panel on staleness moves under the curve, and nothing predicted is shown.

Cyan marks the job's own data, green a kept promise, yellow a degraded state that heals by itself, red something broken.
Marks also differ in shape, so nothing is lost without colour.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from periplus.view import units
from periplus.view.axes import nice_range
from periplus.view.state import LinkView, RegionSeen, TaskRole, ViewState
from periplus.view.terminal.blocks import bar
from periplus.view.terminal.panels import TITLE, axes, panel
from periplus.view.terminal.staleness_panel import staleness_panel
from periplus.view.terminal.terms_rows import terms_rows

# Rows of the charts at least: a staleness bound up to 4 has a row for each age, and the curve is still readable.
_MIN_CHART_ROWS = 6
_MAX_CHART_ROWS = 16
# Links that are listed at least, if there are as many.
_MIN_LINKS = 2
# Columns below which charts stand under each other.
_NARROW = 64
_STATE_STYLE = {
    "running": "green",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
}
_TASK_MARK = {TaskRole.TRAINER: "▲", TaskRole.ROLLOUT: "■", TaskRole.UNKNOWN: "·"}


@dataclass(frozen=True, slots=True)
class LiveView:
    """Renderable of a job's state.

    `elapsed_s` is the job's time to show, which goes on between records; None shows the time of the newest event.
    """

    state: ViewState
    elapsed_s: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height
        state = self.state
        narrow = width < _NARROW
        regions = _regions(state, width)
        regions_rows = _num_region_rows(state, width) * 2 + 2
        # Rows: 2 for the header, 2 for the strip (4 if narrow), 5 for frames and headings (7), 1 for the cursor.
        free = height - regions_rows - (14 if narrow else 10) - bool(state.notice)
        # Links share what is left with the charts, which keep their smallest height; two charts if they are stacked.
        num_links = min(len(state.links), max(_MIN_LINKS, free - (_MIN_CHART_ROWS * (2 if narrow else 1))))
        # Terms have the rows that the charts can spare. They do not fit a narrow terminal.
        terms, spare = state.terms, free - num_links - _MIN_CHART_ROWS
        num_terms = 0 if narrow else min(len({each.region for each in terms}), max(0, spare))
        free -= num_links + num_terms
        chart_rows = min(_MAX_CHART_ROWS, max(_MIN_CHART_ROWS, free // (2 if narrow else 1)))
        elapsed_s = self.elapsed_s if self.elapsed_s is not None else state.time_s
        yield _header(state, elapsed_s)
        yield _progress(state, elapsed_s, width)
        if state.notice:
            yield Text(f" {state.notice}", style="yellow", no_wrap=True, overflow="ellipsis")
        yield regions
        yield _links(state, num_links, width)
        yield _charts(state, elapsed_s, width, chart_rows, narrow)
        if num_terms:
            yield terms_rows(terms, num_terms)
        yield _strip(state, width)


def _header(state: ViewState, elapsed_s: float) -> RenderableType:
    grid = Table.grid(
        Column(ratio=1, no_wrap=True, overflow="ellipsis"), Column(justify="right", no_wrap=True), expand=True
    )
    left = Text.assemble(("periplus ", "bold cyan"), (state.name or "waiting for the job", "bold"))
    if state.job_id:
        left.append(f"  {state.job_id}", style="dim")
    style = _STATE_STYLE.get(state.job_state, "")
    right = Text.assemble((f"● {state.job_state}" if state.job_state else "", style))
    if state.phase and state.rewards and not state.ended:  # before the first step the progress line shows it
        right.append(f"  {state.phase}")
    right.append(f"   policy {state.policy}", style="dim")
    right.append(f"   {units.clock(elapsed_s)}", style="bold")
    grid.add_row(left, right)
    return Padding(grid, (0, 1))


def _progress(state: ViewState, elapsed_s: float, width: int) -> Text:
    # A reason matters before the first step, and whenever the job does not run.
    if state.reason and (not state.rewards or state.job_state != "running"):
        style = "bold red" if state.job_state == "failed" else "yellow"
        return Text(f" {state.reason}", style=style, no_wrap=True, overflow="ellipsis")
    # Before the first step, the activity and its duration stand in place of the bar.
    if not state.rewards and state.activities and not state.ended:
        doing = state.activities[-1]
        of = ""
        if state.warmup_losses and state.warmup_losses[-1].step < state.warmup_steps_total:
            of = f", step {state.warmup_losses[-1].step:,} of {state.warmup_steps_total:,}"
        took = units.clock(elapsed_s - doing.since_s)
        return Text.assemble((f" {doing.text}{of}", "cyan"), (f"  {took}", "bold"), no_wrap=True, overflow="ellipsis")
    label = f" step {state.step:,} of {state.steps_total:,} " if state.steps_total else f" step {state.step:,} "
    cells = max(4, width - len(label) - 1)
    fraction = state.step / state.steps_total if state.steps_total else 0.0
    filled = min(cells, round(fraction * cells))
    return Text.assemble(
        label, ("━" * filled, "cyan"), ("━" * (cells - filled), "bright_black"), no_wrap=True, overflow="crop"
    )


def _num_region_columns(state: ViewState, width: int) -> int:
    widest = max((len(region.name) for region in state.regions), default=0)
    return max(1, min(len(state.regions) or 1, (width - 4) // max(24, widest + 3)))


def _num_region_rows(state: ViewState, width: int) -> int:
    return max(1, -(-len(state.regions) // _num_region_columns(state, width)))


def _regions(state: ViewState, width: int) -> Panel:
    columns = _num_region_columns(state, width)
    grid = Table.grid(*(Column(ratio=1, no_wrap=True, overflow="ellipsis") for _ in range(columns)), expand=True)
    cells = (width - 4) // columns - 1
    cards = [_region(region, cells) for region in state.regions] or [Text("no region has joined yet\n", style="dim")]
    for first in range(0, len(cards), columns):
        grid.add_row(*cards[first : first + columns])
    return panel("regions", grid)


def _region(region: RegionSeen, cells: int) -> Text:
    ready = region.state == "ready"
    name = Text.assemble(("● ", "green") if ready else ("○ ", "yellow"), (region.name, "bold" if ready else "yellow"))
    tasks = Text.assemble("  ", ("" if ready else f"{region.state}  ", "yellow"))
    counts = Counter((task.role, task.state) for task in region.tasks)
    for (role, state), count in counts.items():
        style = {"running": "cyan", "failed": "bold red"}.get(state, "dim")
        times = f" x{count}" if count > 1 else ""
        said = "" if state == "running" else f" {state}"
        tasks.append(f"{_TASK_MARK[role]} {role or 'task'}{times}{said}  ", style=style)
    # Show as much of the machine as fits: cores and memory, or cores, or nothing.
    for machine in (f"{region.num_cores} cores  {units.size(region.memory_bytes)}", f"{region.num_cores} cores"):
        if len(tasks) + len(machine) <= cells:
            tasks.append(machine, style="dim")
            break
    return Text("\n").join((name, tasks))


def _short_names(links: Sequence[LinkView]) -> dict[str, str]:
    names = {name for link in links for name in (link.src, link.dst)}
    short = {name: name.rpartition(":")[2] for name in names}
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def _links(state: ViewState, num_links: int, width: int) -> Panel:
    # Choose the busiest links, then show them by name, so that rows do not jump.
    shown = sorted(state.links, key=lambda link: (-link.sent_bytes, link.src, link.dst))[:num_links]
    shown.sort(key=lambda link: (link.src, link.dst))
    names = _short_names(state.links)
    from_cells = max((len(names[link.src]) for link in shown), default=0)
    to_cells = max((len(names[link.dst]) for link in shown), default=0)
    # The other columns and their gaps take 41 cells. A bar of fewer than 5 cells would say nothing.
    bar_cells = min(40, width - 4 - from_cells - to_cells - 3 - 41)
    bar_cells = bar_cells if bar_cells >= 5 else 0
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("link", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("RTT", "sent", "capacity", "now", "in use"):
        table.add_column(heading, justify="right", no_wrap=True)
    if bar_cells:
        table.add_column("", no_wrap=True, width=bar_cells)
    for link in shown:
        route = Text.assemble(f"{names[link.src]:<{from_cells}}", (" → ", "dim"), names[link.dst])
        cells = _link(link, bar_cells)
        table.add_row(route, *(cells if bar_cells else cells[:-1]))
    hidden = len(state.links) - len(shown)
    title = f"links in Mbit/s, the {len(shown)} busiest of {len(state.links)}" if hidden else "links in Mbit/s"
    return panel(title, table if shown else Text("no link has been measured yet", style="dim"))


def _link(link: LinkView, bar_cells: int) -> tuple[Text, ...]:
    capacity = link.throughput_bits_per_s
    # A link without a measured capacity has no share that could be in use.
    used = link.rate_bits_per_s / capacity if capacity > 0 else None
    drawn = bar(used or 0.0, bar_cells)
    rest = " " if used is None else "·"
    return (
        Text(f"{link.rtt_s * 1e3:.0f} ms" if link.rtt_s > 0 else units.UNKNOWN),
        Text(units.size(link.sent_bytes), style="bold"),
        Text(units.mbit(capacity) if capacity > 0 else units.UNKNOWN),
        Text(units.mbit(link.rate_bits_per_s), style="cyan" if link.rate_bits_per_s else "dim"),
        Text("<0.1 %" if used and used < 0.0005 else units.percent(used), style="" if used else "dim"),
        Text.assemble((drawn, "cyan"), (rest * (bar_cells - len(drawn)), "bright_black")),
    )


def _charts(state: ViewState, elapsed_s: float, width: int, rows: int, narrow: bool) -> RenderableType:
    if narrow:
        return Group(_curve_panel(state, elapsed_s, width, rows), staleness_panel(state, width, rows))
    right = max(30, width * 2 // 5)
    grid = Table.grid(Column(width=width - right), Column(width=right))
    grid.add_row(_curve_panel(state, elapsed_s, width - right, rows), staleness_panel(state, right, rows))
    return grid


def _curve_panel(state: ViewState, elapsed_s: float, width: int, rows: int) -> Panel:
    # One place for three things in turn: activities, the loss of the warm-up, and the reward.
    warming_up = not state.rewards and state.warmup_losses
    points = state.warmup_losses if warming_up else state.rewards
    if not points:
        return panel("until the first step", _activities(state, elapsed_s, rows))
    end = points[-1].step if warming_up else max(state.steps_total, points[-1].step)
    title = "warm-up loss" if warming_up else "reward"
    y_range = nice_range([point.value for point in points])
    latest = Text(f"{points[-1].value:.3f}", style="bold cyan")
    drawn = panel(title, axes(points, (0, max(end, points[0].step + 1)), y_range, (width - 4, rows)))
    drawn.title = Text.assemble((title, TITLE), "  ", latest)
    if state.reward_failures:
        drawn.title.append(f"  {state.reward_failures:,} reward failures", style="bold red")
    return drawn


def _activities(state: ViewState, elapsed_s: float, rows: int) -> Text:
    """Return the newest activities before the first step, each with its duration; the last one is under way."""
    lines: list[Text] = []
    until_s = elapsed_s
    # From the newest backwards: each activity ended when the one after it began.
    for each in reversed(state.activities[-rows:]):
        is_under_way = not lines and not state.ended
        took = units.clock(until_s - each.since_s)
        styles = ("bold", "") if is_under_way else ("dim", "dim")
        lines.append(Text.assemble((f"{took:>7}  ", styles[0]), (each.text, styles[1])))
        until_s = each.since_s
    lines = lines[::-1] or [Text("waiting for the job", style="dim")]
    lines += [Text()] * (rows - len(lines))
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def _held_out(state: ViewState) -> tuple[str, str, str]:
    """Return what is measured on held-out problems, and its first and its newest value."""
    if not state.accuracies:
        return "accuracy", units.UNKNOWN, units.UNKNOWN
    first, now = state.accuracies[0], state.accuracies[-1]
    if now.value is None and now.reward is not None:
        return "held-out reward", "" if first.reward is None else f"{first.reward:.3g}", f"{now.reward:.3g}"
    return "accuracy", units.percent(first.value), units.percent(now.value)


def _strip(state: ViewState, width: int) -> RenderableType:
    title, before, now = _held_out(state)
    accuracy = Text.assemble((f"{before} → " if now != before else "", "dim"), (now, "bold cyan"))
    saved = units.factor(state.full_weights_bytes, state.delta_bytes)
    items: list[tuple[str, Text]] = [
        (title, accuracy),
        ("tokens/s", Text(units.short(state.values.get("tokens_per_s")), style="bold")),
        ("sent over WAN", Text(units.size(state.wan_bytes), style="bold")),
        (
            "deltas",
            Text.assemble((saved, "bold"), (" smaller", "dim")) if state.delta_bytes else Text(units.UNKNOWN),
        ),
        ("violations", _promise(state.staleness_violations)),
        ("mismatches", _promise(state.weight_digest_mismatches)),
    ]
    # What fits: with five columns in a row the figure on deltas is left out, with three there are two rows.
    per_row = 3 if width < _NARROW else 6 if width >= 90 else 5
    if per_row == 5:
        items.pop(3)
    grid = Table.grid(*(Column(no_wrap=True, overflow="ellipsis", ratio=1) for _ in range(per_row)), expand=True)
    for first in range(0, len(items), per_row):
        row = items[first : first + per_row]
        grid.add_row(*(Text(f" {label}", style="dim") for label, _ in row))
        grid.add_row(*(Text.assemble(" ", value) for _, value in row))
    return grid


def _promise(count: int) -> Text:
    return Text("0 ✓", style="green") if count == 0 else Text(f"{count:,} ✗", style="bold red")
