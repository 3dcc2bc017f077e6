"""Device physics: seconds and bytes of one device, or of the devices of one machine.

The cost model and the simulator share these functions; each composes them in its own way. The package is validated by
itself against published profiles (`planner.devices.calibration`, `bench/planner_cases/cost.py`). It knows nothing about
placements, regions or steps.
"""
