"""Publishing: after each training step it takes the weights, encodes them, signs them, and sends them to the gateway.

In come the model's weights and a policy version. Out go the records of a publication, one line of the audit, and
figures of what was sent. Nothing here may know of samples, rewards or checkpoints.

    snapshot           takes a version of the weights while training stands still
    device_snapshot    the same for weights on an accelerator: it compares on the device, and copies only changes
    sharded_snapshot   the same for weights that several ranks share: each compares its own rows
    local_rows         the rows of each tensor that this process holds
    trained_weights    chooses one of the three ways
    publish            rounds to bfloat16, makes and signs publications, decides between a delta and a full state
    publisher          publishes versions in order beside the training loop, and checks readers' proofs
    reference_logprobs log-probabilities of fixed prompts, with which workers' engines are compared
"""
