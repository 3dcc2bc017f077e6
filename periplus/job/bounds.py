"""Bounds that several sections of a job file share."""

MAX_COUNT = 1_000_000_000
"""Largest value of counts that have no other bound. Chosen by hand: no run has more steps."""
