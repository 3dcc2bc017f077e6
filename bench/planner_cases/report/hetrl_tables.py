"""HetRL's setting: ratios over the static families, all cases, methods over time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.hetrl import FAMILIES, HEURISTICS, OURS, PUBLISHED, TIMES_S
from bench.planner_cases.report.markdown import NONE, counted, fixed, number, percent, table

METHODS = (OURS, *HEURISTICS)
KINDS = (("sync", "verl"), ("async", "verl"), ("sync", "streamrl"), ("async", "streamrl"))
_AHEAD = 1e-9
"""Two step times within this are the same one; as in `beaten_by_heuristics`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One network, one timing, one family."""

    scenario: str
    timing: str
    family: str
    rows: Sequence[Row]
    published: tuple[float, float] | None

    @property
    def ratios(self) -> list[float]:
        return [row[f"{self.family}_ratio"] for row in self.rows if row[f"{self.family}_ratio"]]

    @property
    def at_most(self) -> list[float]:
        return [row[f"{self.family}_ratio_at_most"] for row in self.rows if row[f"{self.family}_ratio_at_most"]]


def compared(rows: Iterable[Row]) -> list[Compared]:
    """By network, family and timing, as far as there are rows."""
    rows = list(rows)
    found = []
    for scenario, published in PUBLISHED.items():
        for timing, family in KINDS:
            chosen = [row for row in rows if row["scenario"] == scenario and row["is_async"] == (timing == "async")]
            if chosen:
                span = published.get(f"{timing}_{family}")
                found.append(Compared(scenario=scenario, timing=timing, family=family, rows=chosen, published=span))
    return found


def ratio_table(rows: Sequence[Row]) -> str:
    header = [
        "network",
        "timing",
        "over",
        "cases",
        "without one",
        "least",
        "geometric mean",
        "largest",
        "certified at most",
        "published by HetRL",
    ]
    return table(header, [_ratio_line(each) for each in compared(rows)])


def _ratio_line(each: Compared) -> list[str]:
    ratios = each.ratios
    return [
        each.scenario,
        each.timing,
        each.family,
        str(len(each.rows)),
        str(len(each.rows) - len(ratios)),
        fixed(min(ratios, default=None), 2),
        fixed(geometric_mean(ratios) if ratios else None, 2),
        fixed(max(ratios, default=None), 2),
        fixed(max(each.at_most, default=None), 2),
        span_words(each.published),
    ]


def span_words(span: Sequence[float] | None) -> str:
    return NONE if span is None else f"{span[0]:.2f} to {span[1]:.2f}"


def published_sentence(rows: Sequence[Row]) -> str:
    """Where our ratios lie against the published ranges, and what the bounds rule out."""
    below = within = above = ruled_out = 0
    for each in compared(rows):
        if each.published is None:
            continue
        low, high = each.published
        below += sum(ratio < low for ratio in each.ratios)
        above += sum(ratio > high for ratio in each.ratios)
        within += sum(low <= ratio <= high for ratio in each.ratios)
        ruled_out += sum(bound < low for bound in each.at_most)
    total = below + within + above
    if not total:
        return "No ratio stands beside a published range."
    text = f"Ratios beside a published range: {total}; {below} below it, {within} within, {above} above."
    if ruled_out:
        text += (
            f" In {counted(ruled_out, 'case')} the certified upper bound too is below the range: there no planner can "
            "show the published ratio in this plan space under this model, so networks, lengths, baselines or machines "
            "are not those of the publication."
        )
    return text


def families_sentence(rows: Sequence[Row]) -> str:
    """Whether families were searched in full."""
    parts = []
    for name in FAMILIES:
        cut = sum(not row[f"{name}_is_whole"] for row in rows)
        none = sum(not row[f"{name}_ratio"] for row in rows)
        text = f"`{name}`: searched in full in {len(rows) - cut} of {counted(len(rows), 'case')}"
        parts.append(text + (f", no placement of the family in {none}" if none else ""))
    return f"{'; '.join(parts)}. A * marks a ratio whose family's search was ended by time: a better one may exist."


def cornered_sentence(rows: Sequence[Row]) -> str:
    """Where a family's ratio says more of memory than of placement; empty if nowhere."""
    parts = []
    for name in FAMILIES:
        ratios = [row[f"{name}_ratio"] for row in rows if row[f"{name}_ratio"] and row[f"{name}_is_cornered"]]
        if ratios:
            parts.append(f"`{name}` in {counted(len(ratios), 'case')}, {min(ratios):.2f} to {max(ratios):.2f} times")
    if not parts:
        return ""
    return (
        "Where memory leaves a family only full sharding with one sample a micro-batch, weights are gathered anew for "
        f"each sample: {'; '.join(parts)}. verl can move state to its hosts' memory instead, which this model does not "
        "have: such a ratio is of that cliff, not of placement, and is not comparable with a published one."
    )


def cases_table(rows: Rows) -> str:
    header = [
        "network",
        "model",
        "workload",
        "step s",
        "gap %",
        "one percent s",
        "over verl",
        "at most",
        "published",
        "over streamrl",
        "at most",
        "published",
        "simulated s",
        "error %",
    ]
    return table(header, [_case_line(row) for row in rows.values()])


def _case_line(row: Row) -> list[str]:
    families = [cell for name in FAMILIES for cell in _family_cells(row, name)]
    proved = "not proved" if row["one_percent_s"] is None else number(row["one_percent_s"])
    return [
        row["scenario"],
        row["model"],
        f"{row['algorithm'].upper()} {timing_of(row)}",
        number(row["step_s"], 4),
        percent(row["gap"], 2),
        proved,
        *families,
        number(row["simulated_step_s"], 4),
        percent(row["simulated_error"]),
    ]


def _family_cells(row: Row, name: str) -> list[str]:
    mark = "" if row[f"{name}_is_whole"] else "*"
    ratio = f"{row[f'{name}_ratio']:.2f}{mark}" if row[f"{name}_ratio"] else f"none{mark}"
    return [ratio, fixed(row[f"{name}_ratio_at_most"], 2), span_words(row[f"{name}_published"])]


def timing_of(row: Row) -> str:
    return "async" if row["is_async"] else "sync"


# ---- methods over time -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """One method after so many seconds, over all cases."""

    mean: float | None
    """Geometric, of its step time over the best that any of the methods ever found; of cases in which it has one."""
    num_without: int
    """Cases in which it has no placement yet."""
    num_behind: int
    """Cases in which another method is ahead at that time."""


def over_time(rows: Sequence[Row]) -> dict[str, dict[float, AtTime]]:
    """By method and seconds; only times that all rows have."""
    times = [s for s in TIMES_S if rows and all(f"{s:g}" in row["by_time"][m] for row in rows for m in METHODS)]
    return {method: {seconds: _at(rows, method, f"{seconds:g}") for seconds in times} for method in METHODS}


def _at(rows: Sequence[Row], method: str, key: str) -> AtTime:
    ratios, behind = [], 0
    for row in rows:
        mine = row["by_time"][method][key]
        others = [v for m in METHODS if m != method and (v := row["by_time"][m][key]) is not None]
        behind += bool(others) and (mine is None or min(others) < mine * (1 - _AHEAD))
        if mine is not None:
            ratios.append(mine / best_ever(row))
    mean = geometric_mean(ratios) if ratios else None
    return AtTime(mean=mean, num_without=len(rows) - len(ratios), num_behind=behind)


def best_ever(row: Row) -> float:
    """The least that any method found at any time; of rows in which one did."""
    by_time: Mapping[str, Mapping[str, float | None]] = row["by_time"]
    return min(value for values in by_time.values() for value in values.values() if value is not None)


def time_table(rows: Sequence[Row]) -> str:
    found = over_time(rows)
    times = list(found[OURS])
    lines = [[f"`{method}`", *(_time_cell(at) for at in found[method].values())] for method in METHODS]
    return table(["method", *(f"{seconds:g} s" for seconds in times)], lines)


def _time_cell(at: AtTime) -> str:
    if at.mean is None:
        return f"none; {at.num_without} without"
    without = f", {at.num_without} without" if at.num_without else ""
    return f"{at.mean:.3f}; {at.num_behind} behind{without}"
