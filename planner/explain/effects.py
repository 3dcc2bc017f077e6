"""Counterfactuals in lines and as a tree."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.explain.counterfactuals import Effect
from planner.question.goal import Goal, Objective

NEGLIGIBLE = 1e-3
"""Gains below are called none."""


def effects_tree(changes: Sequence[Effect], regions: Sequence[Effect]) -> dict[str, Any]:
    """For programs."""
    return {"lifts": [asdict(each) for each in changes], "unused_regions": [asdict(each) for each in regions]}


def effects_text(changes: Sequence[Effect], regions: Sequence[Effect], goal: Goal, tolerance: float = 0.0) -> str:
    """For a person: the largest gain first. Gains below `tolerance` may be the searches' own."""
    helps = sorted((e for e in changes if (e.gain or 0.0) > NEGLIGIBLE), key=lambda e: (-(e.gain or 0.0), e.what))
    others = [each.what for each in changes if each not in helps]
    lines = ["what would lift it:"] if helps else ["nothing that was tried would lift it"]
    lines += [f"  {_gain(each, goal)}  {each.what}" for each in helps]
    if others:
        lines.append(f"  no gain: {'; '.join(others)}")
    if helps and tolerance > NEGLIGIBLE:
        lines.append(f"  (gains below {tolerance * 100:.2g} % may be none: plans are proved no closer)")
    lines += ["why regions are not used:"] if regions else []
    return "\n".join([*lines, *(f"  {each.subject}: {_why(each, goal)}" for each in regions)])


def _gain(each: Effect, goal: Goal) -> str:
    value = _words(goal, each.value or 0.0)
    return f"{-(each.gain or 0.0) * 100:+6.1f} %  ({value})"


def _why(each: Effect, goal: Goal) -> str:
    if each.value is None:
        return each.why
    loss = -(each.gain or 0.0)
    if loss <= NEGLIGIBLE:
        return f"it would gain nothing ({_words(goal, each.value)} with it)"
    return f"generating there too, the best is {_words(goal, each.value)} ({loss * 100:+.1f} %)"


def _words(goal: Goal, value: float) -> str:
    if goal.objective is Objective.COST_AT_THROUGHPUT:
        return f"{value:,.2f} dollars an hour"
    return f"{value:.3g} s a step"
