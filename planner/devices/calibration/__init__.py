"""Calibration: fit the efficiencies of device types to published profiles, and measure errors on held-out rows.

- `loaders` reads the profiles; `serving_tables`, `training_tables` and `kernel_tables` turn them into `observations`.
- `predict` asks `planner.devices` for the seconds of an observation. `fit` fits `parameters` with `robust`.
- `similar_types` estimates types that nobody profiled from similar types. `table` writes `planner/data/efficiency.csv`.
- `held_out` predicts rows that the fit did not see, `score` summarises errors, and `layer_memory` checks bytes.

The package knows nothing about placements or the cost model of a step.
"""
