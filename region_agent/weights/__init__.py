"""The weight cache of a gateway: a job's publications on disk, and what the gateway derives from them for readers.

`weight_cache` is the async shell. `chain` reads the links of the chain of deltas, wherever they are. `routes` chooses
how a reader gets to the newest version, `changes` computes folds and full states span by span, and `derived` streams
them to readers while they are being made. `disk` keeps the files. In come complete publications and readers' versions;
out go records. Everything read from disk is verified again: a disk is trusted as little as a peer. Nothing here knows
of trajectories, leases or connections.
"""
