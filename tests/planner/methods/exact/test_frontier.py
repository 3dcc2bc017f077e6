"""The frontier gives out the node with the least bound, and never claims more than its nodes allow."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from planner.methods.exact.frontier import BoundingStage, Frontier, OpenNode
from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.workload import Task

WHOLE = Subproblem(grouping=((Task.GENERATION, Task.ACTOR_TRAINING),), trainer_region=0)


def node(bound: float, trainer_region: int = 0) -> OpenNode:
    subproblem = replace(WHOLE, trainer_region=trainer_region)
    return OpenNode(subproblem=subproblem, bound=bound, stage=BoundingStage.MESH_LIST)


def region(taken: OpenNode | None) -> int:
    assert taken is not None
    return taken.subproblem.trainer_region


def test_the_least_bound_is_next_and_the_older_of_two_equal_ones() -> None:
    frontier = Frontier()
    for each in (node(2.0, 0), node(1.0, 1), node(1.0, 2)):
        frontier.add(each)
    assert [region(frontier.take(INFINITE)) for _ in range(3)] == [1, 2, 0]


def test_a_node_that_is_not_below_the_target_stays_open() -> None:
    frontier = Frontier()
    frontier.add(node(2.0))
    assert frontier.take(2.0) is None
    assert frontier.num_open == 1
    assert frontier.take(2.1) is not None


def test_a_node_at_its_next_stage_keeps_its_place_and_a_child_is_younger() -> None:
    frontier = Frontier()
    first, other = frontier.add(node(1.0, 0)), frontier.add(node(1.0, 1))
    taken = frontier.take(INFINITE)
    assert taken == first
    frontier.settle([replace(first, stage=BoundingStage.RELAXATION)])
    again = frontier.take(INFINITE)
    assert again == replace(first, stage=BoundingStage.RELAXATION)
    (child,) = frontier.settle([again.child(again.subproblem, 1.0, BoundingStage.PROGRAM)])
    assert child.order > other.order
    assert frontier.take(INFINITE) == other


def test_nothing_is_proved_before_the_whole_plan_space_is_open() -> None:
    frontier = Frontier()
    frontier.add(node(3.0))
    assert frontier.bound == 0.0
    frontier.is_complete = True
    assert frontier.bound == 3.0


def test_the_bound_counts_open_closed_and_present_nodes() -> None:
    frontier = Frontier(is_complete=True)
    frontier.add(node(2.0))
    frontier.add(node(5.0))
    assert frontier.take(INFINITE) is not None
    assert frontier.bound == 2.0
    frontier.close(4.0)
    frontier.settle([])
    assert frontier.bound == 4.0


def test_where_nothing_is_open_and_nothing_was_given_up_there_is_no_placement() -> None:
    frontier = Frontier(is_complete=True)
    frontier.add(node(2.0))
    frontier.take(INFINITE)
    frontier.settle([])
    assert frontier.bound == INFINITE


def test_a_cleared_frontier_has_forgotten_its_nodes() -> None:
    frontier = Frontier(is_complete=True)
    frontier.add(node(1.0))
    frontier.close(1.5)
    frontier.clear()
    assert frontier.num_open == 0
    assert frontier.bound == INFINITE


@given(st.integers(min_value=0, max_value=1 << 16), st.floats(min_value=0.0, max_value=0.5))
def test_the_bound_only_rises_and_ends_within_the_gap_of_the_best_leaf(seed: int, gap: float) -> None:
    """On random trees in which no part has a lower bound than its parent, and a leaf is a placement of known value."""
    rng, frontier, best, num_divisions = random.Random(seed), Frontier(is_complete=True), INFINITE, 0
    frontier.add(node(1.0))
    bounds = [frontier.bound]
    while (taken := frontier.take(best * (1 - gap))) is not None:
        bounds.append(frontier.bound)
        value = taken.bound * (1 + rng.random())
        if num_divisions < 40 and rng.random() < 0.7:
            num_divisions += 1
            parts = [taken.bound, value]
            frontier.settle([taken.child(taken.subproblem, bound, taken.stage) for bound in parts])
        else:
            best = min(best, value)
            frontier.close(value)
            frontier.settle([])
        bounds.append(frontier.bound)
    assert bounds == sorted(bounds)
    assert best * (1 - gap) <= frontier.bound <= best
