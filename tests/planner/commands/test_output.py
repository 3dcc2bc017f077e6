import pytest

from periplus.errors import PlanInfeasible
from planner.answer.outcome import Fact
from planner.commands.output import committed
from planner.plan import NoPlanExists

FACTS = tuple(Fact(kind="rules", name=name, what=name) for name in ("a", "b"))


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (
            NoPlanExists(conflict="a; and b", facts=FACTS, is_minimal=True),
            "no plan: a; and b; at least one of these has to change",
        ),
        (
            NoPlanExists(conflict="a; and b", facts=FACTS),
            "no plan: a; and b; at least one of these has to change (it is proved that these "
            "contradict each other, but "
            "not that each of them is needed for the contradiction)",
        ),
        (
            NoPlanExists(conflict="a; and b", facts=FACTS, is_cut=True),
            "no plan: a; and b; at least one of these has to change (time ended before it was known "
            "whether a smaller set of these already conflicts)",
        ),
        (NoPlanExists(conflict="a", facts=FACTS[:1], is_minimal=True), "no plan: a"),
    ],
)
def test_a_conflict_says_what_follows_and_whether_it_is_the_smallest(outcome: NoPlanExists, message: str) -> None:
    with pytest.raises(PlanInfeasible) as found:
        committed(outcome)
    assert str(found.value) == message
