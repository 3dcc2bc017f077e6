"""The outcomes of planning: what each says, and what a caller may read from it."""

import pytest

from planner.answer.outcome import (
    BOUND_TOLERANCE,
    BudgetExhausted,
    Fact,
    Found,
    Infeasible,
    Outcome,
    RefutedBound,
    credible,
)
from planner.plan import Plan, PlanOutcome
from tests.support.planner.gpu_plan import estimate, gpu_plan

FULL = Fact(kind="inventory", name="inventory", what="us has 8 devices.")
PINNED = Fact(kind="rules", name="pin:reward", what="reward is pinned to us")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ((FULL,), "us has 8 devices"),
        ((FULL, PINNED), "us has 8 devices; and reward is pinned to us"),
        ((), "no placement was found"),
    ],
)
def test_a_conflict_is_its_facts_in_one_sentence(facts: tuple[Fact, ...], sentence: str) -> None:
    assert Infeasible(facts=facts).conflict == sentence


def best_of(outcome: Outcome | PlanOutcome) -> object:
    match outcome:
        case Found(best=best) | BudgetExhausted(best=best):
            return best
        case Infeasible(conflict=conflict):
            return conflict


def test_searches_and_plans_are_matched_alike() -> None:
    plan, incumbent = gpu_plan(), estimate()[1]
    assert isinstance(plan, Plan)
    assert best_of(Found(best=plan)) is best_of(BudgetExhausted(best=plan, bound=None)) is plan
    assert best_of(Found(best=incumbent)) is best_of(BudgetExhausted(best=incumbent, bound=None)) is incumbent
    assert best_of(Infeasible(facts=(PINNED,))) == "reward is pinned to us"


def test_a_bound_above_a_known_value_proves_nothing_beyond_rounding() -> None:
    assert credible(None, 1.0, "exact") is None
    assert credible(0.9, 1.0, "exact") == 0.9
    assert credible(1.0 + BOUND_TOLERANCE / 2, 1.0, "exact") == 1.0
    wrong = 1.0 + BOUND_TOLERANCE * 2
    assert credible(wrong, 1.0, "exact") == RefutedBound(method="exact", bound=wrong, value=1.0)
