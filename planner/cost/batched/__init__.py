"""The cost model for many placements of one grouping at once, on arrays, for searches that try thousands of them.

`batch_tables` lays out the costs, `batched_windows` solves the generation window for all rows, `evaluate_many` combines
them. In come rows of candidate indices; out come step times and dollars. The results equal `planner.cost.oracle` up to
rounding; nothing here may know more physics than `planner.cost.tasks`.
"""
