"""Inference engines: they sample completions, score given tokens, and hold the weights of one policy version.

`engine` is the protocol that every engine fulfils, `torch_engine` the one on plain torch, `sampling` draws tokens,
`model` loads an architecture. In come prompts, seeds and weights; out come tokens with their log-probabilities. An
engine knows nothing of leases, gateways or versions of other workers.
"""
