from math import log

import pytest
import torch

from tests.support.trainer.losses import counts_of, loss_settings, random_step
from trainer.learning.losses.cispo import cispo_loss
from trainer.learning.losses.objective import policy_loss
from trainer.learning.losses.surrogate import Clip


def test_the_published_sum_of_skyrl() -> None:
    """tests/train/algorithms/test_losses.py of NovaSky-AI/SkyRL: the dual-clip inputs, weights within 0.8 and 1.2."""
    old, new = torch.tensor([[-1.0, -1.0, -3.0]]), torch.tensor([[-1.69315, -1.0, -0.69741]])
    got = cispo_loss(new, old, torch.tensor([[1.0, -1.0, -4.0]]), old < 0, Clip(low=0.2, high=0.2))
    assert float(got.loss_BT.sum()) == pytest.approx(-2.9930, abs=1e-3)


@pytest.mark.parametrize(("ratio", "weight"), [(0.01, 0.01), (3.0, 3.0), (9.0, 5.0)])
def test_a_clipped_weight_keeps_its_gradient(ratio: float, weight: float) -> None:
    logprobs_BT = torch.tensor([[log(ratio)]], requires_grad=True)
    got = cispo_loss(
        logprobs_BT, torch.zeros(1, 1), torch.full((1, 1), 2.0), torch.ones(1, 1).bool(), Clip(low=1.0, high=4.0)
    )
    (gradient,) = torch.autograd.grad(got.loss_BT.sum(), logprobs_BT)
    assert float(gradient) == pytest.approx(-2.0 * weight, rel=1e-5)
    assert bool(got.clipped_BT) == bool(got.clipped_high_BT) == (ratio > 5)


def test_the_gradient_is_that_of_the_weighted_log_probability_by_finite_differences() -> None:
    """The weight is that of the point where the gradient is taken."""
    step = random_step(5, dtype=torch.float64)
    clip = Clip(low=0.2, high=0.3)
    fixed = torch.exp(step["logprobs_BT"] - step["proximal_BT"]).clamp(0.8, 1.3)
    importance = torch.exp(step["proximal_BT"] - step["behaviour_BT"]).clamp(max=2.0)

    def surrogate(logprobs_BT: torch.Tensor) -> torch.Tensor:
        values_BT = -importance * fixed * step["advantages_BT"] * logprobs_BT
        return values_BT.masked_fill(~step["mask_BT"], 0.0).sum() / step["mask_BT"].sum()

    point = step["logprobs_BT"].clone().requires_grad_()
    assert torch.autograd.gradcheck(surrogate, point)
    loss, _ = policy_loss(
        cispo_loss,
        point,
        counts=counts_of(step["mask_BT"]),
        settings=loss_settings(clip=clip),
        **{name: value for name, value in step.items() if name != "logprobs_BT"},
    )
    torch.testing.assert_close(torch.autograd.grad(loss, point), torch.autograd.grad(surrogate(point), point))
