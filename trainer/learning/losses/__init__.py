"""Losses and advantages: one file an algorithm, and one file for each thing that algorithms share.

    grpo dapo dr_grpo gspo cispo rloo reinforce_plus_plus ppo     the algorithms: advantages and loss of a token
    surrogate    the clipped probability ratio
    importance   weights that correct for samples of older policies
    kl           estimators of the distance to the reference policy
    aggregate    from tokens to one number
    objective    all of these together: the loss of a micro-batch
    registry     which algorithm has which name

Everything here is a function of tensors: no model, file, clock or random source. Shape suffixes: B rows (samples), T
completion columns, U = T + 1 (the states before each completion token, and the one after the last).
"""
