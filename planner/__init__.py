"""The planner: decide where the tasks of a reinforcement-learning job run, and with which parallelism.

A fleet and a workload (or a job) go in; a plan comes out, or a proof that there is none (`planner.solve`). The planner
opens no socket and reads no clock; only its loaders and commands read files. It never starts anything.
"""
