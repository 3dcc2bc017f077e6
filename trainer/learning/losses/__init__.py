"""Losses and advantages of the RL algorithms: one file for each algorithm, and one for each part that they share.

In come log-probabilities, advantages and masks as tensors. Out come a loss to differentiate and figures about it.
Everything here is a function of tensors and must not know of models, files, clocks or random sources.

    grpo dapo dr_grpo gspo cispo m2po rloo reinforce_plus_plus ppo     the algorithms: advantages and loss of each token
    surrogate    the clipped probability ratio
    importance   weights that correct for samples of older policies
    kl           estimators of the distance to the reference policy
    log_ratio    exponentials of log-probability ratios that cannot overflow
    aggregate    the mean over tokens or sequences
    objective    all of these combined: the loss of a micro-batch
    registry     the algorithms by name

Shape suffixes: B rows (samples), T completion columns, U = T + 1 states (before each completion token, and after the
last). The formulas write i for a sample, t for a token, n_i for the tokens of a sample that the policy sampled, rho for
the ratio pi_theta / pi_prox of a token, and pi_prox for the policy at the start of the training step.
"""
