"""The trainer of one job: it leases samples to rollout workers, trains on what comes back, and publishes weights.

A task file from the region's agent comes in, then trajectories over the gateway of the region. Leases, publications of
weights and records for watchers go out over the same gateway; checkpoints, the audit and the exported model go to the
run directory. The trainer imports no other service, and does not know where workers are or how weights reach them.

    app, assembly, setup, loop     the process, the parts that it consists of, its preparation, the training loop
    preflight, recipe, config      checks of a job's inputs, from job keys to settings, the process's configuration
    disk_wait                      writes that wait for room on a full disk
    ledger, intake                 who produces which sample, and how trajectories come in
    data, learning                 problems and models; advantages, losses and optimizer steps
    publishing, checkpointing      weights to readers, and to disk
    reporting, tracking            records of the run's progress; the same for trackers such as TensorBoard
"""
