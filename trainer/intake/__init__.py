"""How trajectories come into the trainer: from the gateway's stream to disk, and then to the ledger.

In come frames and messages of workers; out go leases, acknowledgements and batches. Nothing here knows of torch,
gradients or weights: publications and proofs of weights only pass through.

    gateway, convert     the streams to the region's gateway, and protobuf from and to values: it is known only here
    messages             what the gateway brings and takes, as values
    leased_prompts       whether a sample's prompt is that of its problem
    frames, committed    frames of trajectories are decoded, validated and stored; what then is on disk
    ledger_driver        the functional core: messages and frames to the ledger, its effects to what must be done
    effects, entries     what must be done, as values; lines of the audit
    held_trajectories    trajectories whose results the ledger has
    tally                counts of what came in
    frame_retention      which frames may be forgotten, and when: how long they stay on disk
    write_ahead          the audit's journal: lines are on record before messages go out
    ledger_service       the shell: it gives the driver what comes in, and does what must be done
"""
