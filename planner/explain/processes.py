"""The processes of a job's plan as a table, and what they cost."""

from planner.explain.columns import columns
from planner.plan import Assignment, Plan, TaskKind

NO_PRICES = "no prices known: no dollars"
"""Text in place of dollars if no price is known of what the plan uses."""

_HEADINGS = ("TASK", "REGION", "MACHINE", "DEVICE", "INDICES", "ENGINE", "TENSOR", "DATA", "COUNT", "$/H")
_RIGHT = (6, 7, 8, 9)


def processes_text(plan: Plan) -> str:
    """Return a row for the like processes of each region, without the columns that are empty in every row."""
    rows = [_row(each) for each in plan.assignments]
    used = [i for i in range(len(_HEADINGS)) if any(row[i] for row in rows)]
    cells = [[row[i] or "-" for i in used] for row in rows]
    return columns([_HEADINGS[i] for i in used], cells, [place for place, i in enumerate(used) if i in _RIGHT])


def _row(each: Assignment) -> tuple[str, ...]:
    trains = each.task is TaskKind.TRAINER
    return (
        each.task.value,
        each.region,
        each.machine,
        device_words(each.device) + (" (by turns)" if each.by_turns else ""),
        ",".join(map(str, each.devices)),
        each.engine,
        "" if trains or not each.tensor else str(each.tensor),
        str(each.data) if trains else "",
        f"{each.num_workers:,}",
        "" if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}",
    )


def device_words(device: str) -> str:
    """Return a type of device as tables show it; `device` is empty for cores."""
    return device or "cores"


def usd_words(usd: float) -> str:
    """Return dollars with cents, or with three digits below a dollar."""
    return f"{usd:,.2f}" if usd >= 1 else f"{usd:.3g}"


def dollars_of(plan: Plan, num_steps: int) -> dict[str, float] | None:
    """Return what a job with that plan costs, with the unit in each key. None if no price is known.

    What follows from the step is left out if the plan predicts none. Trained tokens are those of completions, at the
    longest that the job allows. Devices without a price are not counted in dollars, but in `num_unpriced`.
    """
    rents = [each.usd_per_hour for each in plan.assignments if each.usd_per_hour is not None]
    egress = plan.evaluation.usd_egress_per_hour if plan.evaluation else 0.0
    if not rents and not egress:
        return None
    num_unpriced = sum(each.num_workers for each in plan.assignments if each.usd_per_hour is None)
    found = {"rent_usd_per_hour": sum(rents), "egress_usd_per_hour": egress, "num_unpriced": num_unpriced}
    if plan.evaluation is None or plan.rates is None:
        return found
    a_step = (sum(rents) + egress) * plan.evaluation.step_s / 3600
    tokens = plan.rates.completion_tokens_per_s * plan.evaluation.step_s
    return {
        **found,
        "usd_per_step": a_step,
        "usd_per_million_trained_tokens": a_step / tokens * 1e6,
        "usd_per_job": a_step * num_steps,
    }


def dollars_text(plan: Plan, num_steps: int) -> str:
    """Return the dollars in one line: rent and egress, a step, a million trained tokens and the whole job."""
    found = dollars_of(plan, num_steps)
    if found is None:
        return NO_PRICES
    parts = [f"rent {found['rent_usd_per_hour']:,.2f} + egress {found['egress_usd_per_hour']:,.2f} an hour"]
    if "usd_per_step" in found:
        parts.append(f"{usd_words(found['usd_per_step'])} a step")
        parts.append(f"{usd_words(found['usd_per_million_trained_tokens'])} per million trained tokens")
        parts.append(f"{usd_words(found['usd_per_job'])} for {num_steps:,} steps")
    else:
        parts.append("no step is predicted")
    rest = f" (without {found['num_unpriced']:,} processes whose price is unknown)" if found["num_unpriced"] else ""
    return f"dollars: {', '.join(parts)}{rest}"
