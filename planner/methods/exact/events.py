"""What a search tells somebody who follows it: one value for each of its actions.

`planner.methods.exact.search.Search` passes them to its `observe` in the order in which things happen. An
observer can print or count them (`tools/trace_exact.py`); it cannot change the search.
"""

from dataclasses import dataclass
from enum import StrEnum

from planner.answer.outcome import Incumbent
from planner.methods.exact.frontier import OpenNode
from planner.methods.exact.program.linear_model import Solution
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays


class PlacementSource(StrEnum):
    """Where a placement comes from."""

    KNOWN = "a known placement"
    """The caller gave it."""
    GREEDY = "a greedy first placement"
    ROUNDED = "a rounded relaxation"
    PROGRAM = "an integer program"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOpened:
    """The search has opened a node for each grouping and region of the trainer, and now works on them."""

    data: ProblemArrays
    nodes: tuple[OpenNode, ...]
    """The new nodes, in order of creation."""
    value: float
    """Objective value of the incumbent; inf without one."""
    gap: float
    """Relative gap that the search proves."""
    target: float
    """Bound from which nodes are of no interest: (1 - gap) x value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTaken:
    """The search works on a node: it does what the node's stage says."""

    node: OpenNode


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSolved:
    """The linear relaxation or the integer program of a node was solved."""

    relaxation: Relaxation
    solution: Solution
    bound: float
    """Lower bound that the solution proves, in seconds per step or dollars per hour; inf if the model is infeasible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncumbentImproved:
    """A placement is better than all before it."""

    incumbent: Incumbent
    source: PlacementSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettled:
    """The search has taken one step on a node: it has closed it, divided it, or put it back at its next stage."""

    node: OpenNode
    children: tuple[OpenNode, ...]
    """Nodes that take its place among the open ones: itself at its next stage, or its parts. Empty if it is closed."""


SearchEvent = NodesOpened | NodeTaken | ModelSolved | IncumbentImproved | NodeSettled
"""One action of a search."""


def unobserved(event: SearchEvent) -> None:
    """Ignore an event."""
