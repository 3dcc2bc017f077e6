"""Launchers: how an agent starts, watches and stops the processes of jobs on its machines.

`local` starts them as child processes of the agent. In come the actions of `control.reconcile`; out come the table of
processes and their outcomes. A launcher decides nothing, and knows nothing of the coordinator, of plans or of what a
process does. On other machines a process runs under a child of the agent, whose command line a `cluster` gives.

    local, child, task_folders           start, watch and end processes; what the next agent needs to adopt them
    cluster, slurm_cluster, ray_cluster  the nodes of a cluster, and command lines that run something on one
    node_process, ray_step, ray_nodes    programs: on a node, an actor's start, and the watcher of Ray's nodes
    ray_relay                            program: stands for a process on a node of Ray, without Ray
    region_machines, fabric              what the machines of a region offer, and the network between them
    allowed_paths                        where runs may lie
"""
