"""The frontier of branch and bound: open nodes with their bounds, which one is next, and the bound that follows.

A *node* is a subproblem with a lower bound on its objective and with the next thing to do about it (`BoundingStage`).
The placements of the plan space are in open nodes, in the node that is being worked on, or in closed nodes. A closed
node has a bound, too: nothing in it is below that bound. So the least of all these bounds holds for every placement,
once all subproblems of the plan space are open (`Frontier.is_complete`). The frontier knows no models and no problem.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planner.methods.exact.program.linear_model import INFINITE
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.workload import Task


class BoundingStage(StrEnum):
    """What is done next to raise the bound of a node, in this order: each stage costs more and bounds better."""

    MESH_LIST = "list the meshes"
    """The meshes of the node's groups are listed; its bound comes from `subproblem.mesh_lower_bounds` so far."""
    RELAXATION = "linear relaxation"
    """The linear relaxation of the node's model is solved."""
    PROGRAM = "integer program"
    """The integer program of the node's model is solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode:
    """A node of the branch-and-bound tree that is not closed."""

    subproblem: Subproblem
    bound: float
    """Lower bound on the objective: seconds per step, or dollars per hour."""
    stage: BoundingStage
    cuts: tuple[tuple[Task, float], ...] = ()
    """(Task, rate in samples per second) at which the model gets further tangents."""
    num_programs: int = 0
    """Integer programs that were solved for the node and its ancestors with the same cuts."""
    order: int = 0
    """Number of the node in the order of creation; the older of two nodes with equal bounds is next. 0 until the
    frontier numbers it."""

    def child(self, subproblem: Subproblem, bound: float, stage: BoundingStage) -> "OpenNode":
        """Return a new node below this one."""
        return replace(self, subproblem=subproblem, bound=bound, stage=stage, order=0)


@dataclass(slots=True)
class Frontier:
    """Open nodes, least bound first."""

    is_complete: bool = False
    """Whether every placement of the plan space is in an open or closed node. Before that, nothing is proved."""
    _heap: list[tuple[float, int, OpenNode]] = field(default_factory=list)
    """(Bound, order, node), a heap."""
    _num_added: int = 0
    _taken: float = INFINITE
    """Bound of the node that is being worked on; inf if there is none."""
    _closed: float = INFINITE
    """Least bound of all closed nodes."""

    def add(self, node: OpenNode) -> OpenNode:
        """Open a node, and return it with its number."""
        if not node.order:
            self._num_added += 1
            node = replace(node, order=self._num_added)
        heapq.heappush(self._heap, (node.bound, node.order, node))
        return node

    def take(self, target: float) -> OpenNode | None:
        """Remove and return the node with the least bound; None if no open node has a bound below `target`."""
        if not self._heap or self._heap[0][0] >= target:
            return None
        node = heapq.heappop(self._heap)[2]
        self._taken = node.bound
        return node

    def settle(self, children: Iterable[OpenNode]) -> tuple[OpenNode, ...]:
        """Replace the node that was taken by its children, which may be none, and return them with their numbers."""
        self._taken = INFINITE
        return tuple(self.add(child) for child in children)

    def close(self, bound: float) -> None:
        """Note that nothing in the node that is being worked on, or nothing that it gives up, is below `bound`."""
        self._closed = min(self._closed, bound)

    def clear(self) -> None:
        """Forget all nodes, because a search over a smaller plan space has ended."""
        self._heap, self._taken, self._closed = [], INFINITE, INFINITE

    @property
    def num_open(self) -> int:
        """Number of open nodes."""
        return len(self._heap)

    @property
    def bound(self) -> float:
        """Lower bound on the objective of every placement: 0 if nothing is proved, inf if there is no placement."""
        if not self.is_complete:
            return 0.0
        least = self._heap[0][0] if self._heap else INFINITE
        return min(least, self._taken, self._closed)

    def below(self, target: float) -> Iterator[OpenNode]:
        """Yield the open nodes whose bound is below `target`, in no particular order."""
        return (node for bound, _, node in self._heap if bound < target)
