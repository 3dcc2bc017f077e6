"""Adapters as a run of reinforcement learning makes them: random Qwen3 models, real backward passes, AdamW.

A step takes fresh random tokens and a random advantage for each sequence, and follows the policy gradient. A model with
random weights samples nearly uniformly, so that random tokens stand for its own samples. AdamW has TRL's defaults: no
weight decay, a constant rate, gradients clipped at norm 1. Every linear layer but the head has adapters, as TRL's
examples have it, and alpha is twice the rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.engine_cases.models import SIZES
from periplus.values.weight_state import Tensor, WeightState
from trainer.data.adapters import AdapterSettings, inject, round_base, trained_parameters
from trainer.publishing.snapshot import HostWeights

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every linear layer of a Qwen3 but the head."""

SCALE = 2.0
"""alpha / rank, as in the recipe that TRL's bucket was shown with (rank 1, alpha 2)."""

SEQUENCES, TOKENS = 8, 24
"""Sequences of a step, and tokens of each. They decide about the noise of a gradient, but AdamW divides by its size, so
that updates are as large as with more tokens."""

MAX_GRAD_NORM = 1.0
"""Norm at which gradients are clipped: the default of TRL's trainers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: which model, the adapters' rank, AdamW's rate, and the steps whose publication is measured."""

    model: str
    rank: int
    learning_rate: float
    steps: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.model} rank {self.rank} at {self.learning_rate:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step: the published states before and after it, and the adapters themselves in float32."""

    number: int
    before: WeightState
    after: WeightState
    adapters: Mapping[str, npt.NDArray[np.float32]]
    adapters_before: Mapping[str, npt.NDArray[np.float32]]


def config_of(name: str) -> Qwen3Config:
    """Return the configuration of `Qwen3-0.6B`, or of a small model of bench/engine_cases/models.py."""
    if name == "Qwen3-0.6B":
        return Qwen3Config(
            vocab_size=151_936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        )
    size = SIZES[name]
    return Qwen3Config(
        vocab_size=128,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        num_key_value_heads=size.hidden // 32,
        head_dim=32,
        tie_word_embeddings=True,
    )


def random_model(name: str, seed: int = 0) -> Any:
    """Return a model with random weights in float32, as transformers draws them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config_of(name))


def with_adapters(model: Any, rank: int, seed: int = 0) -> Any:
    """Round a model's weights to bfloat16 and add fresh adapters, in place, as the trainer does. Return the model."""
    round_base(model)
    inject(model, AdapterSettings(rank=rank, alpha=SCALE * rank, target_modules=TARGETS), seed)
    return model


def train(model: Any, learning_rate: float, steps: Sequence[int]) -> Iterator[Step]:
    """Train the adapters of a model, and yield the chosen steps, numbered from 1."""
    weights, generator = HostWeights(model), torch.Generator().manual_seed(0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    first = weights.first()
    for number in range(1, max(steps) + 1):
        before, adapters_before = _taken(weights, first, model) if number in steps else ({}, {})
        torch.autograd.backward(_policy_gradient(model, generator))
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if number in steps:
            after, adapters = _taken(weights, first, model)
            yield Step(number=number, before=before, after=after, adapters=adapters, adapters_before=adapters_before)


def float32_tensors(adapters: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Tensor]:
    """Return adapters as tensors of a state, to be written into a file."""
    return {name: Tensor("F32", values.shape, values.reshape(-1).copy()) for name, values in adapters.items()}


def _taken(
    weights: HostWeights, first: WeightState, model: Any
) -> tuple[WeightState, dict[str, npt.NDArray[np.float32]]]:
    adapters = {name: parameter.detach().numpy().copy() for name, parameter in trained_parameters(model)}
    return weights.take()(first).state, adapters


def _policy_gradient(model: Any, generator: torch.Generator) -> torch.Tensor:
    # Shapes: B sequences, T tokens of each, V vocabulary.
    ids_BT = torch.randint(0, model.config.vocab_size, (SEQUENCES, TOKENS), generator=generator)
    advantages_B = torch.randn(SEQUENCES, generator=generator)
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].float()
    logprobs_BT = torch.log_softmax(logits_BTV, dim=-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    return -(advantages_B[:, None] * logprobs_BT).mean()
