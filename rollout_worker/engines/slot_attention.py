"""Attention of the torch engine's decoding on a CPU: one query a row, by plain matrix products in float32.

A step of decoding has one query in each row, for which torch's fused attention on CPUs is not made. For 128 rows of 8
heads, 32 dimensions and 44 columns it takes 2.8 ms in float32 and 3.1 ms in bfloat16, and the two products and the
softmax here take 0.6 and 0.4 ms (docs/design/0011-engines.md). Scores and softmax are float32 whatever the
model computes in, so that a model in bfloat16 rounds its result only; the cache holds float32 for the same reason,
since a cache in bfloat16 would be converted at every step.

transformers lets a program register an attention function by name. Everything but a step of decoding, prefills and the
scoring of given tokens among them, is answered by transformers' own SDPA attention.

Shapes: R rows, H heads of queries, G heads of keys and values (H is a multiple of G), K cache columns, D head width.
"""

from typing import Any, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SLOTS = "periplus_slots"
"""Name of the attention function in the registry of transformers."""

CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments by which some models change the scores: transformers' attention answers calls with one of them."""


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
    scores_RGQK = torch.matmul(query_RGQD, key.float().transpose(2, 3))
    scores_RGQK.mul_(width**-0.5 if scaling is None else scaling).add_(attention_mask)
    out_RGQD = torch.matmul(torch.softmax(scores_RGQK, -1), value.float())
    return out_RGQD.reshape(num_rows, 1, num_heads, width).to(query.dtype), None
