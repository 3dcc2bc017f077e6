import pytest
import torch

from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.grpo import grpo_advantages, grpo_loss
from trainer.learning.losses.surrogate import Clip


def test_a_group_worked_out_by_hand() -> None:
    given = outcomes([1.0, 0.0, 0.0, 1.0], [[1, 1]] * 4)
    got = grpo_advantages(given, AdvantageSettings()).advantages_BT
    torch.testing.assert_close(
        got, torch.tensor([[1.0] * 2, [-1.0] * 2, [-1.0] * 2, [1.0] * 2]).double(), atol=1e-3, rtol=0
    )
    centred = grpo_advantages(given, AdvantageSettings(normalise=False)).advantages_BT
    assert centred[:, 0].tolist() == [0.5, -0.5, -0.5, 0.5]


def test_a_penalty_in_the_reward_is_taken_off_before_the_group_is_compared() -> None:
    kl_BT = torch.tensor([[0.1, 0.1], [0.0, 0.0]])
    got = grpo_advantages(outcomes([1.0, 1.0], [[1, 1]] * 2, kl_BT=kl_BT), AdvantageSettings(normalise=False))
    assert got.advantages_BT[:, 0].tolist() == pytest.approx([-0.1, 0.1])


def test_the_loss_of_a_token_is_the_clipped_surrogate() -> None:
    logprobs = torch.log(torch.tensor([[1.5, 0.5]]))
    got = grpo_loss(logprobs, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2).bool(), Clip(low=0.2, high=0.28))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-1.28, -0.5]]))
