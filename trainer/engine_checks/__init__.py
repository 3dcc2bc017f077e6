"""Checks of what engines sampled: the trainer computes some samples again with the weights that sampled them.

kept_versions   the newest published versions, with which samples are computed again
rescoring       log-probabilities of samples under a kept version
evidence        sequential tests of one worker's samples, with a stated rate of false alarms
sample_checks   the choice of samples in each step, and the findings
"""
