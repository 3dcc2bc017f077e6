"""Finds the decoder layers of a transformers model."""

from collections.abc import Iterator

import torch
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_layers(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Return the layers that the model's class marks as those whose activations may be recomputed."""
    return (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
