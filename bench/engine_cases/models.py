"""The random models and the problems that the benchmark of engines uses, the same for every arm.

Models are Qwen3 with the character tokenizer of the built-in model. Heads have 32 dimensions, which is the least that
vLLM's attention on CPUs takes. The problems are words of nine letters to be spelled backward: with the tokens around
the word a prompt has 12 tokens, and rewards are graded, so that advantages are not all zero.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer.data.model import build_tokenizer

WORD_LETTERS = 9
"""Letters of each word."""

PROMPT_TOKENS = WORD_LETTERS + 3
"""Tokens of each prompt: begin, the task's sentence, the letters, and the mark before the answer."""

PROBE_SEED = 0
"""Seed of the prompts of a probe, whose log-probabilities an engine prints beside its samples."""

ENVIRONMENT: dict[str, Any] = {
    "name": "spell_backward",
    "config": {"min_word_len": WORD_LETTERS, "max_word_len": WORD_LETTERS},
}
"""The job's section `environment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of a random Qwen3 whose heads have 32 dimensions."""

    hidden: int
    intermediate: int
    layers: int


SIZES = {
    "0.8M": Size(hidden=128, intermediate=352, layers=4),
    "4.7M": Size(hidden=256, intermediate=672, layers=6),
    "9.4M-12": Size(hidden=256, intermediate=672, layers=12),
    "18.7M-24": Size(hidden=256, intermediate=672, layers=24),
    "0.6M-12": Size(hidden=64, intermediate=176, layers=12),
    "1.4M-28": Size(hidden=64, intermediate=176, layers=28),
}
"""The models by name. The names are their numbers of parameters; deep ones have their number of layers too."""


def write_model(name: str, folder: Path, *, tied: bool = True, seed: int = 0) -> int:
    """Write a checkpoint directory in the form of Hugging Face, and return the model's number of parameters."""
    size, tokenizer = SIZES[name], build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        num_key_value_heads=size.hidden // 32,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.05,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
