"""Activation checkpointing: the same results from less memory, also over rounded weights and for copies of a model."""

import copy
from typing import Any

import pytest
import torch

from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER
from tests.support.trainer.small_models import PACKED, PADDED, random_model
from tests.support.trainer.tensor_watch import TensorWatch
from trainer.learning.batch import Batch, collate
from trainer.learning.forward.attention import use_packed_attention
from trainer.learning.forward.recomputation import is_recomputed, recompute_layers
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.recipe import build_learner

MODELS = PACKED | PADDED


def pass_of(model: Any, batch: Batch, dtype: torch.dtype | None) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Return log-probabilities, gradients, and the bytes that are kept for the backward pass beside the weights."""
    model.zero_grad()
    with TensorWatch() as seen:
        logprobs_BT = completion_logprobs(PolicyScorer(model, compute_dtype=dtype), batch, 1.0)
    kept_bytes = seen.kept_bytes(apart_from=list(model.parameters()))
    (logprobs_BT * batch.mask_BT).sum().backward()  # type: ignore[no-untyped-call]
    return logprobs_BT.detach(), [parameter.grad.clone() for parameter in model.parameters()], kept_bytes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_results_are_the_same_bit_for_bit_and_less_is_kept(name: str, dtype: torch.dtype | None) -> None:
    model = random_model(MODELS[name])
    use_packed_attention(model)
    batch = collate(sampled(model, 0, num_groups=8, width=12))
    logprobs_BT, gradients, kept_bytes = pass_of(model, batch, dtype)
    assert not is_recomputed(model)
    assert recompute_layers(model) == 2
    assert is_recomputed(model)
    again_BT, again, fewer_bytes = pass_of(model, batch, dtype)
    assert torch.equal(again_BT, logprobs_BT)
    assert all(map(torch.equal, again, gradients))
    assert fewer_bytes < 0.5 * kept_bytes


def test_a_copy_recomputes_with_its_own_weights(model: Any) -> None:
    recompute_layers(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    batch = collate(sampled(twin, 0))
    _, gradients, _ = pass_of(twin, batch, torch.bfloat16)
    assert is_recomputed(twin)
    assert any(bool(gradient.any()) for gradient in gradients)
    assert not any(bool(parameter.any()) for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_step_is_the_same_with_and_without(model: Any, dtype: str) -> None:
    results = []
    for choice in ("off", "on"):
        actor = copy.deepcopy(model)
        job = make_job(
            algorithm={"name": "ppo", "kl_coefficient": 0.1}, train={"activation_checkpointing": choice, "dtype": dtype}
        )
        learner = build_learner(job, actor)
        report = learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=1e-2)
        assert is_recomputed(actor) == (choice == "on")
        results.append((report, [parameter.detach() for parameter in actor.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))
