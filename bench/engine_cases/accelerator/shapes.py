"""Models of real shapes with random weights, for measurements on an accelerator, and a tiny one to try programs.

The shapes are those of the published configurations of Qwen3; `0.5B` is that of Qwen2.5-0.5B with Qwen3's layers.
Weights are random, because speeds and memory do not depend on them.
"""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
    },
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""Sizes by name."""

TIED = frozenset({"tiny", "0.5B", "0.6B", "1.7B", "4B"})
"""Models whose head is their embedding."""


def config_of(name: str) -> Qwen3Config:
    """Return the configuration of a shape."""
    sizes = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6} | SHAPES[name]
    return Qwen3Config(**sizes, tie_word_embeddings=name in TIED, eos_token_id=2, bos_token_id=1, pad_token_id=0)


def random_model(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a model of a shape, made on the device, with weights of the usual spread."""
    with torch.device(device):
        torch.manual_seed(0)
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return Qwen3ForCausalLM(config_of(name)).eval()
        finally:
            torch.set_default_dtype(previous)
