"""The files that the planner reads: fleets, workloads, Hugging Face configurations, capabilities, and CSV tables.

`fleet_file`, `workload_file` and `question_file` parse and write our own files, `workload_entries` holds keys of files
that values do not have, and `loaders` opens files by path. In come texts; out come values of `planner.problem`, or an
error that names the key. Nothing here plans.
"""
