"""Activation checkpointing: a layer keeps only its input, and the backward pass computes the layer again.

Activations of a pass then take the memory of one layer plus one hidden state a token and layer, for a third more
arithmetic. transformers has this only for models in training mode, which would also switch on dropout. Here a model
stays in evaluation mode, and each decoder layer's `forward` is replaced on the instance.

A layer's weights may be rounded for the time of a pass (trainer/learning/forward/precision.py). The pass is over when
the backward pass begins, so the rounded weights are kept along and put back while the layer is computed again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from trainer.learning.forward.decoder_layers import decoder_layers


def recompute_layers(model: torch.nn.Module) -> int:
    """Make each decoder layer of a transformers model recompute its activations. Return the number of layers.

    It is 0 if the model's class does not mark its layers; the model then works as before.
    """
    layers = list(decoder_layers(model))
    for layer in layers:
        # On the instance, below `__call__`: hooks on the layer, such as FSDP's, see one call as before.
        layer.forward = _Recomputed(layer, layer.forward)
    return len(layers)


def is_recomputed(model: torch.nn.Module) -> bool:
    """Return whether `recompute_layers` was applied to the model or to the model that it is a copy of."""
    return any(isinstance(layer.forward, _Recomputed) for layer in decoder_layers(model))


class _Recomputed:
    """The forward pass of one layer, which runs once more in the backward pass."""

    def __init__(self, layer: torch.nn.Module, forward: Callable[..., Any]) -> None:
        self._layer = layer
        self._forward = forward

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **options)
        current = dict(self._layer.named_parameters())
        # Weights that are no parameters now are rounded ones, of which only this call knows.
        rounded = {name: value for name, value in current.items() if not isinstance(value, torch.nn.Parameter)}
        return checkpoint(self._run, rounded, arguments, options, use_reentrant=False, preserve_rng_state=False)

    def _run(self, rounded: dict[str, torch.Tensor], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not rounded:
            return self._forward(*arguments, **options)
        weights = {f"layer.{name}": value for name, value in rounded.items()}
        return torch.func.functional_call(_Plain(self._layer, self._forward), weights, arguments, options)


class _Plain(torch.nn.Module):
    """A layer whose call is its own forward pass without recomputation."""

    def __init__(self, layer: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = layer
        self._plain_forward = forward

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._plain_forward(*arguments, **options)
