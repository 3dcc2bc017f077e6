import torch

from tests.support.trainer.losses import counts_of, loss_settings
from tests.support.trainer.outcomes import outcomes
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.losses.aggregate import Aggregation
from trainer.learning.losses.dr_grpo import dr_grpo_advantages, dr_grpo_loss
from trainer.learning.losses.objective import policy_loss


def test_rewards_are_only_centred_whatever_the_settings_say() -> None:
    got = dr_grpo_advantages(outcomes([1.0, 0.0, 0.0, 0.0], [[1]] * 4), AdvantageSettings(normalise=True))
    assert got.advantages_BT[:, 0].tolist() == [0.75, -0.25, -0.25, -0.25]


def test_a_token_weighs_the_same_in_a_long_and_in_a_short_answer() -> None:
    mask_BT = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    logprobs_BT = torch.zeros(2, 4, requires_grad=True)
    zero = torch.zeros(2, 4)
    settings = loss_settings(aggregation=Aggregation.CONSTANT, constant_tokens=8)
    loss, _ = policy_loss(
        dr_grpo_loss,
        logprobs_BT,
        proximal_BT=zero,
        behaviour_BT=zero,
        reference_BT=None,
        advantages_BT=zero + 1.0,
        mask_BT=mask_BT,
        counts=counts_of(mask_BT),
        settings=settings,
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    torch.testing.assert_close(gradient, -mask_BT.float() / 16)
