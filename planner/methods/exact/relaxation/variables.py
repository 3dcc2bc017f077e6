"""Candidates of a subproblem with the variables that choose them, and where each choice has devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from planner.methods.exact.program.linear_model import Ints
from planner.methods.exact.subproblem.reachable_candidates import ReachableMeshes, ReachableUnits
from planner.problem.groupings import Tasks
from planner.problem.workload import Task

Terms = list[tuple[int, float]]
"""(Variable, coefficient) pairs: a linear expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshVariables:
    """Candidate meshes of one group and their binary variables."""

    of: ReachableMeshes
    """The meshes."""
    at: Ints
    """Index of the binary of each mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVariables:
    """Candidate units of one group and the variables that count them."""

    of: ReachableUnits
    """The units."""
    at: Ints
    """Index of the count variable of each unit."""

    def some(self, keep: Ints) -> "UnitVariables":
        """Return the units at the given positions."""
        mask = np.zeros(len(self.at), dtype=bool)
        mask[keep] = True
        return UnitVariables(of=self.of.some(mask), at=self.at[mask])


def chosen_regions(
    meshes: Mapping[Tasks, MeshVariables], units: Mapping[Tasks, UnitVariables], only: Task | None
) -> Iterator[tuple[int, int, float]]:
    """Yield (variable, region, weight) of everything that can be chosen, for one task or for all.

    The weight is the devices of a unit, or 1 for a mesh.
    """
    for tasks, chosen in meshes.items():
        if only is None or only in tasks:
            regions = chosen.of.block.regions[chosen.of.rows].tolist()
            for x, pair in zip(chosen.at.tolist(), regions, strict=True):
                yield from ((x, region, 1.0) for region in dict.fromkeys(pair))
    for tasks, counted in units.items():
        if only is None or only in tasks:
            gpus = counted.of.gpus.astype(np.float64)
            yield from zip(counted.at.tolist(), counted.of.region.tolist(), gpus.tolist(), strict=True)
