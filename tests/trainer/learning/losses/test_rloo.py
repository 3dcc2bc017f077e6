import pytest
import torch

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.rloo import rloo_advantages, rloo_loss
from trainer.learning.losses.surrogate import Clip


def test_the_baseline_is_the_mean_of_the_others_after_the_penalty() -> None:
    kl_BT = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, -1.0]])
    got = rloo_advantages(outcomes([6.0, 3.0, 3.0], [[1, 1]] * 3, kl_BT=kl_BT), AdvantageSettings())
    assert got.advantages_BT[:, 0].tolist() == pytest.approx([2.0, -1.0, -1.0])


def test_a_single_sample_teaches_nothing() -> None:
    assert not rloo_advantages(outcomes([5.0], [[1, 1]]), AdvantageSettings()).advantages_BT.any()


def test_without_a_clip_the_gradient_at_the_steps_start_is_that_of_reinforce() -> None:
    logprobs_BT = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    got = rloo_loss(
        logprobs_BT, logprobs_BT.detach(), torch.full((1, 2), 3.0), torch.ones(1, 2).bool(), Clip(low=None, high=None)
    )
    (gradient,) = torch.autograd.grad(got.loss_BT.sum(), logprobs_BT)
    assert gradient.tolist() == [[-3.0, -3.0]]
