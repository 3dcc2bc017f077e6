"""AReaL-Hex's two-phase search, re-implemented: a MILP for strategy and assignment, then graph partitioning.

A placement has two disjoint pools: one generates rollouts, the other trains and scores. `strategy` is phase 1,
`partition` is phase 2 on the graph of machines, `method` alternates between them, and `settings` has all tuned
numbers. `docs/planner-reimplementations.md` says what is published and what was chosen here.
"""
