"""The estimate of activation memory against what torch keeps, and the size of passes that follows from it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, PretrainedConfig, Qwen3Config

from tests.support.trainer.samples import sample
from tests.support.trainer.small_models import random_model
from tests.support.trainer.tensor_watch import TensorWatch
from trainer.learning.batch import collate
from trainer.learning.forward.attention import use_packed_attention
from trainer.learning.forward.memory import (
    MIN_PASS_TOKENS,
    ModelWidths,
    activation_budget,
    activation_bytes,
    plan_pass,
    state_bytes,
)
from trainer.learning.forward.recomputation import recompute_layers
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.recipe import model_widths

SIZES = {"vocab_size": 50, "num_hidden_layers": 4, "pad_token_id": 0}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "wide mlp": lambda: Qwen3Config(
        **SIZES, hidden_size=64, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=16
    ),
    "wide attention": lambda: Qwen3Config(
        **SIZES, hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=4, head_dim=32
    ),
    "llama": lambda: LlamaConfig(
        **SIZES, hidden_size=96, intermediate_size=256, num_attention_heads=4, num_key_value_heads=4
    ),
    "gpt2": lambda: GPT2Config(vocab_size=50, n_embd=64, n_layer=4, n_head=4, n_positions=64),
}
WIDTHS = ModelWidths(layers=4, hidden=64, attention=128, mlp=192)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_near_what_a_pass_keeps(name: str, dtype: torch.dtype, recompute: bool) -> None:
    model = random_model(MODELS[name])
    use_packed_attention(model)
    if recompute:
        recompute_layers(model)
    batch = collate([sample(row, 0, [row + 1] * 20, [4] * 12) for row in range(40)])
    with TensorWatch() as seen:
        logprobs_BT = completion_logprobs(PolicyScorer(model, compute_dtype=dtype), batch, 1.0)
    measured = seen.kept_bytes(apart_from=list(model.parameters())) / sum(size.num_tokens for size in batch.sizes)
    assert logprobs_BT.requires_grad
    widths = model_widths(model.config)
    estimated = activation_bytes(widths, dtype_bytes=dtype.itemsize, recompute=recompute)
    if recompute:
        # The layer that is being computed again is counted, and does not exist yet.
        estimated -= activation_bytes(widths, dtype_bytes=dtype.itemsize, recompute=False) // widths.layers
        # What is kept outside of layers weighs more here than in a deep model.
        assert estimated < measured < 3 * estimated
    else:
        assert estimated / 1.5 < measured < 1.5 * estimated


@given(st.integers(1, 1 << 40), st.integers(1, 100_000), st.sampled_from([None, True, False]), st.sampled_from([2, 4]))
def test_a_chosen_pass_fits_or_is_a_single_sequence(
    budget: int, longest: int, recompute: bool | None, dtype_bytes: int
) -> None:
    plan = plan_pass(
        WIDTHS,
        dtype_bytes=dtype_bytes,
        budget_bytes=budget,
        longest=longest,
        device_type="cpu",
        tokens=None,
        recompute=recompute,
    )
    used = plan.tokens * activation_bytes(WIDTHS, dtype_bytes=dtype_bytes, recompute=plan.recompute)
    assert plan.tokens == longest or (plan.tokens > longest and used <= budget)
    assert recompute is None or plan.recompute == recompute
    if recompute is None and plan.recompute:
        plain = activation_bytes(WIDTHS, dtype_bytes=dtype_bytes, recompute=False)
        assert plain * max(longest, MIN_PASS_TOKENS) > budget


def test_a_job_that_names_a_size_gets_it() -> None:
    plan = plan_pass(
        WIDTHS, dtype_bytes=4, budget_bytes=1 << 20, longest=99, device_type="cpu", tokens=10_000, recompute=None
    )
    assert (plan.tokens, plan.recompute) == (10_000, True)


def test_logits_of_all_tokens_count_where_they_are_made() -> None:
    padded = ModelWidths(layers=4, hidden=64, attention=128, mlp=192, logits=150_000)
    more = activation_bytes(padded, dtype_bytes=2, recompute=True) - activation_bytes(
        WIDTHS, dtype_bytes=2, recompute=True
    )
    assert more == 8 * 150_000


def test_a_learner_that_is_not_divided_takes_16_bytes_a_parameter_and_three_rounded_copies() -> None:
    alone: dict[str, Any] = {
        "moments": 2,
        "has_critic": False,
        "has_reference": False,
        "is_rounded": True,
        "num_ranks": 1,
    }
    assert state_bytes(1000, num_trained=1000, is_placed=False, **alone) == 16_000 + 6000
    assert state_bytes(1000, num_trained=1000, is_placed=True, **alone) == 12_000 + 6000
    with_all = alone | {"has_critic": True, "has_reference": True}
    assert state_bytes(1000, num_trained=1000, is_placed=True, **with_all) == 12_000 + 16_000 + 4000 + 6000
    adapters = alone | {"num_ranks": 2, "is_rounded": False}
    assert state_bytes(1000, num_trained=0, is_placed=False, **adapters) == (4000 + 4000) // 2


def test_activations_get_a_share_of_what_is_left_and_nothing_of_what_is_not() -> None:
    assert activation_budget(9 << 30, 3 << 30) == 4 << 30
    assert activation_budget(2 << 30, 3 << 30) == 0
