"""The key-value cache of the torch engine: one row a slot, each row at a position of its own.

The static cache of transformers writes the same column in all rows. Here each row has its own, so that a slot can be
given to a new request while the others go on. The cache has a fixed shape: kernels are chosen by shape, and a row's
numbers must not depend on what the other rows do.

Shapes: R rows, H key-value heads, K columns, D dimensions of a head, L layers; F rows of a prefill, W its width;
S slots that a call names.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all slots, which a forward pass of one token a row reads and extends.

    Set `columns_R` before each forward pass: the column that each row's token is written to. Keys and values are kept
    as the model computes them.
    """

    def __init__(self, num_layers: int, num_rows: int, num_columns: int, device: torch.device) -> None:
        self._rows_R = torch.arange(num_rows, device=device)
        self.columns_R = torch.zeros(num_rows, dtype=torch.long, device=device)
        super().__init__(layers=[_SlotLayer(self, num_columns) for _ in range(num_layers)])

    def install(self, rows_S: torch.Tensor, prompts: "Sequence[PrefilledRow]") -> None:
        """Copy the keys and values of one prefilled row into each of these slots, from column 0 on.

        *Shapes*: rows_S int64, one row for each of the S prompts.
        """
        for number, layer in enumerate(self.layers):
            keys_SHWD, values_SHWD = (
                torch.stack(each) for each in zip(*(p.layers[number] for p in prompts), strict=True)
            )
            if not layer.is_initialized:
                layer.allocate(len(self._rows_R), keys_SHWD, values_SHWD)
            layer.keys[rows_S, :, : keys_SHWD.shape[2]] = keys_SHWD
            layer.values[rows_S, :, : values_SHWD.shape[2]] = values_SHWD


class PrefillCache(Cache):  # type: ignore[misc]
    """Keys and values of one prefill: nothing was cached before, and what is computed is kept as it is."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[_PrefillLayer() for _ in range(num_layers)])

    def row(self, index: int) -> "PrefilledRow":
        """Return a copy of what was computed for one row of the prefill, so that keeping it keeps no other row."""
        return PrefilledRow([(layer.keys[index].clone(), layer.values[index].clone()) for layer in self.layers])


class PrefilledRow:
    """Keys and values of one sequence: a pair of tensors [H, W, D] for each layer."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.layers = layers


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, cache: SlotCache, num_columns: int) -> None:
        super().__init__()
        self._cache = cache
        self._num_columns = num_columns

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.allocate(key_states.shape[0], key_states, value_states)

    def allocate(self, num_rows: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make the memory of all rows, with the heads, dimensions and device of these keys and values."""
        heads = like_keys.shape[1]
        self.keys = like_keys.new_zeros((num_rows, heads, self._num_columns, like_keys.shape[-1]))
        self.values = like_values.new_zeros((num_rows, heads, self._num_columns, like_values.shape[-1]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # One token a row: [R, H, 1, D].
        rows_R, columns_R = self._cache._rows_R, self._cache.columns_R
        self.keys[rows_R, :, columns_R] = key_states[:, :, 0]
        self.values[rows_R, :, columns_R] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._num_columns, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._num_columns


class _PrefillLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1
