"""Models that FSDP2 has divided among the ranks of the default process group, for tests that run on several of them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import Qwen3Config, Qwen3ForCausalLM

ODD_SHAPES = {"a_0": (7,), "a_1": (300, 5), "a_10": (2, 3, 11), "b": (1,), "d": (1024,), "e": (513, 3)}
"""Shapes of which no number of ranks but 1 divides all. On three ranks some ranks have no row of some of them."""


class OddModel(torch.nn.Module):
    """Parameters of ODD_SHAPES with the bits of any number that is not NaN."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        for name, values in odd_values(seed).items():
            self.register_parameter(name, torch.nn.Parameter(values))


def odd_values(seed: int) -> dict[str, torch.Tensor]:
    """Return values of ODD_SHAPES, with zeros of both signs, infinities and subnormal numbers among them."""
    generator = np.random.default_rng(seed)
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1], np.uint32)
    found = {}
    for name, shape in ODD_SHAPES.items():
        bits = generator.integers(0, 1 << 32, shape, dtype=np.uint32)
        bits = np.where(generator.random(shape) < 0.3, special[generator.integers(0, len(special), shape)], bits)
        values = bits.astype(np.uint32).view(np.float32)
        found[name] = torch.from_numpy(np.where(np.isnan(values), np.float32(-0.0), values))
    return found


def changed(values: Mapping[str, torch.Tensor], seed: int, density: float) -> dict[str, torch.Tensor]:
    """Return the values with a share `density` of them replaced, the same for each caller."""
    generator, other = np.random.default_rng(seed), odd_values(seed + 1000)
    found = {}
    for name, value in values.items():
        chosen = torch.from_numpy(np.asarray(generator.random(tuple(value.shape)) < density))
        found[name] = torch.where(chosen, other[name], value)
    return found


def divided(model: torch.nn.Module) -> Any:
    """Divide a model by rows among all ranks: each layer of a transformer for itself, and the rest with the whole.

    Four ranks hold two copies of it (HSDP).
    """
    size = dist.get_world_size()
    shape = (2, 2) if size == 4 else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "rows")[-len(shape) :])
    for layer in getattr(getattr(model, "model", None), "layers", ()):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def set_values(model: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Overwrite the parameters in place, of which this rank may hold only some rows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                most = math.ceil(parameter.shape[0] / mesh.shape[-1])
                start = mesh.get_local_rank(mesh.ndim - 1) * most
                parameter.to_local().copy_(values[name][start : start + most])
            else:
                parameter.copy_(values[name])


def small_qwen(num_layers: int = 2) -> Any:
    """Return a Qwen3 of 21 symbols, the same each time. No number of ranks but 1 divides all of its tensors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=21,
                hidden_size=18,
                intermediate_size=22,
                num_hidden_layers=num_layers,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=10,
                initializer_range=0.2,
                tie_word_embeddings=True,
                pad_token_id=0,
            )
        ).eval()


def take_step(model: Any, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """Take an optimizer step of a made-up loss on tokens that the seed draws. All ranks see the same tokens."""
    tokens = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(seed))
    model(input_ids=tokens).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
