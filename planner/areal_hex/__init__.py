"""AReaL-Hex's two phases: a MILP for strategy and assignment, then graph partitioning. Re-implemented.

Two disjoint pools: rollouts, and training with everything that scores. `strategy` is phase 1, `machines` the graph of
concrete devices, `partition` phase 2, `method` alternates. `docs/planner-reimplementations.md` has what is published.
"""
