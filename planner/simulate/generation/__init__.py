"""Generation in the simulator: engines that decode with continuous batching, and the queues of their samples.

`engine` advances one replica, `rollouts` runs all pools, `replica_speed` and `resident_memory` give their seconds and
caches, `draws` the sampled lengths, `staleness_window` the two gates of the bound. In come events; out come finished
groups. Nothing here uses the cost model.
"""
