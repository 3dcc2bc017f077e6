"""Faults on a fleet of real processes: `python -m tests.chaos`."""
