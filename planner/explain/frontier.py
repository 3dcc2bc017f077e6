"""The frontier of a job between seconds a step and dollars an hour: its fastest, its cheapest and its knee.

The *knee* is the plan with the largest distance below the straight line between the two ends, with both axes scaled to
0..1: from there on, more speed costs most and less speed saves least.
"""

from collections.abc import Sequence

from planner.explain.columns import columns
from planner.explain.processes import device_words, dollars_of, usd_words
from planner.plan import Plan

_SAME = 1e-6
"""Relative difference of dollars from which a slower plan counts as cheaper. Chosen by hand."""


def frontier_of(plans: Sequence[Plan]) -> tuple[tuple[str, Plan], ...]:
    """Return the named points of the frontier of these plans, each with an evaluation and prices, the fastest first.

    There are fewer than three if the plans have fewer values that no other plan betters.
    """
    kept: list[Plan] = []
    for plan in sorted(plans, key=_point):
        if not kept or _point(plan)[1] < _point(kept[-1])[1] * (1 - _SAME):
            kept.append(plan)
    if len(kept) < 3:
        return tuple(zip(("fastest", "cheapest") if len(kept) == 2 else ("fastest and cheapest",), kept, strict=False))
    (fast_s, dear), (slow_s, cheap) = _point(kept[0]), _point(kept[-1])

    def below_chord(plan: Plan) -> float:
        step_s, usd = _point(plan)
        return 1 - (step_s - fast_s) / (slow_s - fast_s) - (usd - cheap) / (dear - cheap)

    return ("fastest", kept[0]), ("knee", max(kept[1:-1], key=below_chord)), ("cheapest", kept[-1])


def frontier_tree(named: Sequence[tuple[str, Plan]], num_steps: int) -> list[dict[str, object]]:
    """Return the points of a frontier as plain JSON values."""
    return [
        {"point": name, "step_s": _point(plan)[0], "dollars": dollars_of(plan, num_steps), "devices": _devices(plan)}
        for name, plan in named
    ]


def frontier_text(named: Sequence[tuple[str, Plan]], num_steps: int) -> str:
    """Return the points of a frontier as a table, and a line that says of which plans it is."""
    rows = []
    for name, plan in named:
        found = dollars_of(plan, num_steps) or {}
        per_million, per_job = found["usd_per_million_trained_tokens"], found["usd_per_job"]
        step_s, usd = _point(plan)
        rows.append([name, f"{step_s:.3g}", f"{usd:,.2f}", usd_words(per_million), usd_words(per_job), _devices(plan)])
    heading = ("FRONTIER", "S/STEP", "$/H", "$/1M TOKENS", "$/JOB", "DEVICES")
    return columns(heading, rows, (1, 2, 3, 4)) + "\n(of plans whose devices all have a price)"


def _point(plan: Plan) -> tuple[float, float]:
    assert plan.evaluation is not None
    found = dollars_of(plan, 1) or {}
    return plan.evaluation.step_s, found["rent_usd_per_hour"] + found["egress_usd_per_hour"]


def _devices(plan: Plan) -> str:
    found: dict[str, int] = {}
    for each in plan.assignments:
        name = f"{device_words(each.device)} in {each.region}"
        if not each.by_turns:
            found[name] = found.get(name, 0) + each.num_workers * max(1, each.tensor, each.data)
    return ", ".join(f"{number} {name}" for name, number in found.items())
