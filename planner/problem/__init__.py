"""The planning problem as plain values: accelerators, fleet, model architectures, workload, goal and constraints.

The values are frozen and compare by content. They read no file and know no search, cost model or running job.
`fleet_file`, `workload_file`, `catalogue` and `importers` make them from files.
"""
