"""One training step: it turns samples into changed weights, and into numbers that describe the step.

In come samples (tokens, log-probabilities, rewards) and settings, as plain values. Out come changed parameters of actor
and critic, and a report. Nothing here may know of leases, files or the network.

    learner        a whole training step: scoring, advantages, one or more optimizer updates, all or nothing
    step           one optimizer update: forward and backward passes in micro-batches, clipping, the check for NaN
    micro_batches  which rows go into which forward and backward pass
    batch          samples as tensors, on the device that trains
    forward/       forward passes: packing, attention, chunked logits, precision, memory
    scoring        log-probabilities and values of a batch's completions
    advantages     the parts that advantages are computed from
    losses/        one file for each algorithm, and what the algorithms share
    critic         the value network of PPO
    ranks          the processes that share a step
    gate           refuses groups with tokens that are too stale, before the step
    mismatch       compares the engine's log-probabilities with the trainer's, after the step
    sample_figures one line of figures for each sample of a step, for those who look at samples
    warmup         supervised training before the first step
"""
