"""Two kinds of devices for one job, and twenty fleets of measured links."""

from collections.abc import Sequence

from bench.planner_cases import areal_hex, real
from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.report.markdown import NONE, counted, fixed, number, percent, table

AREAL_HEX_PUBLISHED = {"throughput": (1.31, 1.50), "cost": (None, 1.46)}
"""Of AReaL-Hex's abstract (arXiv 2511.00796): over homogeneous fleets, at equal budget and at equal throughput."""
CLOSE = 0.01


# ---- AReaL-Hex's setting ---------------------------------------------------------------------------------------------


def areal_hex_table(rows: Rows) -> str:
    header = [
        "model",
        "eta",
        "dollars an hour",
        "step s: both",
        "H800",
        "H20",
        "throughput x",
        "certified",
        "gap %",
        "dollars an hour: both",
        "H800",
        "H20",
        "cheaper x",
        "certified",
        "gap %",
    ]
    return table(header, [_areal_hex_line(row) for row in rows.values()])


def _areal_hex_line(row: Row) -> list[str]:
    cells = [row["model"], str(row["eta"]), number(row["usd_per_hour"])]
    for name, digits in (("throughput", 4), ("cost", 4)):
        cells += [number(row.get(f"{name}_{fleet}"), digits) for fleet in areal_hex.FLEETS]
        low, high = row.get(f"{name}_ratio_at_least"), row.get(f"{name}_ratio_at_most")
        certified = f"{fixed(low, 3)} to {fixed(high, 3)}" if low or high else NONE
        cells += [fixed(row.get(f"{name}_ratio"), 3), certified, percent(row.get(f"{name}_gap"), 2)]
    return cells


def areal_hex_sentence(rows: Sequence[Row]) -> str:
    parts = []
    for name, words in (("throughput", "throughput at equal budget"), ("cost", "cost at equal throughput")):
        ratios = [row[f"{name}_ratio"] for row in rows if row.get(f"{name}_ratio")]
        low, high = AREAL_HEX_PUBLISHED[name]
        published = f"{low:.2f} to {high:.2f}" if low else f"up to {high:.2f}"
        if not ratios:
            parts.append(f"{words}: no case has a ratio (published {published})")
            continue
        inside = sum((low or 1.0) <= ratio <= high for ratio in ratios)
        parts.append(
            f"{words}: {min(ratios):.2f} to {max(ratios):.2f} times in {counted(len(ratios), 'case')}, {inside} of "
            f"them within what is published ({published})"
        )
    return "; ".join(parts) + "."


# ---- real fleets -----------------------------------------------------------------------------------------------------


def real_table(rows: Rows) -> str:
    header = [
        "fleet",
        "regions",
        "GPUs",
        "step s",
        "one region's",
        "times faster",
        "gap %",
        "proof s",
        "dollars an hour",
        "one region's",
        "saved",
        "saved %",
        "gap %",
        "one region's gap %",
        "proof s",
    ]
    return table(header, [_real_line(name, row) for name, row in rows.items()])


def _real_line(name: str, row: Row) -> list[str]:
    return [
        name.removeprefix("fleet "),
        str(row["regions"]),
        f"{row['num_gpus']:,}",
        number(row["throughput_value"], 4),
        number(row["throughput_alone_value"], 4),
        fixed(row.get("speedup"), 2),
        percent(row["throughput_gap"], 2),
        number(row["throughput_s"]),
        fixed(row.get("cost_value"), 2),
        fixed(row.get("cost_alone_value"), 2),
        fixed(row.get("usd_per_hour_saved"), 2),
        percent(row.get("fraction_saved")),
        percent(row.get("cost_gap"), 2),
        percent(row.get("cost_alone_gap"), 2),
        number(row.get("cost_s")),
    ]


def real_sentence(rows: Sequence[Row]) -> str:
    saved = sorted(row["fraction_saved"] for row in rows if row.get("fraction_saved") is not None)
    if not saved:
        return "No fleet has a figure of dollars saved."
    middle = (saved[(len(saved) - 1) // 2] + saved[len(saved) // 2]) / 2
    dollars = sum(row["usd_per_hour_saved"] for row in rows if row.get("usd_per_hour_saved") is not None)
    unproved = sum((row.get("cost_alone_gap") or 0.0) > CLOSE for row in rows)
    text = (
        f"Dollars saved against the cheapest single region at {1 / real.SLOWER:.0%} of the fastest one's throughput: "
        f"{percent(saved[0])} to {percent(saved[-1])} %, {percent(middle)} % in the median, {fixed(dollars, 2)} "
        f"dollars an hour over {counted(len(saved), 'fleet')}."
    )
    if unproved:
        text += (
            f" On {counted(unproved, 'fleet')} the single region's answer was not proved within one percent: what is "
            "saved there may be less."
        )
    return text
