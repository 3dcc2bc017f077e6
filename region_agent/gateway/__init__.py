"""The region's gateway: the one place through which a job's trajectories, leases and weights enter and leave a region.

`service` serves workers, trainers and other gateways. `hub` routes one job's messages, and `hubs` finds a job's hub.
`frames` spools trajectories until the trainer has committed them, `outgoing` queues what goes up, and `upstream`
connects to the trainer's region. `traffic` counts bytes between regions. In come streams; out go streams. The gateway
never decodes a trajectory and never decides what is trained on.
"""
