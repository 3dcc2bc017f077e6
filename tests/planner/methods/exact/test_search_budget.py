"""A search ends with its time or when the caller asks; a search for an incumbent ends when it finds nothing better."""

from planner.methods.exact.frontier import BoundingStage, OpenNode
from planner.methods.exact.search_budget import EarlyEnd, SearchBudget
from planner.methods.exact.subproblem.remaining_candidates import Subproblem


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


def budget(clock: Clock, *, should_stop: bool = False) -> SearchBudget:
    return SearchBudget(budget_s=10.0, now_s=clock, should_stop=lambda: should_stop, began_s=clock())


def node(stage: BoundingStage) -> OpenNode:
    return OpenNode(subproblem=Subproblem(grouping=(), trainer_region=0), bound=0.0, stage=stage)


def test_a_budget_is_over_once_its_seconds_are_spent() -> None:
    clock = Clock()
    of = budget(clock)
    assert (of.elapsed_s, of.left_s, of.is_over) == (0.0, 10.0, False)
    clock.time_s += 9.0
    assert (of.elapsed_s, of.left_s, of.is_over) == (9.0, 1.0, False)
    clock.time_s += 2.0
    assert (of.left_s, of.is_over) == (0.0, True)


def test_a_caller_who_asks_to_stop_ends_a_budget_at_once() -> None:
    clock = Clock()
    assert budget(clock, should_stop=True).is_over
    assert budget(clock, should_stop=True).is_past(clock() + 5.0)
    assert not budget(clock).is_past(clock() + 5.0)
    assert budget(clock).is_past(clock())


def test_a_search_for_an_incumbent_ends_after_its_programs() -> None:
    end = EarlyEnd(programs_left=1, patience=100, value=5.0)
    assert end.allows(node(BoundingStage.RELAXATION), 5.0)
    assert end.allows(node(BoundingStage.PROGRAM), 5.0)
    assert not end.allows(node(BoundingStage.RELAXATION), 5.0)


def test_a_search_for_an_incumbent_ends_after_models_without_a_better_placement() -> None:
    end = EarlyEnd(programs_left=9, patience=2, value=5.0)
    assert end.allows(node(BoundingStage.MESH_LIST), 5.0)
    assert end.allows(node(BoundingStage.RELAXATION), 5.0)
    assert end.allows(node(BoundingStage.RELAXATION), 4.0)  # better: the count starts again
    assert end.allows(node(BoundingStage.RELAXATION), 4.0)
    assert end.allows(node(BoundingStage.RELAXATION), 4.0)
    assert not end.allows(node(BoundingStage.RELAXATION), 4.0)
