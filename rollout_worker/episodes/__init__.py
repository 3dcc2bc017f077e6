"""Episodes: from a lease to a scored trajectory.

`queue` decides which leases to sample next, `episode` turns a completion into a trajectory with its reward,
`per_sample_fallback` finds the one sample at fault when a batch fails. In come leases and completions; out go
trajectories and refusals. Nothing here knows of streams, retries or how weights arrive.
"""
