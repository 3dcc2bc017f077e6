import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from periplus.errors import NonFiniteLoss
from trainer.batch import Batch, Sample, collate
from trainer.losses.grpo import GrpoSettings
from trainer.scoring import completion_logprobs
from trainer.step import StepSettings, train_step

SETTINGS = StepSettings(loss=GrpoSettings(), decoupled=True, temperature=1.0, max_grad_norm=1.0, micro_batch_rows=100)


def make_batch(model: Any, completions: Sequence[tuple[int, ...]] = ((5, 6, 2), (7, 2), (8, 9, 10), (11, 2))) -> Batch:
    samples = [
        Sample(
            group=row // 2, sample=row % 2, prompt_ids=(3, 4), completion_ids=tokens,
            behaviour_logprobs=(0.0,) * len(tokens), mask=(1,) * len(tokens), reward=0.0,
        )
        for row, tokens in enumerate(completions)
    ]  # fmt: skip
    batch = collate(samples, 0)
    with torch.no_grad():
        return dataclasses.replace(batch, behaviour_logprobs_BT=completion_logprobs(model, batch, 1.0))


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1)


ADVANTAGES = (1.0, -1.0, 0.5, -0.5)


def test_a_step_makes_good_samples_likelier_and_bad_ones_less(model: Any) -> None:
    batch, optimizer = make_batch(model), adam(model)
    for _ in range(10):
        report = train_step(model, optimizer, batch, ADVANTAGES, SETTINGS, learning_rate=1e-2)
    with torch.no_grad():
        change_BT = (completion_logprobs(model, batch, 1.0) - batch.behaviour_logprobs_BT) * batch.mask_BT
    change_B = change_BT.sum(1)
    assert change_B[0] > 0 > change_B[1]
    assert report.num_tokens == 10


def test_an_on_policy_step_reports_a_ratio_of_one(model: Any) -> None:
    report = train_step(model, adam(model), make_batch(model), ADVANTAGES, SETTINGS, learning_rate=0.0)
    assert report.mean_ratio == pytest.approx(1.0, abs=1e-5)
    assert report.approx_kl == pytest.approx(0.0, abs=1e-5)
    assert report.clip_fraction == 0.0


@pytest.mark.parametrize("decoupled", [True, False])
def test_micro_batches_do_not_change_the_step(model: Any, decoupled: bool) -> None:
    batch, start = make_batch(model), {k: v.clone() for k, v in model.state_dict().items()}
    results = []
    for rows in (100, 3, 1):
        model.load_state_dict(start)
        settings = dataclasses.replace(SETTINGS, micro_batch_rows=rows, decoupled=decoupled)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        report = train_step(model, optimizer, batch, ADVANTAGES, settings, learning_rate=0.1)
        results.append((weights(model), report.loss, report.grad_norm))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-6, rtol=1e-4)


def test_a_learning_rate_of_zero_leaves_every_weight_as_it_is(model: Any) -> None:
    before = weights(model)
    train_step(model, adam(model), make_batch(model), ADVANTAGES, SETTINGS, learning_rate=0.0)
    assert all(map(torch.equal, before, weights(model)))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_weights_and_optimizer_untouched(model: Any, poison: float) -> None:
    batch, optimizer = make_batch(model), adam(model)
    train_step(model, optimizer, batch, ADVANTAGES, SETTINGS, learning_rate=1e-3)
    before, steps = weights(model), [state["step"].item() for state in optimizer.state.values()]
    with pytest.raises(NonFiniteLoss, match="not applied"):
        train_step(model, optimizer, batch, (poison, 0.0, 0.0, 0.0), SETTINGS, learning_rate=1e-3)
    assert all(map(torch.equal, before, weights(model)))
    assert [state["step"].item() for state in optimizer.state.values()] == steps
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_gradient_is_clipped_and_its_norm_before_that_is_reported(model: Any) -> None:
    settings = dataclasses.replace(SETTINGS, max_grad_norm=1e-3)
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    report = train_step(model, optimizer, make_batch(model), ADVANTAGES, settings, learning_rate=1.0)
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(model), strict=True)]).norm()
    assert report.grad_norm > 1e-2
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_advantages_that_do_not_match_the_rows_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="advantages"):
        train_step(model, adam(model), make_batch(model), (1.0,), SETTINGS, learning_rate=0.0)


def test_a_token_outside_the_mask_gives_no_gradient(model: Any) -> None:
    """Its log-probability alone differs between the two batches, and the rest is trained the same."""
    batch, start = make_batch(model), {k: v.clone() for k, v in model.state_dict().items()}
    mask_BT = batch.mask_BT.clone()
    mask_BT[0, 2] = False
    results = []
    for last_id in (2, 15):
        model.load_state_dict(start)
        ids_BS = batch.input_ids_BS.clone()
        ids_BS[0, -1] = last_id
        masked = dataclasses.replace(batch, mask_BT=mask_BT, input_ids_BS=ids_BS)
        report = train_step(model, adam(model), masked, ADVANTAGES, SETTINGS, learning_rate=1e-2)
        assert report.num_tokens == 9
        results.append((weights(model), report.loss, report.grad_norm))
    torch.testing.assert_close(results[0], results[1], rtol=0.0, atol=0.0)
