"""The files that the planner reads: fleets, workloads, Hugging Face configurations, capabilities, and CSV tables.

`fleet_file` and `workload_file` parse and write our own files, `*_entries` holds their keys, `ranges` the ranges of
their numbers, and `loaders` opens files by path. In come texts; out come values of `planner.problem`, or an error that
names the key. Nothing here plans.
"""
