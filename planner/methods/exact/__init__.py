"""The exact method: branch and bound over integer programs, which proves a lower bound on the objective.

A problem comes in. Out goes a placement with a bound that no placement of the plan space beats, or the smallest set of
conflicting constraints (`method.search`). A *subproblem* is a grouping of the tasks, a region for the trainer, and
ranges of some quantities (`subproblem.remaining_candidates.Subproblem`). A *node* is a subproblem with its bound.

- `search` decides which candidates are searched, and `branch_and_bound` is the loop. `frontier` holds the open nodes,
  `incumbent` the best placement, `bounding` bounds a node, `branching` decides how to divide it (`divisions`), and
  `search_budget` when to end.
- `events` is what a search tells an observer; `settings` has the tuned constants.
- `subproblem/` lists the candidates of a subproblem and bounds it before any model is built.
- `relaxation/` turns a subproblem into a linear model.
- `program/` holds linear models and their solver; it alone calls OR-Tools.
- `incumbents/` makes valid placements, which are upper bounds.
- `infeasibility` explains why no placement exists.

Bounds hold for the cost model `planner.cost.oracle`, which evaluates every placement that is found here.
"""
