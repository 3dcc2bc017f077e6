"""From changed weights to a published version: snapshot, encode, sign, send.

`snapshot` and `device_snapshot` take the weights while training stands still, `publish` encodes and signs a
publication, `publisher` does so in order beside the training loop, `reference_logprobs` computes the numbers that
workers' engines are compared with. In come the learner's weights and a policy version; out go the records of a
publication. Nothing here knows of samples, rewards or checkpoints.
"""
