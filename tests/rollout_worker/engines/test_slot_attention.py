"""Attention of a step of decoding, beside the formula in float64."""

import math
from typing import Any

import pytest
import torch

from rollout_worker.engines.slot_attention import SLOTS, slot_attention, use_slot_attention
from tests.support.engines.models import gpt2, llama, qwen3

ROWS, HEADS, COLUMNS, WIDTH = 5, 6, 11, 8


def inputs(kv_heads: int, dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(3)
    mask_RK = torch.zeros(ROWS, COLUMNS)
    for row in range(ROWS):
        mask_RK[row, row + 4 :] = -torch.inf
    return {
        "query": torch.randn(ROWS, HEADS, 1, WIDTH).to(dtype),
        "key": torch.randn(ROWS, kv_heads, COLUMNS, WIDTH).to(dtype),
        "value": torch.randn(ROWS, kv_heads, COLUMNS, WIDTH).to(dtype),
        "attention_mask": mask_RK[:, None, None, :].to(dtype),
    }


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_it_is_a_softmax_over_the_columns_that_the_mask_shows(kv_heads: int, scaling: float | None) -> None:
    given = inputs(kv_heads, torch.float32)
    found, _ = slot_attention(torch.nn.Module(), **given, scaling=scaling)
    assert found.shape == (ROWS, 1, HEADS, WIDTH)
    scale = 1 / math.sqrt(WIDTH) if scaling is None else scaling
    for row in range(ROWS):
        for head in range(HEADS):
            # Heads of queries that follow each other share a head of keys.
            shared = head // (HEADS // kv_heads)
            keys, values = (given[name][row, shared, : row + 4].double() for name in ("key", "value"))
            weights = torch.softmax(scale * keys @ given["query"][row, head, 0].double(), 0)
            torch.testing.assert_close(found[row, 0, head].double(), weights @ values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_in_bfloat16_only_the_result_is_rounded(kv_heads: int) -> None:
    given = inputs(kv_heads, torch.bfloat16)
    found, _ = slot_attention(torch.nn.Module(), **given)
    exact, _ = slot_attention(torch.nn.Module(), **{name: tensor.float() for name, tensor in given.items()})
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=2**-8, atol=1e-6)


def test_in_bfloat16_a_row_has_the_same_bits_whatever_the_others_are() -> None:
    given = inputs(2, torch.bfloat16)
    found, _ = slot_attention(torch.nn.Module(), **given)
    given |= {name: torch.cat([given[name][2:3], torch.randn(given[name][1:].shape).bfloat16()]) for name in given}
    others, _ = slot_attention(torch.nn.Module(), **given)
    assert torch.equal(others[0], found[2])


@pytest.mark.parametrize(
    "options", [{}, {"softcap": None, "sliding_window": None}], ids=["prefill", "with options of no effect"]
)
def test_several_queries_a_row_are_answered_as_by_transformers(options: dict[str, Any]) -> None:
    given = inputs(2, torch.float32) | {"query": torch.randn(ROWS, HEADS, COLUMNS, WIDTH), "attention_mask": None}
    module: Any = torch.nn.Module()
    module.num_key_value_groups = HEADS // 2
    found, _ = slot_attention(module, **given, **options)
    expected = torch.nn.functional.scaled_dot_product_attention(
        given["query"], given["key"], given["value"], is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(found, expected.transpose(1, 2))


@pytest.mark.parametrize("build", [qwen3, llama, gpt2])
def test_models_on_a_cpu_take_it_and_compute_what_they_did(build: Any) -> None:
    plain, changed = build(), build()
    assert use_slot_attention(changed)
    assert changed.config._attn_implementation == SLOTS
    ids = torch.arange(3, 15)[None]
    torch.testing.assert_close(changed(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_a_model_with_an_attention_of_its_own_choice_keeps_it() -> None:
    model = qwen3()
    model.config._attn_implementation = "eager"
    assert not use_slot_attention(model)
    assert model.config._attn_implementation == "eager"
