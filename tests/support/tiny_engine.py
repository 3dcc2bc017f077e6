"""A real engine on a Qwen3 of some 20,000 parameters, states that fit it, and the probe as a trainer answers it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.tensor_memory import TensorMemory
from rollout_worker.engines.torch_engine import TorchEngine
from trainer.publishing import reference_logprobs

SEED = 3


def tiny_model(num_layers: int = 2) -> Any:
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=2,
    )
    return Qwen3ForCausalLM(config).eval().requires_grad_(False)


def tiny_engine(model: Any = None, *, max_new_tokens: int = 16) -> TorchEngine:
    """Return an engine of a tiny model, by default with random weights. Close it in the end."""
    return TorchEngine(
        model=model or tiny_model(), end_ids=(2,), pad_id=0, num_slots=4, prompt_tokens=8, max_new_tokens=max_new_tokens
    )


def model_states(num_versions: int, *, density: float = 0.01) -> list[WeightState]:
    """Return BF16 states of the tiny model; a share `density` of the weights changes from one to the next."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    states: list[WeightState] = []
    values = {
        name: parameter.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).reshape(-1)
        for name, parameter in tiny_model().named_parameters()
    }
    shapes = {name: tuple(parameter.shape) for name, parameter in tiny_model().named_parameters()}
    for _ in range(num_versions):
        states.append({name: Tensor("BF16", shapes[name], array.copy()) for name, array in values.items()})
        for array in values.values():
            changed = rng.random(array.size) < density
            changed[rng.integers(array.size)] = True
            array[changed] += rng.integers(8, 64, int(changed.sum()), dtype=np.uint16)
    return states


def prober() -> Callable[[WeightState], tuple[float, ...]]:
    """Return a function that gives the probe's log-probabilities under a state, as the trainer computes them."""
    model = tiny_model()
    memory = TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()})
    prompts = probe_prompts(SEED, model.config.vocab_size)

    def probe(state: WeightState) -> tuple[float, ...]:
        memory.write_all(state)
        return tuple(reference_logprobs.logprobs(model, prompts).reshape(-1).tolist())

    return probe


def held_by(model: Any) -> WeightState:
    """Return what a model holds, as the weights that were published."""
    return TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()}).read()
