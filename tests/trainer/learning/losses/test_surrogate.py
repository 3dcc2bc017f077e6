from math import log

import pytest
import torch

from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def losses(ratios: list[float], advantages: list[float], clip: Clip) -> TokenLoss:
    logprobs_BT = torch.tensor([[log(ratio) for ratio in ratios]], dtype=torch.float64)
    advantages_BT = torch.tensor([advantages], dtype=torch.float64)
    return clipped_surrogate(logprobs_BT, torch.zeros_like(logprobs_BT), advantages_BT, logprobs_BT > 9, clip)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # raised enough already: clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # went the wrong way: never clipped
        (0.5, -1.0, 0.8, 0.0),  # lowered enough already: clipped at 0.8
        (1.5, -1.0, 1.5, 1.5),  # went the wrong way: never clipped
    ],
)
def test_the_clipped_objective_worked_out_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logprob_BT = torch.tensor([[log(ratio)]], requires_grad=True)
    got = clipped_surrogate(
        logprob_BT, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1).bool(), Clip(low=0.2, high=0.3)
    )
    (got_gradient,) = torch.autograd.grad(got.loss_BT.sum(), logprob_BT)
    assert float(got.loss_BT.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(got_gradient) == pytest.approx(gradient, rel=1e-5)
    assert bool(got.clipped_BT) == (gradient == 0)
    # The side on which the ratio left the range.
    assert bool(got.clipped_low_BT) == (gradient == 0 and ratio < 1)
    assert bool(got.clipped_high_BT) == (gradient == 0 and ratio > 1)


def test_the_published_dual_clip_of_skyrl() -> None:
    """tests/train/algorithms/test_losses.py of NovaSky-AI/SkyRL: eps 0.2, c 3."""
    old, new = torch.tensor([[-1.0, -1.0, -3.0]]), torch.tensor([[-1.69315, -1.0, -0.69741]])
    advantages = torch.tensor([[1.0, -1.0, -4.0]])
    got = clipped_surrogate(new, old, advantages, old < 0, Clip(low=0.2, high=0.2, dual=3.0))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-0.5, 1.0, 12.0]]), atol=1e-4, rtol=0.0)
    assert got.clipped_BT.tolist() == [[False, False, True]]


def test_the_published_clip_of_nemo_rl() -> None:
    """tests/unit/algorithms/test_loss_functions.py of NVIDIA-NeMo/RL: eps 0.2, mean over tokens -0.6333."""
    new, advantages = torch.tensor([[-1.69315, -1.0, -0.59453]]), torch.tensor([[1.0, -1.0, 2.0]])
    got = clipped_surrogate(new, torch.full((1, 3), -1.0), advantages, new < 0, Clip(low=0.2, high=0.2))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-0.5, 1.0, -2.4]]), atol=1e-4, rtol=0.0)
    assert float(got.loss_BT.mean()) == pytest.approx(-0.6333, abs=1e-4)


def test_the_published_dual_clip_of_slime() -> None:
    """tests/test_policy_loss.py of THUDM/slime: ratios 2, 2, 0.5; c 1.5; eps 0.2."""
    got = losses([2.0, 2.0, 0.5], [2.0, -2.0, 2.0], Clip(low=0.2, high=0.2, dual=1.5))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-2.4, 3.0, -1.0]], dtype=torch.float64))


def test_clip_higher_leaves_more_room_above_than_below() -> None:
    got = losses([1.25, 0.75], [1.0, -1.0], Clip(low=0.2, high=0.28))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-1.25, 0.8]], dtype=torch.float64))


def test_without_bounds_it_is_the_plain_importance_weighted_gradient() -> None:
    got = losses([5.0, 0.1], [1.0, -1.0], Clip(low=None, high=None))
    torch.testing.assert_close(got.loss_BT, torch.tensor([[-5.0, 0.1]], dtype=torch.float64))
    assert not got.clipped_BT.any()


def test_a_side_without_a_bound_is_not_clipped() -> None:
    assert losses([0.01], [-1.0], Clip(low=None, high=0.2)).loss_BT.item() == pytest.approx(0.01)
    assert losses([100.0], [1.0], Clip(low=0.2, high=None)).loss_BT.item() == pytest.approx(-100.0)
