"""Inference engines: they sample completions, score given tokens, and hold the weights of one policy version.

In come prompts, seeds and weights; out come tokens with their log-probabilities and policies. An engine knows nothing
of leases, gateways or versions of other workers.

    engine         the protocol that every engine fulfils
    torch_engine   implements it in plain PyTorch, in a thread of its own
    slot_decoder   decodes the requests in the slots of the torch engine
    slot_records   what the slots of the torch engine have sampled so far
    layer_masks    the masks that the layers of a model take
    slot_cache     the torch engine's keys and values
    sampling       draws tokens
    tensor_memory  writes and hashes an engine's tensors
    adapter_engine merges low-rank adapters for an engine that knows none
    merged_weights the merged weights, and what of them changes
    vllm           implements it with vLLM, which has processes of its own
    replicated_engine  several engines with the same weights as one
    request_limits  checks a request before an engine takes it
    cards          the GPUs, and whether an engine fits into their memory
    bundle         builds an engine from a job's bundle
"""
