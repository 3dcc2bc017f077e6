"""A small random model of each architecture in the list of the product, and variants whose attention differs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from rollout_worker.engines.engine import SampleRequest

WINDOW = 5
"""Tokens that a layer with a sliding window sees: fewer than a prompt and its completion have in the tests."""

HEAD_DIM = 32
"""Width of a head: the least that vLLM's attention on a CPU takes."""

NUM_LAYERS = 2

PROMPT_TOKENS, NEW_TOKENS = 8, 12
"""Longest prompt and completion of the tests, in tokens."""

SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}

# The width of a head is given where the family has a setting for it, and then hidden size / heads is another number.
WIDE_HEADS: Mapping[str, Any] = {**SIZES, "num_attention_heads": 4, "head_dim": HEAD_DIM}

Make = Callable[..., PretrainedConfig]


def _of(config: Make, sizes: Mapping[str, Any] = SIZES, **changes: Any) -> Make:
    return lambda **ids: config(**{**sizes, **changes, **ids})


CASES: Mapping[str, Make] = {
    "qwen2": _of(Qwen2Config),
    "qwen2 tied": _of(Qwen2Config, tie_word_embeddings=True),
    "qwen2 with a window in one layer": _of(
        Qwen2Config, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": _of(Qwen3Config, WIDE_HEADS, tie_word_embeddings=True),
    "qwen3 untied": _of(Qwen3Config),
    "llama": _of(LlamaConfig),
    "llama with biases": _of(LlamaConfig, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "mistral": _of(MistralConfig, WIDE_HEADS, sliding_window=None),
    "mistral with a window": _of(MistralConfig, sliding_window=WINDOW),
    "gemma": _of(GemmaConfig, WIDE_HEADS),
    "gemma2": _of(
        Gemma2Config,
        WIDE_HEADS,
        sliding_window=WINDOW,
        query_pre_attn_scalar=20,
        # So low that the caps change every number of such a small model.
        attn_logit_softcapping=1.5,
        final_logit_softcapping=4.0,
    ),
    "gemma3_text": _of(
        Gemma3TextConfig,
        WIDE_HEADS,
        sliding_window=WINDOW,
        query_pre_attn_scalar=20,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phi": _of(PhiConfig),
    "phi3": _of(Phi3Config),
    "phi3 with a window": _of(Phi3Config, sliding_window=WINDOW),
    "gpt2": lambda **ids: GPT2Config(
        n_embd=64, n_layer=NUM_LAYERS, n_head=2, n_positions=128, initializer_range=0.1, **ids
    ),
    "olmo": _of(OlmoConfig, clip_qkv=0.5),
    "olmo2": _of(Olmo2Config),
    "olmo3": _of(Olmo3Config, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]),
    "gpt_neox": _of(GPTNeoXConfig, num_key_value_heads=2),
    "granite": _of(
        GraniteConfig, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.1
    ),
    "smollm3": _of(SmolLM3Config, no_rope_layers=[1, 0]),
    "mixtral": _of(MixtralConfig, num_local_experts=4),
    "qwen3_moe": _of(
        Qwen3MoeConfig, WIDE_HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    ),
}
"""Configurations by name. The name begins with the `model_type`."""


def random_checkpoint(folder: Path, name: str, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Save a model of one of the cases and a tokenizer, as somebody would who trained it with transformers.

    All parameters are random, biases and norms too, so that one which is left out changes the results. The values are
    those of bfloat16, as published weights have them.
    """
    config = CASES[name](
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
            parameter.copy_(parameter.to(torch.bfloat16))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_definition(folder: Path) -> Any:
    """Load a checkpoint with transformers alone, in float32 and with the attention that its authors wrote down.

    That attention, `eager`, knows every part of the architecture; faster ones leave out some, such as a cap of scores.
    """
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager"
    ).eval()


def greedy_requests() -> list[SampleRequest]:
    """Return greedy requests with prompts of 1 to PROMPT_TOKENS tokens."""
    rng = np.random.default_rng(1)
    return [
        SampleRequest(
            request_id=str(number),
            prompt_ids=tuple(rng.integers(5, 60, 1 + number % PROMPT_TOKENS).tolist()),
            seed=1,
            group=number,
            sample=0,
            temperature=1.0,
            max_new_tokens=NEW_TOKENS,
            greedy=True,
        )
        for number in range(11)
    ]
