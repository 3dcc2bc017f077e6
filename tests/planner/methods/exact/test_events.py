"""Whoever follows a search hears of each of its actions in order, and changes nothing."""

from collections.abc import Callable

from planner.answer.outcome import Found, Incumbent, Outcome
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import never
from planner.methods.exact.events import (
    IncumbentImproved,
    ModelSolved,
    NodeSettled,
    NodesOpened,
    NodeTaken,
    PlacementSource,
    SearchEvent,
    unobserved,
)
from planner.methods.exact.frontier import BoundingStage
from planner.methods.exact.search import Search
from planner.problem.goal import Problem
from tests.support.searches import still


def followed(problem: Problem) -> tuple[Outcome, list[SearchEvent], list[Incumbent]]:
    events: list[SearchEvent] = []
    reported: list[Incumbent] = []
    found = search(problem, reported.append, events.append)
    return found, events, reported


def search(
    problem: Problem, report: Callable[[Incumbent], None], observe: Callable[[SearchEvent], None] = unobserved
) -> Outcome:
    return Search(
        cost_tables=CostTables(problem),
        gap=0.01,
        budget_s=60.0,
        now_s=still,
        report=report,
        should_stop=never,
        observe=observe,
    ).run()


def test_an_observer_changes_nothing(make_problem: Callable[..., Problem]) -> None:
    problem = make_problem(eta=1)
    reported: list[Incumbent] = []
    found, _, told = followed(problem)
    assert found == search(problem, reported.append)
    assert told == reported


def test_each_node_that_is_taken_is_settled_before_the_next(make_problem: Callable[..., Problem]) -> None:
    _, events, _ = followed(make_problem(eta=1))
    turns = [each for each in events if isinstance(each, NodeTaken | NodeSettled)]
    assert turns
    for taken, settled in zip(turns[::2], turns[1::2], strict=True):
        assert isinstance(taken, NodeTaken)
        assert isinstance(settled, NodeSettled)
        assert taken.node == settled.node
        assert all(child.bound >= taken.node.bound for child in settled.children)


def test_every_node_was_opened_or_is_a_child_of_one(make_problem: Callable[..., Problem]) -> None:
    _, events, _ = followed(make_problem(eta=1))
    known = set()
    for event in events:
        if isinstance(event, NodesOpened):
            known |= {(node.order, node.stage) for node in event.nodes}
        elif isinstance(event, NodeSettled):
            known |= {(node.order, node.stage) for node in event.children}
        elif isinstance(event, NodeTaken):
            assert (event.node.order, event.node.stage) in known


def test_models_are_solved_for_nodes_whose_meshes_are_listed(make_problem: Callable[..., Problem]) -> None:
    _, events, _ = followed(make_problem(eta=1))
    now = None
    for event in events:
        if isinstance(event, NodeTaken):
            now = event.node
        elif isinstance(event, ModelSolved):
            assert now is not None
            assert now.stage is not BoundingStage.MESH_LIST
            assert event.relaxation.subproblem == now.subproblem


def test_improvements_are_those_that_are_reported(make_problem: Callable[..., Problem]) -> None:
    found, events, reported = followed(make_problem(eta=1))
    assert isinstance(found, Found)
    improved = [each for each in events if isinstance(each, IncumbentImproved)]
    # The last report repeats the incumbent with the bound of the whole search.
    assert [each.incumbent for each in improved] == reported[:-1]
    assert improved[0].source is PlacementSource.GREEDY
