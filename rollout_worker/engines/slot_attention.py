"""Attention of the torch engine's decoding on a CPU: one query a row, in float32, over a cache in the model's type.

A step of decoding has one query in each row, for which torch's fused attention on CPUs is not made, and is bound by
reading the cache. Compiled loops (numba) read a cache in bfloat16 as it is, and multiply and sum in float32; a cache
in another type goes through two matrix products. For 128 rows of 8 heads, 32 dimensions and 44 columns torch's own
attention takes 3.1 ms in bfloat16, the products take 1.1 ms over a cache in float32, and the loops 0.5 ms
(docs/design/0011-engines.md). Scores and softmax are float32 whatever the model computes in, so that a model in
bfloat16 rounds its result only.

transformers lets a program register an attention function by name. Everything but a step of decoding, prefills and the
scoring of given tokens among them, is answered by transformers' own SDPA attention.

Shapes: R rows, H heads of queries, G heads of keys and values (H is a multiple of G), Q = H / G queries of a head of
keys, K cache columns, D head width.
"""

from functools import partial
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from periplus.codec.weights.entropy.kernels import kernel

SLOTS = "periplus_slots"
"""Name of the attention function in the registry of transformers."""

CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments by which some models change the scores: transformers' attention answers calls with one of them."""

# Sums may be taken in another order than written, so that they use vector units. The compiled code has a fixed order.
_kernel = partial(kernel, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


def use_slot_attention(model: Any) -> bool:
    """Make the model take the attention here, if it is on a CPU and would use SDPA; return whether it does."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    takes_functions = getattr(model, "_supports_attention_backend", False)
    if not (on_cpu and takes_functions and model.config._attn_implementation in ("sdpa", SLOTS)):
        return False
    AttentionInterface.register(SLOTS, slot_attention)
    AttentionMaskInterface.register(SLOTS, sdpa_mask)
    model.config._attn_implementation = SLOTS
    return True


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with one query a row; answer any other call as transformers' SDPA attention does.

    Shapes: `query` [R, H, 1, D] of the model's type; `key` and `value` [R, G, K, D] of that type or float32;
    `attention_mask` [R, 1, 1, K], added to the scores; the result [R, 1, H, D] of the query's type.
    """
    is_step = query.shape[2] == 1 and not any(options.get(name) is not None for name in CHANGES_SCORES)
    if not is_step or attention_mask is None or attention_mask.dtype == torch.bool:
        found = sdpa_attention_forward(
            module, query, key.to(query.dtype), value.to(query.dtype), attention_mask, scaling=scaling, **options
        )
        return cast("tuple[torch.Tensor, None]", found)
    num_rows, num_heads, _, width = query.shape
    # The queries of one head of keys are the rows of one product.
    query_RGQD = query.float().reshape(num_rows, key.shape[1], -1, width)
    scale = width**-0.5 if scaling is None else scaling
    if key.dtype == value.dtype == torch.bfloat16:
        scores_RGQK = query_RGQD.new_empty((*query_RGQD.shape[:3], key.shape[2]))
        _multiply(query_RGQD.contiguous().numpy(), _bits(key), np.float32(scale), scores_RGQK.numpy())
        shares_RGQK = torch.softmax(scores_RGQK.add_(attention_mask), -1)
        out_RGQD = torch.empty_like(query_RGQD)
        _mix(shares_RGQK.numpy(), _bits(value), out_RGQD.numpy())
    else:
        scores_RGQK = torch.matmul(query_RGQD, key.float().transpose(2, 3)).mul_(scale).add_(attention_mask)
        out_RGQD = torch.matmul(torch.softmax(scores_RGQK, -1), value.float())
    return out_RGQD.reshape(num_rows, 1, num_heads, width).to(query.dtype), None


def _bits(tensor: torch.Tensor) -> npt.NDArray[np.uint16]:
    bits: npt.NDArray[np.uint16] = tensor.view(torch.uint16).numpy()
    return bits


@intrinsic  # type: ignore[untyped-decorator]
def _widened(_: Any, bits: Any) -> Any:
    # The float32 with the same value as a bfloat16 of these bits.
    def generated(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        word = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(word, ir.Constant(word.type, 16)), ir.FloatType())

    return numba.types.float32(numba.types.uint16), generated


@_kernel
def _multiply(query_RGQD: Any, key_RGKD: Any, scale: Any, scores_RGQK: Any) -> None:
    num_rows, num_heads, num_columns, width = key_RGKD.shape
    for row in range(num_rows):
        for head in range(num_heads):
            for query in range(query_RGQD.shape[2]):
                query_D = query_RGQD[row, head, query]
                for column in range(num_columns):
                    key_D = key_RGKD[row, head, column]
                    total = np.float32(0.0)
                    for i in range(width):
                        total += query_D[i] * _widened(key_D[i])
                    scores_RGQK[row, head, query, column] = total * scale


@_kernel
def _mix(shares_RGQK: Any, value_RGKD: Any, out_RGQD: Any) -> None:
    num_rows, num_heads, num_columns, width = value_RGKD.shape
    for row in range(num_rows):
        for head in range(num_heads):
            for query in range(shares_RGQK.shape[2]):
                out_D = out_RGQD[row, head, query]
                out_D[:] = np.float32(0.0)
                for column in range(num_columns):
                    share, value_D = shares_RGQK[row, head, query, column], value_RGKD[row, head, column]
                    for i in range(width):
                        out_D[i] += share * _widened(value_D[i])
