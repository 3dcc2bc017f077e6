"""Causal attention over packed sequences: each token sees its own sequence up to itself, and no mask is made.

transformers lets a program register an attention function by name, and models call it with the queries, keys and values
of all packed tokens. The function here takes the sequences apart (trainer/learning/forward/packing.py), so memory grows
with the tokens and not with the square of a padded width. A prompt that sequences share is copied to each of them, and
its own results are those of the first copy. A call without packed sequences is answered by transformers' own SDPA
attention, with its masks. So a model whose attention was replaced works for other callers as before.

- On a CUDA device that has bfloat16 (precision.py), with tensors of 16 bits, torch's variable-length flash attention
  takes all sequences in one call, if this torch has it with windows (2.11 has) and the heads fit it.
- Elsewhere each block of similar lengths goes through `scaled_dot_product_attention` with `is_causal`.
- On a CPU, attention in bfloat16 is computed in float32: the backward kernel of torch 2.13 takes 36 ms a layer in
  bfloat16 and 6 ms in float32 for 2816 tokens (docs/design/0012-training-devices.md).

`PACKABLE` has the architectures whose packed results are tested (periplus/job/architectures.py). They have causal
attention without sliding windows and without position biases, and a plain output projection. Other models take the
padded path of trainer/learning/forward/scorer.py.

Shapes: N packed tokens, L places, n places of a block, R rows and S columns of a block, H heads of queries, G heads of
keys and values (H is a multiple of G), D head width.
"""

import inspect
from functools import cache
from typing import Any, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from periplus.job.architectures import ARCHITECTURES
from trainer.learning.forward.packing import AttentionBlock, PackedSequences, SharedPrompts
from trainer.learning.forward.precision import has_bfloat16_units

PACKED = "periplus_packed"
"""Name of the attention function in the registry of transformers."""

FLASH_WIDTH = 256
"""Largest head width of torch's flash attention."""

PACKABLE = frozenset(each.model_type for each in ARCHITECTURES if each.is_packed)
"""The `model_type` of models that may be packed, unless their configuration has sliding windows or a like variant."""


def use_packed_attention(model: Any) -> bool:
    """Make the model take packed sequences, if it can; return whether it can.

    The model's forward pass then accepts the keyword argument `packed` of type PackedSequences.
    """
    if not is_packable(model.config):
        return False
    AttentionInterface.register(PACKED, packed_attention)
    # Calls without packed sequences get the masks that SDPA needs.
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    model.config._attn_implementation = PACKED
    return True


def is_packable(config: PretrainedConfig) -> bool:
    """Return whether the results of a packed model of this configuration are known to equal those of a padded one."""
    layer_types = getattr(config, "layer_types", None)
    has_windows = layer_types is None and getattr(config, "sliding_window", None) is not None
    return (
        config.model_type in PACKABLE
        and all(kind == "full_attention" for kind in layer_types or ())
        and not has_windows
        and not getattr(config, "use_sliding_window", False)
        # GPT-2's variant multiplies queries and keys in float32 by code of its own.
        and not getattr(config, "reorder_and_upcast_attn", False)
        and not getattr(config, "add_cross_attention", False)
    )


def takes_packed(model: Any) -> bool:
    """Return whether `use_packed_attention` was applied to the model, or to the one that it is a copy or part of."""
    return bool(model.config._attn_implementation == PACKED)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: PackedSequences | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each packed sequence; without `packed`, do what transformers' SDPA attention does.

    Shapes: `query` [1, H, N, D]; `key` and `value` [1, G, N, D]; the result [1, N, H, D].
    """
    if packed is None:
        return cast(
            "tuple[torch.Tensor, None]",
            sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
            ),
        )
    shared = packed.shared
    if shared is not None:
        query, key, value = (_spread(tensor, shared) for tensor in (query, key, value))
    if fits_flash(value):
        out_LHD = _flash(query.to(value.dtype), key.to(value.dtype), value, packed, scaling)
    else:
        kind = torch.float32 if query.device.type == "cpu" else value.dtype
        parts = [_block_attention(query, key, value, block, scaling, dropout, kind) for block in packed.blocks]
        out_LHD = torch.cat(parts).to(value.dtype)
    if shared is not None:
        out_LHD = _Picked.apply(out_LHD, shared.place_of_token)  # type: ignore[no-untyped-call]
    return out_LHD[None], None


def fits_flash(value: torch.Tensor) -> bool:
    """Return whether torch's variable-length flash attention takes values of this device, dtype and head width."""
    return (
        value.is_cuda
        and value.dtype in (torch.bfloat16, torch.float16)
        and value.shape[-1] % 8 == 0
        and value.shape[-1] <= FLASH_WIDTH
        and has_bfloat16_units(value.device)
        and "window_size" in _flash_options()
    )


@cache
def _flash_options() -> frozenset[str]:
    # The names of the kernel's arguments, or none if this torch has no such kernel.
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: PackedSequences, scaling: float | None
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query_LHD, key_LGD, value_LGD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    # Versions without this argument always take fewer heads of keys than of queries.
    grouped: Any = {"enable_gqa": query_LHD.shape[1] != key_LGD.shape[1]} if "enable_gqa" in _flash_options() else {}
    out_LHD = varlen_attn(
        query_LHD,
        key_LGD,
        value_LGD,
        packed.starts,
        packed.starts,
        packed.longest,
        packed.longest,
        scale=scaling,
        # Causal: nothing to the right, and no limit to the left.
        window_size=(-1, 0),
        **grouped,
    )
    return cast("torch.Tensor", out_LHD)


def _block_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block: AttentionBlock,
    scaling: float | None,
    dropout: float,
    kind: torch.dtype,
) -> torch.Tensor:
    # One block's result, nHD, computed in the dtype `kind`.
    query_RHSD, key_RGSD, value_RGSD = (_apart(tensor, block).to(kind) for tensor in (query, key, value))
    out_RHSD = torch.nn.functional.scaled_dot_product_attention(
        query_RHSD,
        key_RGSD,
        value_RGSD,
        dropout_p=dropout,
        is_causal=True,
        scale=scaling,
        enable_gqa=query_RHSD.shape[1] != key_RGSD.shape[1],
    )
    cells = out_RHSD.transpose(1, 2).flatten(0, 1)  # one cell after the other, [R * S, H, D]
    if block.cell_of_place is None or block.place_of_cell is None:
        return cells
    return cast("torch.Tensor", _Picked.apply(cells, block.cell_of_place))  # type: ignore[no-untyped-call]


def _spread(tensor: torch.Tensor, shared: SharedPrompts) -> torch.Tensor:
    # From packed tokens to places: [1, heads, N, D] to [1, heads, L, D].
    places: torch.Tensor = _Spread.apply(tensor[0].transpose(0, 1), shared)  # type: ignore[no-untyped-call]
    return places.transpose(0, 1)[None]


def _apart(tensor: torch.Tensor, block: AttentionBlock) -> torch.Tensor:
    # The block's sequences as rows, [R, heads, S, D]. Where all lengths are equal this copies nothing.
    places = tensor[0, :, block.start : block.stop].transpose(0, 1)  # [n, heads, D]
    cells = places
    if block.cell_of_place is not None:
        cells = _Apart.apply(places, block.place_of_cell, block.cell_of_place)  # type: ignore[no-untyped-call]
    shape = (block.num_rows, block.num_columns, *places.shape[1:])
    # A view, since it only divides the first dimension.
    return cells.reshape(shape).transpose(1, 2)


class _Apart(torch.autograd.Function):
    """Places to cells. Padding holds the first place, whose gradient from there is not counted.

    A plain index has the same forward pass, but its backward pass adds up, which is far slower than to pick.
    """

    @staticmethod
    def forward(ctx: Any, places: torch.Tensor, place_of_cell: torch.Tensor, cell_of_place: torch.Tensor) -> Any:
        ctx.save_for_backward(cell_of_place)
        return places.index_select(0, place_of_cell)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (cell_of_place,) = ctx.saved_tensors
        return gradients[0].index_select(0, cell_of_place), None, None


class _Picked(torch.autograd.Function):
    """Some rows of a tensor, each at most once. The gradient of the others is 0."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, index: torch.Tensor) -> Any:
        ctx.save_for_backward(index)
        ctx.num_rows = len(tensor)
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (index,) = ctx.saved_tensors
        whole = gradients[0].new_zeros((ctx.num_rows, *gradients[0].shape[1:]))
        return whole.index_copy_(0, index, gradients[0].contiguous()), None


class _Spread(torch.autograd.Function):
    """Packed tokens to places. The gradient of a token is the sum over its places, in the same order on any device."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, shared: SharedPrompts) -> Any:
        ctx.shared = shared
        return tokens.index_select(0, shared.token_of_place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        shared: SharedPrompts = ctx.shared
        found = gradients[0].index_select(0, shared.place_of_token)
        for tokens, places in shared.copies:
            apart = gradients[0].index_select(0, places).view(len(tokens), -1, *found.shape[1:])
            found.index_copy_(0, tokens, apart.sum(1))
        return found, None
