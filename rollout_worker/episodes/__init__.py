"""Episodes: from a lease to a scored trajectory.

`queue` decides which leases to sample next, `episode` turns a lease into a request and a completion into a trajectory,
`sampler` runs the requests and reports what becomes of them, and `framing` packs trajectories into frames. In come
leases; out go trajectories and failed leases. Nothing here knows of streams, retries or how weights arrive.
"""
