"""Seconds to a plan and to a proof, the oracle's rate, and the comparison with trying all placements."""

from collections import defaultdict

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.optimum import KINDS
from bench.planner_cases.report.hetrl_tables import timing_of
from bench.planner_cases.report.markdown import NONE, counted, fixed, number, percent, table


def speed_table(rows: Rows) -> str:
    header = [
        "GPUs",
        "regions",
        "workload",
        "first plan s",
        "one percent s",
        "step s",
        "gap %",
        "GPUs used",
        "peak GiB",
    ]
    return table(header, [_speed_line(row) for row in rows.values()])


def _speed_line(row: Row) -> list[str]:
    proved = row["one_percent_s"]
    close = f"not in {number(row['wall_s'])}" if proved is None else number(proved)
    used = NONE if row["gpus_used"] is None else f"{row['gpus_used']:,}"
    return [
        f"{row['num_gpus']:,}",
        str(row["regions"]),
        workload_of(row),
        number(row["first_s"]),
        close,
        number(row["step_s"], 4),
        percent(row["gap"], 2),
        used,
        fixed(row.get("peak_gib"), 2),
    ]


def workload_of(row: Row) -> str:
    return f"{row['algorithm'].upper()} {timing_of(row)}"


def oracle_table(rows: Rows) -> str:
    header = [
        "GPUs",
        "workload",
        "distinct placements",
        "pools in each",
        "numbered rows/s",
        "placements/s",
        "one by one/s",
    ]
    lines = [
        [
            f"{row['num_gpus']:,}",
            f"GRPO {timing_of(row)}",
            str(row["distinct"]),
            fixed(row["pools"], 1),
            number(row["rows_per_s"], 3),
            number(row["placements_per_s"], 3),
            number(row["one_by_one_per_s"], 3),
        ]
        for row in rows.values()
    ]
    return table(header, lines)


def brute_force_table(rows: Rows) -> str:
    """A line a kind of problem."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for name, row in rows.items():
        kinds[name.rpartition(" ")[0]].append(row)
    lines = []
    for kind, found in kinds.items():
        total = {key: sum(row[key] for row in found) for key in ("cases", "infeasible", "placements", "mismatches")}
        planned = KINDS[kind][1] if kind in KINDS else 0
        lines.append(
            [
                kind,
                f"{total['cases']} of {planned}",
                str(total["infeasible"]),
                f"{total['placements']:,}",
                str(total["mismatches"]),
                f"{max(row['worst'] for row in found):.1e}",
            ]
        )
    return table(["problems", "cases", "without a plan", "placements tried", "mismatches", "worst difference"], lines)


def wrong_sentence(rows: Rows) -> str:
    wrong = [(name.rpartition(" ")[0], each) for name, row in rows.items() for each in row["wrong"]]
    if not wrong:
        return "No case differs by more than one part in a million."
    named = "; ".join(
        f"{kind} {each['number']}: best {number(each['best'], 6)}, exact {number(each['exact'], 6)}, bound "
        f"{number(each['bound'], 6)}"
        for kind, each in wrong[:10]
    )
    return f"{counted(len(wrong), 'case')} that differ: {named}{' and more' if len(wrong) > 10 else ''}."
