"""The cost model: predict seconds per step and dollars per hour of a placement, or say which constraint it violates.

A placement goes in, an `Evaluation` or a `Violation` comes out (`oracle.evaluate`). Every search method is judged by
this one function, so methods differ only in what they find. `batch.evaluate_many` gives the same numbers for many
placements at once.

- Single costs: `memory` (bytes), `generation`, `scoring`, `training` (seconds of a pool or a mesh) and `network`
  (routes between regions). The physics of one device is in `planner.devices`.
- Cost tables: `pools.Prices` computes each cost once per problem and keeps it.
- Candidates: `columns` lists the units and meshes that no other candidate dominates. The solvers choose among these.
- A step: `placed` adds up the terms of a placement, `estimate` finds the longest one, `oracle` applies the goal.

The package knows nothing about searches, solvers, files or running jobs.
"""
