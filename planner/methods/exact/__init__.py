"""The exact method: branch and bound over integer programs, which proves a lower bound on the objective.

A problem comes in; a placement with a bound that no placement of the plan space beats goes out, or the smallest set of
conflicting constraints (`method.search`). A *subproblem* is a grouping of the tasks, a region for the trainer, and
ranges of some quantities (`choices.Node`).

- `search` explores subproblems best first; `floors` and `dollars` bound them before any model is built.
- `blocks` holds the candidates as arrays, `sites` their times seen from a trainer's region, `choices` what is left of
  them within a step limit.
- `model` turns a subproblem into a linear model with the help of `rows`, `windows`, `critic`, `money` and `held`;
  `solver` is the only module that calls OR-Tools.
- `splits` decides how to divide a subproblem. `greedy`, `rounding` and `mending` make placements.
- `conflict` explains why there is none.

Bounds hold for the cost model `planner.cost.oracle`, which judges every placement found here.
"""
