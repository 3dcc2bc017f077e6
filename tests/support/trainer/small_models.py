"""Small random models of several architectures, for tests of forward passes."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

PACKED: dict[str, Callable[[], PretrainedConfig]] = {
    "qwen3 with grouped queries": lambda: Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    "qwen3 untied": lambda: Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "llama": lambda: LlamaConfig(**SIZES),
    "gpt2": lambda: GPT2Config(**GPT2_SIZES),
    "gpt2 scaled by layer": lambda: GPT2Config(**GPT2_SIZES, scale_attn_by_inverse_layer_idx=True),
}
"""Configurations of models that can be packed."""

PADDED: dict[str, Callable[[], PretrainedConfig]] = {
    "mistral with a sliding window": lambda: MistralConfig(**SIZES, sliding_window=3),
    "qwen2 with a sliding window": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=0
    ),
    "bloom with position biases": lambda: BloomConfig(
        vocab_size=20,
        hidden_size=16,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}
"""Configurations of models that cannot be packed."""


def random_model(make: Callable[[], PretrainedConfig]) -> Any:
    """Return a model of this configuration in evaluation mode, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(make()).eval()
