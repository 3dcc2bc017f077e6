"""The rollout worker: one process that turns leases into trajectories, with the newest weights that it has proven.

In come leases and publications from the region's gateway; out go trajectory frames, reports of proven versions and
failed samples. The worker talks to no other service, and never decides which samples are generated or trained on.

    app, config          the process: it brings the engine to the newest version, then samples, in turn
    gateway, convert     the streams to the gateway, and protobuf from and to values: it is known only here
    messages, outbox     what the lease stream carries, as values; the queue of what is sent
    reconnection         how long a stream that breaks is opened again
    engines              sampling of completions
    episodes             from a lease to a scored trajectory
    rewards              from a problem and a completion to a number, in processes of their own
    profile              a process of its own that measures what a model's work takes with an engine
    weights              from publications into the engine
"""
