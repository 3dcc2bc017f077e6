"""Effects of counterfactuals as text and as plain JSON values."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from periplus.view import units
from planner.explain.counterfactuals import UNANSWERED, Effect
from planner.problem.goal import Goal, Objective

NEGLIGIBLE = 1e-3
"""Relative gain below which the text says that there is none. Chosen by hand."""
SETTLED = 0.0101
"""An effect is settled if no more than this can be gained in addition: the gap of 1 % at which searches end."""


def effects_tree(changes: Sequence[Effect], regions: Sequence[Effect]) -> dict[str, Any]:
    """Return the effects as plain JSON values."""
    return {
        "lifts": [_effect_tree(each) for each in changes],
        "unused_regions": [_effect_tree(each) for each in regions],
    }


def _effect_tree(each: Effect) -> dict[str, Any]:
    return {**asdict(each), "settled": _settled(each)}


def effects_text(
    changes: Sequence[Effect],
    regions: Sequence[Effect],
    goal: Goal,
    gap: float | None = 0.0,
    *,
    budget_s: float | None = None,
    plan_s: float | None = None,
) -> str:
    """Return the effects as text for a person, the largest gain first.

    `gap` is that of the plan, None if nothing is proved. `budget_s` is the time that all changes shared, and `plan_s`
    what each should have had, as the plan did.
    """
    # Three kinds of changes: those with a gain, those that are proved to have none (up to the gap), and those of which
    # too little is known.
    helps = sorted((e for e in changes if _helps(e)), key=lambda e: (-(e.gain or 0.0), e.what))
    none = [each for each in changes if not _helps(each) and _settled(each)]
    open_ones = [each for each in changes if not _helps(each) and not _settled(each)]
    lines = ["what would lift it:"] if helps else ["nothing that was tried was found to lift it"]
    lines += [f"  {_gain(each, goal)}  {each.what}" for each in helps]
    if none:
        # No gain above the largest room of them is possible, which is the strongest true sentence about all.
        room = max(each.room or 0.0 for each in none)
        above = f" above {percent(room)}" if room > NEGLIGIBLE else ""
        lines.append(f"  no gain{above}: {'; '.join(each.what for each in none)}")
    if open_ones:
        lines.append(f"  not settled in the time given: {'; '.join(each.what for each in open_ones)}")
    if changes:
        lines.append(f"  ({_note(gap)})")
    num = len(changes) + len(regions)
    # Something is open because the time was short: say which budget would give each question as much as the plan had.
    if (open_ones or not all(map(_settled, regions))) and budget_s is not None and plan_s is not None:
        lines.append(
            f"  ({num} questions shared {units.short(budget_s)} s; `periplus plan explain PLAN --budget-s "
            f"{math.ceil(num * plan_s)}` gives each {units.short(plan_s)} s)"
        )
    lines += ["why regions are not used:"] if regions else []
    return "\n".join([*lines, *(f"  {each.subject}: {_why(each, goal)}" for each in regions)])


def percent(share: float) -> str:
    """Format a share as `0.25 %`, `3.2 %` or `32 %`, never with powers of ten."""
    value = share * 100
    return f"{value:.2f} %" if value < 0.995 else f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def _helps(each: Effect) -> bool:
    return (each.gain or 0.0) > NEGLIGIBLE


def _settled(each: Effect) -> bool:
    """Return whether the gain of the change is known, to the gap at which searches end."""
    # A region that cannot be used is settled by the reason, unless the reason is that time ended.
    if each.kind == "region" and each.value is None:
        return each.why != UNANSWERED
    return each.room is not None and each.room - max(0.0, each.gain or 0.0) <= SETTLED


def _note(gap: float | None) -> str:
    note = "gains are of what a short search found: there may be more"
    if gap is None:
        return f"{note}, and any may be none: nothing is proved of the plan itself"
    if gap > NEGLIGIBLE:
        return f"{note}, and those below {percent(gap)} may be none: the plan is proved no closer"
    return note


def _gain(each: Effect, goal: Goal) -> str:
    return f"at least {(each.gain or 0.0) * 100:5.1f} % less  ({value_words(goal, each.value or 0.0)})"


def _why(each: Effect, goal: Goal) -> str:
    if each.value is None:
        return each.why
    loss, words = -(each.gain or 0.0), value_words(goal, each.value)
    # The forced use of the region came out better than the plan, so the plan was not optimal.
    if loss < -NEGLIGIBLE:
        return f"a short search found a better plan that generates there too: {words} ({loss * 100:+.1f} %)"
    if loss <= NEGLIGIBLE:
        return f"it would gain nothing ({words} with it)" if _settled(each) else f"no gain was found ({words} with it)"
    found = "the best is" if _settled(each) else "the best found is"
    return f"generating there too, {found} {words} ({loss * 100:+.1f} %)"


def value_words(goal: Goal, value: float) -> str:
    """Return an objective value with its unit."""
    if goal.objective is Objective.COST_AT_THROUGHPUT:
        return f"{value:,.2f} dollars an hour"
    return f"{units.short(value)} s a step"
