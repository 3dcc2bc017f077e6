"""Discrete-event simulator: run a placement part by part and measure its step time (`simulator.simulate`).

It imports nothing of the cost model. The two share the problem, the placement and the physics of one device
(`planner.devices`), and are compared with each other (`bench/planner_simulation.py`). All times are simulated times of
events, and all randomness is keyed by the seed, so the same seed gives the same run.

- Generation: engines with continuous batching over sampled lengths and caches that fill (`engine`, `rollouts`).
- Groups: tasks take turns on the devices of their group (`turns`).
- Training: batches are formed, scored and trained on (`learner`), with the staleness bound's two gates (`window`).
- Network: links that are shared, and whose rates may vary (`links`, `publisher`).
- Faults: devices that vanish and return (`faults`).
"""
