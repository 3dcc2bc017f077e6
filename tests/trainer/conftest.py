"""A model small enough for every test of the trainer."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


@pytest.fixture
def model() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=20,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=8,
                initializer_range=0.2,
                tie_word_embeddings=True,
                pad_token_id=0,
            )
        ).eval()
