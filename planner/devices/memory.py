"""Bytes of training activations, logits and key-value caches on one device.

Model state (weights, gradients, moments) is not counted here, since it depends on how it is sharded
(`planner.cost.tasks.memory`, `planner.simulate.generation.resident_memory`).
"""

from dataclasses import dataclass

from planner.problem.architecture import Architecture

BYTES = 2
"""Bytes of one half-precision element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivations:
    """Tensors that a program keeps of one layer's forward pass for the backward pass, as numbers of copies.

    A float32 copy next to half-precision ones counts twice.
    """

    hidden: float
    """Copies of the hidden states, which are whole on every device."""
    queries: float = 2.0
    """Copies of tensors as wide as all query heads: the queries and the result of attention."""
    caches: float = 2.0
    """Copies of tensors as wide as all key heads: keys and values."""
    normed: float = 0.0
    """Additional copies of queries and keys in architectures that normalise them."""
    width: float | None = None
    """Copies of tensors as wide as the inside of the MLP. None stands for the results of its matrices and functions,
    which are one more than its matrices (with a gate: gate, its activation, up, and their product)."""
    scores: float = 0.0
    """Copies of the attention scores; 0 if attention is fused."""


TRANSFORMERS = KeptActivations(hidden=8.0, normed=3.0)
"""Tensors that the layers of `transformers` keep. Source: counted by autograd's saved-tensor hooks in its Qwen3 and
Llama layers in bf16, which a test repeats. A normalisation keeps its input in float32, the normalised copy and the
scaled copy."""
FUSED = KeptActivations(hidden=4.0)
"""Tensors that fused kernels keep. Source: Korthikanti et al., arXiv 2205.05198, without the scores. A normalisation
keeps its input and its result."""


def activation_bytes_per_layer(
    arch: Architecture,
    *,
    tensor: int,
    tokens: float,
    recompute: bool,
    element_bytes: int = BYTES,
    kept: KeptActivations = TRANSFORMERS,
    sequence: float = 0.0,
) -> float:
    """Return the bytes that one layer keeps of `tokens` tokens for its backward pass, on one device.

    With `recompute` it is only the layer's input. `sequence` matters only if the attention scores are kept.
    """
    if recompute:
        return tokens * arch.hidden_size * element_bytes
    # Widths of all queries, and of all keys (or all values). What is as wide as the hidden state is whole on each
    # device; queries, keys, values, the MLP's inside and scores are divided by the tensor degree.
    query, cache = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    split = kept.queries * query + kept.caches * cache
    if arch.qk_norm:
        split += kept.normed * (query + cache)
    width = arch.num_mlp_matrices + 1 if kept.width is None else kept.width
    split += width * arch.mlp_width + kept.scores * arch.num_heads * sequence
    return tokens * element_bytes * (kept.hidden * arch.hidden_size + split / tensor)


def logits_bytes(arch: Architecture, *, tensor: int, tokens: float) -> float:
    """Return the bytes of the float32 logits of `tokens` tokens and of their gradient, on one of `tensor` devices."""
    return 8 * tokens * arch.vocab_size / tensor


def kv_bytes_per_token(arch: Architecture, *, tensor: int) -> float:
    """Return the cache bytes of one token on each of `tensor` devices.

    Heads that cannot be split any further are copied to several devices.
    """
    return BYTES * arch.kv_elements_per_token / min(tensor, arch.num_kv_heads)
