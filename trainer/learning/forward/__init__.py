"""The forward passes of training: from token ids to log-probabilities or values, in bounded memory, on any device.

In come sequences of token ids and a model. Out come differentiable log-probabilities of the completions' tokens, or the
hidden states from which a critic computes values. Nothing here knows of rewards, advantages, losses, ranks or jobs.

    packing           sequences laid end to end without padding, and where in that row everything is
    attention         attention over packed sequences, and which models it suits
    chunked_logprobs  log-probabilities of given tokens without the logits of all tokens at once
    precision         float32 master weights that compute in bfloat16
    recomputation     activation checkpointing of a model's layers
    scorer            one module that does all of this in one call
    memory            how many tokens fit into one pass, and when to recompute activations
"""
