"""One update's gradient, on the small model of conftest.py."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from periplus.errors import NonFiniteLoss
from tests.support.trainer.losses import loss_settings
from tests.support.trainer.samples import sample
from trainer.learning.batch import Batch, collate
from trainer.learning.critic import Critic
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.losses.aggregate import StepCounts
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.learning.ranks import Ranks
from trainer.learning.scoring import completion_logprobs
from trainer.learning.step import (
    Targets,
    Trained,
    UpdateSettings,
    actor_gradient,
    apply,
    counts_of,
    critic_gradient,
)

COMPLETIONS = ((5, 6, 2), (7, 2), (8, 9, 10), (11, 2))
ROWS = range(4)


def make_batch() -> Batch:
    return collate([sample(row // 2, row % 2, (3, 4), ids) for row, ids in enumerate(COMPLETIONS)])


def targets_of(batch: Batch, advantages: tuple[float, ...] = (1.0, -1.0, 0.5, -0.5)) -> Targets:
    values_BU = torch.zeros(4, batch.mask_BT.shape[1] + 1)
    return Targets(
        advantages_BT=torch.tensor(advantages)[:, None].expand(batch.mask_BT.shape),
        proximal_BT=None,
        reference_BT=None,
        values_BU=values_BU,
        returns_BT=values_BU[:, 1:] + 1.0,
    )


def settings(**changes: Any) -> UpdateSettings:
    values: dict[str, Any] = {
        "token_loss": ALGORITHMS["grpo"].token_loss,
        "loss": loss_settings(),
        "value_clip": None,
        "temperature": 1.0,
        "max_grad_norm": 1e9,
        "micro_batch": MicroBatchLimits(rows=100, tokens=1000),
    }
    return UpdateSettings(**values | changes)


def trained(model: Any) -> Trained:
    scorer = PolicyScorer(model) if isinstance(model, PreTrainedModel) else model
    return Trained(model=scorer, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))


def ignore(rows: object, logprobs_BT: torch.Tensor) -> None:
    """Do nothing with the log-probabilities of the rows."""


def gradients(model: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_an_update_counts_its_own_rows_and_only_what_the_loss_sees() -> None:
    batch = collate([sample(0, 0, [1], [2, 3, 4], mask=[1, 0, 1]), sample(1, 0, [1], [2])])
    assert counts_of(batch, [0]) == StepCounts(num_tokens=2, num_sequences=1)
    assert counts_of(batch, [0, 1]) == StepCounts(num_tokens=3, num_sequences=2)


@pytest.mark.parametrize("rows", [3, 1])
def test_micro_batches_change_neither_the_actors_nor_the_critics_gradient(model: Any, rows: int) -> None:
    batch = make_batch()
    actor, critic, targets = trained(model), trained(Critic(model)), targets_of(batch)
    results = []
    for size in (100, rows):
        at = settings(micro_batch=MicroBatchLimits(rows=size, tokens=1000))
        gradient, sums, _ = actor_gradient(actor, batch, targets, ROWS, at, Ranks(), ignore)
        value_gradient = critic_gradient(critic, batch, targets, ROWS, at, Ranks())
        values = [gradient.loss, gradient.norm, value_gradient.loss, value_gradient.norm, sums.ratio, sums.weight]
        results.append((values, gradients(model) + gradients(critic.model)[-2:]))
    (whole, whole_gradients), (parts, part_gradients) = results
    assert parts == pytest.approx(whole, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(part_gradients, whole_gradients, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_clipped_and_its_norm_before_that_is_reported(model: Any) -> None:
    batch = make_batch()
    gradient, _, _ = actor_gradient(
        trained(model), batch, targets_of(batch), ROWS, settings(max_grad_norm=1e-3), Ranks(), ignore
    )
    assert gradient.norm > 1e-2
    assert float(torch.cat([g.flatten() for g in gradients(model)]).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_each_row_is_told_with_the_log_probabilities_it_had(model: Any) -> None:
    batch = make_batch()
    told: dict[int, torch.Tensor] = {}

    def seen(index_B: torch.Tensor, logprobs_BT: torch.Tensor) -> None:
        told.update(zip(index_B.tolist(), logprobs_BT, strict=True))

    actor_gradient(
        trained(model),
        batch,
        targets_of(batch),
        [2, 0, 3],
        settings(micro_batch=MicroBatchLimits(rows=2, tokens=1000)),
        Ranks(),
        seen,
    )
    assert sorted(told) == [0, 2, 3]
    with torch.no_grad():
        expected_BT = completion_logprobs(PolicyScorer(model), batch, 1.0)
    torch.testing.assert_close(told[2][:3], expected_BT[2, :3], rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_is_an_error_that_says_so(model: Any) -> None:
    batch = make_batch()
    with pytest.raises(NonFiniteLoss, match=r"policy loss nan.* not applied"):
        actor_gradient(
            trained(model), batch, targets_of(batch, (float("nan"), 0.0, 0.0, 0.0)), ROWS, settings(), Ranks(), ignore
        )


def test_a_prepared_gradient_is_applied_at_the_rate_asked_for(model: Any) -> None:
    batch, actor = make_batch(), trained(model)
    actor_gradient(actor, batch, targets_of(batch), ROWS, settings(), Ranks(), ignore)
    before, step = [parameter.detach().clone() for parameter in model.parameters()], gradients(model)
    apply(actor, 0.25)
    for parameter, old, gradient in zip(model.parameters(), before, step, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.25 * gradient)
        assert parameter.grad is None
