"""Rows of a group with training: exactly one mesh, with its busy time, its phases and its path."""

import numpy as np

from planner.methods.exact.relaxation.dollar_rows import DollarTerms
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.row_builders import add_weighted_at_most
from planner.methods.exact.relaxation.variables import MeshVariables
from planner.problem.groupings import Tasks
from planner.problem.workload import SCORING, Task


def add_mesh(built: Relaxation, dollars: DollarTerms, tasks: Tasks) -> None:
    """Add the binaries x of a group's meshes and their rows; all sums are over its meshes m.

        sum x_m = 1
        sum busy_m x_m <= tau
        sum train_m x_m <= T
        sum score_m x_m <= S                              if the group scores
        sum generation_m x_m <= (eta + 1) tau - T - S     if it generates, by turns with training

    Exact at integer points: a mesh has its seconds in the cost model, transfers included. The last row is the path of a
    step: its training, scoring and generation follow each other, and eta + 1 steps overlap.
    """
    # One binary for each mesh that is left in the subproblem. Equality with 1 makes every sum below the chosen mesh's
    # value.
    model, scale_s, of = built.model, built.scale_s, built.candidates.meshes[tasks]
    at = model.variables(np.ones(len(of.rows)), whole=True)
    built.meshes[tasks] = MeshVariables(of=of, at=at)
    model.add(at, np.ones(len(at)), 1.0, 1.0)
    add_weighted_at_most(model, at, of.busy_s / scale_s, [(built.step, 1.0)])
    add_weighted_at_most(model, at, of.train_s / scale_s, [(built.train, 1.0)])
    if any(task in SCORING for task in tasks):
        add_weighted_at_most(model, at, of.score_s / scale_s, [(built.score, 1.0)])
    if Task.GENERATION in tasks:
        path = [(built.step, float(built.data.ends)), (built.train, -1.0), (built.score, -1.0)]
        add_weighted_at_most(model, at, of.generation_s / scale_s, path)
    dollars.add_meshes(of, at)
