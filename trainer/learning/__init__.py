"""One training step: from a batch of samples to changed weights, and the numbers that describe the step.

`learner` runs forward and backward passes, `step` composes a step of advantages, losses, optimizer and critic,
`losses/` holds the algorithms, `gate` and `mismatch` judge what a step may train on. In come packed batches and
settings as plain values; out come changed parameters and metrics. Nothing here knows of leases, files or the network.
"""
