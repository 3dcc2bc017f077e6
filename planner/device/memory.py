"""Bytes of training's activations and of caches, on one device."""

from dataclasses import dataclass

from planner.question.architecture import Architecture

BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a program keeps of one layer's forward pass for its backward pass, in copies of a tensor's elements.

    A float32 copy beside half-precision ones counts twice.
    """

    hidden: float
    """Of the hidden states, whole on every device."""
    queries: float = 2.0
    """Of what is as wide as all query heads: queries and attention's result."""
    caches: float = 2.0
    """Of what is as wide as all key heads: keys and values."""
    normed: float = 0.0
    """More copies of queries and of keys where an architecture normalises them."""
    width: float | None = None
    """Of what is as wide as the MLP's inside; None: the results of its matrices and functions, one more than matrices
    (gated: gate, its activation, up, their product)."""
    scores: float = 0.0
    """Of the attention scores; 0 where attention is fused."""


TRANSFORMERS = Kept(hidden=8.0, normed=3.0)
"""Source: counted by autograd's own hooks in `transformers`' Qwen3 and Llama layers in bf16 (a test does it again): a
normalisation keeps its input in float32, the normalised and the scaled copy."""
FUSED = Kept(hidden=4.0)
"""Source: Korthikanti et al., arXiv 2205.05198, without the scores: a normalisation keeps its input and its result."""


def activation_bytes_per_layer(
    arch: Architecture,
    *,
    tensor: int,
    tokens: float,
    recompute: bool,
    element_bytes: int = BYTES,
    kept: Kept = TRANSFORMERS,
    sequence: float = 0.0,
) -> float:
    """What one layer keeps of `tokens` tokens for its backward pass; `sequence` matters where scores are kept."""
    if recompute:
        return tokens * arch.hidden_size * element_bytes
    query, cache = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    split = kept.queries * query + kept.caches * cache
    if arch.qk_norm:
        split += kept.normed * (query + cache)
    width = arch.num_mlp_matrices + 1 if kept.width is None else kept.width
    split += width * arch.intermediate_size + kept.scores * arch.num_heads * sequence
    return tokens * element_bytes * (kept.hidden * arch.hidden_size + split / tensor)


def logits_bytes(arch: Architecture, *, tensor: int, tokens: float) -> float:
    """Float32 logits and their gradient."""
    return 8 * tokens * arch.vocab_size / tensor


def kv_bytes_per_token(arch: Architecture, *, tensor: int) -> float:
    """On each of `tensor` devices; heads that cannot be split further are copied."""
    return BYTES * arch.kv_elements_per_token / min(tensor, arch.num_kv_heads)
