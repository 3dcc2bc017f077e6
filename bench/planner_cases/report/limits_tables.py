"""Plans under limits, played: which missed, and how far the simulation was from the prediction by regime."""

from collections.abc import Sequence

from bench.planner_cases.cells import Row, Rows
from bench.planner_cases.report.markdown import NONE, counted, number, percent, table


def limits_sentence(rows: Sequence[Row]) -> str:
    plans = [plan for row in rows for plan in row["plans"]]
    played = [plan for plan in plans if "missed" in plan]
    missed = sum(plan["missed"] for plan in played)
    return (
        f"{counted(len(played), 'plan')} were played for forty steps, and {missed} of them missed their limit; for "
        f"{counted(len(plans) - len(played), 'limit')} no plan was found, mostly since the fastest placement is not "
        "faster by the margin."
    )


def limits_table(rows: Rows) -> str:
    """By staleness bound, number of regions in the plan, critic and kind of limit."""
    found: dict[tuple[int, str, str, str], list[Row]] = {}
    for row in rows.values():
        for plan in row["plans"]:
            if plan.get("error") is not None:
                regions = "one" if plan["regions"] == 1 else "several"
                critic = "yes" if row["algorithm"] == "ppo" else "no"
                found.setdefault((row["eta"], regions, critic, plan["objective"]), []).append(plan)
    header = [
        "bound",
        "regions",
        "critic",
        "goal",
        "plans",
        "margin %",
        "error %: mean",
        "largest",
        "least",
        "dollars over predicted %, largest",
        "missed",
    ]
    return table(header, [_line(key, plans) for key, plans in sorted(found.items())])


def _line(key: tuple[int, str, str, str], plans: Sequence[Row]) -> list[str]:
    errors = [plan["error"] for plan in plans]
    margins = sorted({plan["margin"] for plan in plans})
    paid = [plan["simulated_usd"] / plan["predicted_usd"] - 1 for plan in plans if plan["predicted_usd"] > 0]
    return [
        str(key[0]),
        *key[1:],
        str(len(plans)),
        " or ".join(percent(margin, 0) for margin in margins),
        percent(sum(errors) / len(errors)),
        percent(max(errors)),
        percent(min(errors)),
        percent(max(paid), 2) if paid else NONE,
        str(sum(plan["missed"] for plan in plans)),
    ]


def nearest_table(rows: Rows, most: int = 12) -> str:
    """The plans that came nearest to their limit of seconds."""
    every = [
        (plan["simulated_s"] / plan["limit_s"], name, plan)
        for name, row in rows.items()
        for plan in row["plans"]
        if plan.get("simulated_s") is not None and plan["limit_s"] is not None
    ]
    every.sort(key=lambda each: (-each[0], each[1]))
    header = ["fleet and workload", "limit s", "predicted s", "simulated s", "of the limit %"]
    return table(
        header,
        [
            [
                name,
                number(plan["limit_s"], 4),
                number(plan["predicted_s"], 4),
                number(plan["simulated_s"], 4),
                percent(share),
            ]
            for share, name, plan in every[:most]
        ],
    )
