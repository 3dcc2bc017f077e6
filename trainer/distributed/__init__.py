"""The processes (ranks) that train one model together.

Rank 0 is the trainer's process, with ledger, publisher and gateway. The others are its children, the *followers*, or
run on other machines under a child of it. In come commands of rank 0, such as a training step with its samples, and all
ranks execute them together. The models are divided by FSDP2. Nothing here knows of leases, versions that readers hold,
or the audit.

    leader, followers     rank 0: starts the other ranks, watches them, and has each command executed on all ranks
    follower              the process of another rank
    commands, rank        the commands as values, and what a rank does for each of them
    position              the machines of the ranks, and which rank is where
    process_group         how ranks find each other, their devices, and the groups in which they talk
    sharding              divides a model among the ranks, with the weights of rank 0
    verdict               the vote of all ranks before an update is applied
    failures              what a rank says of the error that ends it
    collectives           gathers arrays on rank 0, and broadcasts small values, through host memory
    profile, all_reduce   the measuring process: what a model's work takes with one rank, and an all-reduce of two
    node_all_reduce       a measuring process: one rank of an all-reduce over the nodes of a cluster
"""
