"""Fits device efficiencies to published profiles, and says how far they are from what they were not fitted to.

`loaders` reads tables into `observations`; `predict` asks `planner.device`; `fit` fits with `robust`; `kin` has numbers
for types that nobody profiled; `held_out` leaves out; `score` judges; `table` writes `planner/data/efficiency.csv`.
"""
