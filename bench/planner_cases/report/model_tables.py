"""How far the cost model is from the simulator, and from profiles that nobody here measured."""

from collections.abc import Sequence
from statistics import fmean

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.report.markdown import counted, fixed, percent, table

_SETS = ("random", "best tenth")


def simulation_table(rows: Rows) -> str:
    header = [
        "network, workload, model",
        "placements",
        "rank",
        "error %",
        "worst %",
        "bias",
        "best tenth: rank",
        "of at most about",
        "error %",
        "worst %",
        "bias",
    ]
    return table(header, [_simulation_line(name, row) for name, row in rows.items()])


def _simulation_line(name: str, row: Row) -> list[str]:
    found = {each["which"]: each for each in row["compared"]}
    cells = [name, str(found[_SETS[0]]["num_plans"])]
    for which in _SETS:
        each = found[which]
        cells.append(fixed(each["spearman"], 3))
        if which == _SETS[1]:
            cells.append("-" if each.get("ceiling") is None else fixed(each["ceiling"], 3))
        cells += [percent(each["mean_error"]), percent(each["worst_error"]), fixed(each["bias"], 3)]
    return cells


def simulation_sentence(rows: Sequence[Row]) -> str:
    parts = []
    for which in _SETS:
        found = [each for row in rows for each in row["compared"] if each["which"] == which]
        worst = min(found, key=lambda each: each["spearman"])
        parts.append(
            f"{which}: {sum(each['num_plans'] for each in found):,} placements, mean error "
            f"{percent(fmean(each['mean_error'] for each in found))} %, worst cell's rank correlation "
            f"{fixed(worst['spearman'], 3)} ({worst['cell']})"
        )
    return f"Over {counted(len(rows), 'cell')}: {'; '.join(parts)}."


def time_means_table(row: Row) -> str:
    """Mean error over kinds of layer times, by what was left out."""
    means = row["results"]["times"]["means"]
    lines = [[split, percent(mean["layers"], 2), percent(mean["all"], 2)] for split, mean in means.items()]
    return table(["what the fit had not seen", "layer times, error %", "with kernels and collectives %"], lines)


def time_kinds_table(row: Row) -> str:
    by_kind = row["results"]["times"]["by_kind"]
    kinds = list(dict.fromkeys(kind for found in by_kind.values() for kind in found))
    lines = []
    for kind in kinds:
        counts = {found[kind]["rows"] for found in by_kind.values() if kind in found}
        cells = [percent(found[kind]["mean_error"]) if kind in found else "-" for found in by_kind.values()]
        lines.append([kind, f"{max(counts):,}", *cells])
    return table(["kind of time", "rows", *(f"{split} %" for split in by_kind)], lines)


def memory_table(row: Row) -> str:
    lines = [
        [part, str(each["rows"]), percent(each["mean_error"], 2), percent(each["worst_error"], 2), each["worst"]]
        for part, each in row["results"]["memory"].items()
    ]
    return table(["bytes of", "rows", "mean error %", "worst %", "worst case"], lines)
