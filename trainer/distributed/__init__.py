"""The processes (ranks) that train one model together: what they send each other besides torch's own collectives.

In come arrays and small values of each rank. Out they come on rank 0, or on all ranks. Nothing here may know what the
arrays mean: weights, checkpoints and commands are the business of the callers.

    collectives    gathers arrays of different lengths on rank 0, and broadcasts small values, through host memory
"""
