"""Episodes: from a lease to a scored trajectory.

`queue` decides which leases to sample next, `episode` samples a batch and scores it, `per_sample_fallback` finds the
samples at fault when a batch fails, and `framing` packs trajectories into frames. In come leases; out go trajectories
and failed leases. Nothing here knows of streams, retries or how weights arrive.
"""
