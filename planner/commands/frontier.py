"""The searches for a job's frontier between seconds a step and dollars an hour."""

from functools import partial

from periplus import clock
from periplus.errors import TimedOut
from planner.answer.outcome import BudgetExhausted, Found
from planner.commands.background_search import OVERRUN_S, Interrupt, SearchProgress
from planner.commands.numbers import MAX_USD_PER_HOUR
from planner.commands.options import Question
from planner.commands.run import watched
from planner.explain.frontier import frontier_of
from planner.plan import Plan
from planner.problem.goal import Goal

_MULTIPLES = (1.0, 1.25, 1.5, 2.0, 3.0)
"""Limits of the searches for the least dollars, as multiples of the fastest step. One more search has no limit.
Chosen by hand."""
_ROUNDING = 1e-6
"""Relative excess of a limit over the step that it must admit."""
_LEAST_S = 0.25
"""Least time budget of one search, in seconds. Chosen by hand."""


def frontier(
    asked: Question, made: Plan, budget_s: float, seed: int, interrupt: Interrupt
) -> tuple[tuple[str, Plan], ...]:
    """Return the named points of the job's frontier on devices with a price, as `explain.frontier.frontier_of` does.

    The searches share the budget. There are no points if none is found in time.
    """
    end_s = clock.monotonic_s() + budget_s
    found: list[Plan] = []

    def search(keys: dict[str, object], searches_left: int) -> Plan | None:
        share_s = max(_LEAST_S, (end_s - clock.monotonic_s()) / searches_left)
        if interrupt.is_set or clock.monotonic_s() > end_s + OVERRUN_S:
            return None
        question = asked.aiming_at(keys)
        progress = SearchProgress(goal=question.goal, what="frontier")
        call = partial(question.answer, progress.thinking(share_s, seed, interrupt))
        try:
            answer = watched(call, progress, interrupt, share_s + OVERRUN_S)
        except TimedOut:
            return None
        best = answer.best if isinstance(answer, Found | BudgetExhausted) else None
        found.extend([best] if best else [])
        return best

    is_fastest = asked.goal == Goal() and all(each.usd_per_hour is not None for each in made.assignments)
    # The largest limit in dollars leaves out devices without a price and nothing else.
    fastest = made if is_fastest else search({"max_usd_per_hour": MAX_USD_PER_HOUR}, len(_MULTIPLES) + 2)
    if fastest is None or fastest.evaluation is None:
        return ()
    step_s = fastest.evaluation.step_s
    limits = (*(step_s * each * (1 + _ROUNDING) for each in _MULTIPLES), None)
    for done, limit_s in enumerate(limits):
        search({"objective": "cost", "max_step_s": limit_s}, len(limits) - done)
    return frontier_of([fastest, *found])
