"""The region's gateway: the one place through which trajectories, leases and weights of a job enter and leave a region.

`service` serves workers, trainers and other gateways, `hub` routes one job's messages, `frames` spools trajectories
until the trainer has committed them, `upstream` and `outgoing` carry them to the trainer's region. In come streams; out
go streams. The gateway never decodes a trajectory and never decides what is trained on.
"""
