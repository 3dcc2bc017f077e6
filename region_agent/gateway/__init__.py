"""The region's gateway: the one place through which a job's trajectories, leases and weights enter and leave a region.

In come streams; out go streams. The gateway never decodes a trajectory and never decides what is trained on.

    boundary    service      serves workers, trainers and other gateways
                upstream     connects to the trainer's region
                convert      protobuf messages <-> messages, the values that everything below works with
    decisions   routes       which worker is reached over which stream, and what each message leads to
                trainer_slot, publication_feed, feed_reader: the trainer that is followed, what publications from above
                             lead to, and which record a reader gets next
    shell       hub          one job's queues, around the decisions; hubs finds a job's hub
                frames       spools trajectories until the trainer has committed them
                outgoing, rollout_stream: the queues upwards, and down one stream
                traffic      counts bytes between regions

What it relays between other regions is `region_agent/relay/`.
"""
