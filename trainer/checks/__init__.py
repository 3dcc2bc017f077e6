"""Checks of what workers send: the trainer computes some samples and rewards again.

kept_versions     the newest published versions, with which samples are computed again
rescoring         log-probabilities of samples under a kept version
evidence          sequential tests of one worker's samples, with a stated rate of false alarms
sample_checks     the choice of samples in each step, and the findings
doubted_workers   workers whose samples were not of their weights, until their engines are repaired
reward_checks     rewards that are computed again
stopped_workers   workers that are stopped for wrong rewards
function_process  the process that computes reward functions by name
"""
