"""Device physics: seconds and bytes of one device, or of the devices of one machine.

The cost model and the simulator share these functions; each composes them in its own way. A benchmark fits
and checks them against published profiles (`bench/planner_cases/cost.py`). The package knows nothing about placements,
regions or steps.
"""
