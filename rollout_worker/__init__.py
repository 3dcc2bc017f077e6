"""The rollout worker: one process that turns leases into trajectories, with the newest weights that it has proven.

`engines` samples completions, `episodes` turns leases into scored trajectories, `weights` brings publications into the
engine, and `outbox` queues what is sent. In come leases and publications from the region's gateway; out go trajectory
frames, reports of proven versions and failed samples. The worker talks to no other service, and never decides which
samples are generated or trained on.
"""
