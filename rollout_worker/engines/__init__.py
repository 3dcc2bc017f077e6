"""Inference engines: they sample completions, score given tokens, and hold the weights of one policy version.

In come prompts, seeds and weights; out come tokens with their log-probabilities and policies. An engine knows nothing
of leases, gateways or versions of other workers.

    engine         the protocol that every engine fulfils
    torch_engine   implements it in plain PyTorch, in a thread of its own
    slot_decoder   decodes the requests in the slots of the torch engine
    slot_records   what the slots of the torch engine have sampled so far
    slot_cache     the torch engine's keys and values
    sampling       draws tokens
    tensor_memory  writes and hashes an engine's tensors
    bundle         builds an engine from a job's bundle
"""
