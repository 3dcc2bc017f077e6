"""Discrete-event simulator: run a placement part by part and measure its step time (`simulator.simulate`).

It imports nothing of the cost model. The two share the problem, the placement and the physics of one device
(`planner.devices`), and are compared with each other (`bench/planner_cases/simulation.py`). All times are simulated
times of events, and all randomness is keyed by the seed, so the same seed gives the same run.

- `generation/`: engines with continuous batching over sampled lengths and caches that fill, tasks that use the devices
  of their group one at a time, and the two gates of the staleness bound.
- `learning/`: batches that are formed, scored and trained on.
- `network/`: links that are shared, and whose rates may vary.
- `faults`: devices that vanish and return, and links that change. `build` turns a placement into the simulated parts.
- `event_queue` runs events in the order of their times; `run_record` holds the results; `settings` has the assumptions
  that no input gives.
"""
