"""Inference engines: they sample completions, score given tokens, and hold the weights of one policy version.

`engine` is the protocol that every engine fulfils, `torch_engine` implements it in plain PyTorch, `sampling` draws
tokens, and `bundle` builds an engine from a job's bundle. In come prompts, seeds and weights; out come tokens with
their log-probabilities. An engine knows nothing of leases, gateways or versions of other workers.
"""
