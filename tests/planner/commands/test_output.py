import pytest

from periplus.errors import PlanInfeasible
from planner.answer.outcome import Fact, Infeasible
from planner.commands.output import committed

FACTS = tuple(Fact(kind="rules", name=name, what=name) for name in ("a", "b"))


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (
            Infeasible(facts=FACTS),
            "no plan: a; and b; at least one of these has to change",
        ),
        (
            Infeasible(facts=FACTS, is_minimal=False),
            "no plan: a; and b; at least one of these has to change (it is proved that these "
            "contradict each other, but "
            "not that each of them is needed for the contradiction)",
        ),
        (
            Infeasible(facts=FACTS, is_minimal=False, is_cut=True),
            "no plan: a; and b; at least one of these has to change (time ended before it was known "
            "whether a smaller set of these already conflicts)",
        ),
        (Infeasible(facts=FACTS[:1]), "no plan: a"),
    ],
)
def test_a_conflict_says_what_follows_and_whether_it_is_the_smallest(outcome: Infeasible, message: str) -> None:
    with pytest.raises(PlanInfeasible) as found:
        committed(outcome)
    assert str(found.value) == message
