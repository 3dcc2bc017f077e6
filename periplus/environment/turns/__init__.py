"""Environments of several turns: the protocol by which they answer a model, and those that come with the runtime.

In come problems and what the model says, as text; out go messages and the reward of each turn. Nothing here knows of
tokens, processes or policies: `rollout_worker/episodes/turns.py` plays an episode with an engine.
"""
