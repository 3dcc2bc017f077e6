"""Makes the attention masks that the layers of a model take, from the one mask of its tokens.

In most models every layer sees all earlier tokens of its sequence. A layer with a *sliding window* of w tokens sees the
token itself and the w - 1 before it. Models in which layers of both kinds alternate take a mapping of masks by kind
(`layer_types` in their configuration); models with one kind take one mask.

The cache keeps the keys of all tokens whatever the window is, so that its shape stays fixed: keys that a layer may not
see are masked.

Shapes: Q queries, K keys.
"""

from collections.abc import Mapping
from typing import Any

import torch

from periplus.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types` that the torch engine can compute."""


class LayerMasks:
    """The masks of one model, for sequences of at most `num_columns` tokens."""

    def __init__(self, config: Any, num_columns: int) -> None:
        check_architecture(config)
        kinds = _kinds(config)
        window = int(getattr(config, "sliding_window", None) or num_columns)
        self._is_mapping = bool(getattr(config, "layer_types", None)) and SLIDING in kinds
        self._kinds = sorted(kinds)
        # A window that no sequence exceeds hides nothing.
        self._window = window if SLIDING in kinds and window < num_columns else None
        # `eager` attention adds the mask to the scores; SDPA also takes truth values.
        self._is_added = config._attn_implementation == "eager"

    def of(
        self, mask: torch.Tensor, query_columns: torch.Tensor, key_columns: torch.Tensor
    ) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """Return what the model takes as its attention mask.

        `mask` is true, or 0, where a query attends to a key, and false, or minus infinity, elsewhere. *Shapes*: `mask`
        ends in Q x K, `query_columns` in Q x 1, and `key_columns` is K.
        """
        if self._is_added and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
        masks = {FULL: mask, SLIDING: mask}
        if self._window is not None:
            is_near = query_columns - key_columns < self._window
            masks[SLIDING] = mask & is_near if mask.dtype == torch.bool else mask.masked_fill(~is_near, -torch.inf)
        if self._is_mapping:
            return {kind: masks[kind] for kind in self._kinds}
        return masks[self._kinds[0]]


def check_architecture(config: Any) -> None:
    """Check that the layers of the model attend to earlier tokens only, all of them or those within a window.

    Raises: ConfigError.
    """
    kinds = _kinds(config)
    if not kinds <= {FULL, SLIDING} or getattr(config, "use_bidirectional_attention", None):
        raise ConfigError(
            f"the torch engine cannot generate with {config.model_type}: its layers are {', '.join(sorted(kinds))} "
            "and only causal attention with or without a sliding window is supported; set engine.name=vllm"
        )


def _kinds(config: Any) -> set[str]:
    listed = getattr(config, "layer_types", None)
    if listed:
        return set(listed)
    return {SLIDING if getattr(config, "sliding_window", None) else FULL}
