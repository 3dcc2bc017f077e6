"""What was run of each section, in words and as a table, and its figures against their targets."""

from collections.abc import Sequence

from bench.planner_cases.cells import Row
from bench.planner_cases.oracle import TARGETS
from bench.planner_cases.report.markdown import NONE, against, counted, table
from bench.planner_cases.report.records import Part, Record
from bench.planner_cases.speed import SIZES

FIGURES = {
    "bruteforce": ("bruteforce_mismatches",),
    "hetrl": ("beaten_by_heuristics", "gap_max", "hetrl_simulated_error_max"),
    "areal_hex": ("areal_hex_gap_max",),
    "speed": ("first_feasible_s", *(f"one_percent_s_{num}" for num in SIZES), "peak_gib"),
    "real": ("real_gap_max", "real_s_max"),
    "oracle": tuple(f"oracle_evals_per_s_{num}" for num in TARGETS),
    "limits": ("limit_missed_in_simulation",),
    "simulation": (
        "predicted_vs_simulated_spearman",
        "predicted_vs_simulated_spearman_best_tenth",
        "predicted_vs_simulated_mean_error",
    ),
    "cost": ("cost_time_error_mean", "cost_memory_error_mean"),
}
"""What each section is to give: a figure that its rows do not have is shown as missing."""
_MOST_NAMED = 6
"""Missing pieces that are named one by one."""


def sentence(part: Part) -> str:
    """At the head of a section."""
    facts = [f"commit {' and '.join(part.commits)}"] if part.commits else []
    if part.most_jobs and part.most_jobs > 1:
        facts.append(f"up to {part.most_jobs} pieces at once, so seconds are of a shared machine")
    of = f"{len(part.rows)} of {counted(part.num_cells, 'piece')}"
    if not part.rows:
        return f"**Not measured**: none of its {counted(part.num_cells, 'piece')} was run.{_errors(part)}"
    if part.is_whole:
        return f"Complete: {of} run ({'; '.join(facts)})." if facts else f"Complete: {of} run."
    about = f" ({'; '.join(facts)})" if facts else ""
    return f"**Not complete**: {of} run{about}. What follows is of these alone.{_missing(part)}{_errors(part)}"


def _missing(part: Part) -> str:
    if not part.left:
        return ""
    names = ", ".join(part.left[:_MOST_NAMED])
    more = len(part.left) - _MOST_NAMED
    return f" Not run: {names}{f' and {more} more' if more > 0 else ''}."


def _errors(part: Part) -> str:
    return "".join(f" Failed: {name} (`{why}`)." for name, why in part.failed.items())


def run_table(record: Record) -> str:
    rows = [
        [
            f"`{part.name}`",
            str(len(part.rows)),
            str(part.num_cells),
            str(len(part.failed)),
            " ".join(part.commits),
            "" if part.most_jobs is None else str(part.most_jobs),
            "complete" if part.is_whole else "**not complete**" if part.rows else "**not measured**",
        ]
        for part in record.parts.values()
    ]
    return table(["section", "pieces run", "of", "failed", "commit", "at once", ""], rows)


def reach_table(record: Record) -> str:
    """Figures of sections that are not complete are shown and count for nothing."""
    rows: list[Sequence[str]] = []
    for part in record.parts.values():
        found = [row["name"] for row in part.reach]
        lost = [name for name in FIGURES[part.name] if name not in found]
        rows += [_figure(part, row) for row in part.reach]
        rows += [[f"`{name}`", NONE, "", "", f"**not measured**: {_ran(part)}"] for name in lost]
    return table(["name", "value", "unit", "target", ""], rows)


def _figure(part: Part, row: Row) -> list[str]:
    value = against(row["value"], row["op"], row["target"])
    verdict = "held" if row["ok"] else "**missed**"
    if not part.is_whole:
        verdict = f"not a figure yet: {_ran(part)}"
    return [f"`{row['name']}`", value, row["unit"], f"{row['op']} {row['target']:,g}", verdict]


def _ran(part: Part) -> str:
    return f"{len(part.rows)} of {counted(part.num_cells, 'piece')} run"


def score(record: Record) -> str:
    """One sentence for the head of the page."""
    whole = [row for part in record.parts.values() if part.is_whole for row in part.reach]
    held = sum(bool(row["ok"]) for row in whole)
    open_ = [f"`{part.name}`" for part in record.parts.values() if not part.is_whole]
    missed = len(whole) - held
    text = f"Of {counted(len(whole), 'figure')} of complete sections, {held} held their targets and {missed} missed."
    return text + (f" Not complete or not measured: {', '.join(open_)}." if open_ else " All sections are complete.")
