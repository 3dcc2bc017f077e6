from math import log

import pytest
import torch

from trainer.learning.losses.gspo import gspo_loss
from trainer.learning.losses.surrogate import Clip, TokenLoss

MASK = torch.tensor([[True, True, False]])


def losses(ratios: list[float], advantage: float, clip: Clip) -> TokenLoss:
    logprobs_BT = torch.tensor([[log(ratio) for ratio in ratios]], dtype=torch.float64)
    return gspo_loss(logprobs_BT, torch.zeros_like(logprobs_BT), torch.full((1, 3), advantage).double(), MASK, clip)


def test_the_ratio_is_the_geometric_mean_over_the_sampled_tokens() -> None:
    got = losses([2.0, 0.5, 99.0], 1.0, Clip(low=0.2, high=0.2))
    assert got.loss_BT[0].tolist() == pytest.approx([-1.0] * 3)
    assert losses([1.1, 1.3, 99.0], 1.0, Clip(low=0.5, high=0.5)).loss_BT[0, 0].item() == pytest.approx(-(1.43**0.5))


def test_a_whole_sequence_is_clipped_or_none_of_it() -> None:
    got = losses([1.5, 1.2, 1.0], 2.0, Clip(low=3e-4, high=4e-4))
    assert got.loss_BT[0].tolist() == pytest.approx([-2 * 1.0004] * 3)
    assert got.clipped_BT.all()
    assert not losses([1.5, 1.2, 1.0], -2.0, Clip(low=3e-4, high=4e-4)).clipped_BT.any()


def test_a_token_outside_the_mask_changes_no_ratio() -> None:
    assert torch.equal(
        losses([1.5, 1.2, 1.0], 1.0, Clip(low=0.2, high=0.2)).loss_BT[:, :2],
        losses([1.5, 1.2, 7.0], 1.0, Clip(low=0.2, high=0.2)).loss_BT[:, :2],
    )
