"""The planning problem as plain values: accelerators, fleet, model architectures, workload, goal and constraints.

The values are frozen and compare by content. Their fields are keys of files, with the ranges of `ranges`. They read no
file and know no search, cost model or running job.
`planner.files` and `planner.devices.catalogue` make them from files, `planner.jobs` from jobs.
"""
