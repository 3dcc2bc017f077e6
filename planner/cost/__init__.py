"""The cost model: predict seconds per step and dollars per hour of a placement, or say which constraint it violates.

A placement goes in, an `Evaluation` or a `Violation` comes out (`oracle.evaluate`). This one function evaluates the
placements of every search method, so methods differ only in what they find.

- `tasks/`: seconds and bytes of each task on given devices. The physics of one device is in `planner.devices`.
- `tables/`: `cost_tables.CostTables` computes the cost of each pool, mesh and transfer once per problem and keeps it.
- `candidates/`: lists of the units and meshes that no other candidate dominates. The solvers choose among these.
- `step/`: the lower bounds on the step time of a whole placement, and the longest of them. `oracle` applies the goal.
- `batched/`: `evaluate_many.evaluate_many` gives the oracle's numbers for many placements at once.

The package knows nothing about searches, solvers, files or running jobs.
"""
