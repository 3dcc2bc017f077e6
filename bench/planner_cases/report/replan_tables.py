"""How soon a running plan answers a change, how much of it moves, and what staying within that costs."""

from collections.abc import Sequence

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.replanning import FACTORS, NUM_GPUS
from bench.planner_cases.report.markdown import NONE, counted, fixed, number, percent, table

_MACHINES = {"less": "a tenth of machines gone", "more": "a tenth more machines"}


def jobs_table(rows: Rows) -> str:
    header = [
        "job",
        "step s",
        "gap %",
        "GPUs",
        "links",
        "with versions",
        "worst link s",
        "with versions s",
        "worst inventory s",
        "moved %",
        "over fresh",
    ]
    return table(header, [_job_line(name, row) for name, row in rows.items()])


def _job_line(name: str, row: Row) -> list[str]:
    ends = {each["link"] for each in row["links"]}
    carrying = {each["link"] for each in row["links"] if each["carries_versions"]}
    return [
        name,
        number(row["step_s"], 4),
        percent(row["gap"], 2),
        f"{row['gpus_used']:,}",
        str(len(ends)),
        str(len(carrying)),
        fixed(row["link_s_max"], 3),
        fixed(row["version_link_s_max"], 3),
        fixed(row["inventory_s_max"], 3),
        percent(row["moved_max"]),
        fixed(row["over_fresh_max"], 3),
    ]


def changes_table(rows: Rows) -> str:
    """Of links the slowest answer to each factor, those that carry versions apart; every change of inventory."""
    header = [
        "job",
        "change",
        "seconds",
        "kept",
        "lost %",
        "moved %",
        "within the limit",
        "step s",
        "over fresh",
        "migration s",
    ]
    lines = []
    for name, row in rows.items():
        lines += _worst_links(name, [each for each in row["links"] if each["carries_versions"]], "with versions")
        lines += _worst_links(name, [each for each in row["links"] if not each["carries_versions"]], "without versions")
        lines += [[name, _MACHINES[each["machines"]], *_change(each)] for each in row["fleets"]]
    return table(header, lines)


def _worst_links(name: str, links: Sequence[Row], words: str) -> list[list[str]]:
    lines = []
    for factor in FACTORS:
        found = [each for each in links if each["factor"] == factor]
        if found:
            worst = max(found, key=lambda each: each["seconds"])
            lines.append([name, f"slowest of {counted(len(found), 'link')} {words}, {factor:g}x", *_change(worst)])
    return lines


def _change(row: Row) -> list[str]:
    return [
        fixed(row["seconds"], 3),
        _yes(row["is_kept"]),
        percent(row["lost"]) if "lost" in row else NONE,
        percent(row["moved"]),
        _yes(row["is_within_limit"]),
        number(row["step_s"], 4),
        fixed(row.get("over_fresh"), 3),
        number(row["migration_s"]),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def sentence(rows: Rows) -> str:
    """What could not be timed, and what went beyond the limit of moves."""
    beyond = sum(row["beyond_limit"] for row in rows.values())
    changes = sum(len(row["links"]) + len(row["fleets"]) for row in rows.values())
    text = f"{NUM_GPUS:,} GPUs in the fleet, {counted(changes, 'change')}; {beyond} moved more than the limit allows."
    without = [name for name, row in rows.items() if row["version_link_s_max"] is None]
    if without:
        text += (
            f" In the plans of {', '.join(without)} no region but the trainer's generates, so no changed link there "
            "carries versions."
        )
    return text
