"""The trainer: grants leases, holds the staleness bound, steps the optimizer, publishes weights."""
