"""The files that the planner reads: fleets, workloads, Hugging Face configurations, capabilities, and foreign tables.

`fleet_file` and `workload_file` parse and write our own files, `*_entries` holds their keys, `ranges` the ranges of
their numbers, `importers/` makes fleets from measured networks and published prices. In come texts; out come values of
`planner.problem`, or an error that names the key. Nothing here plans.
"""
