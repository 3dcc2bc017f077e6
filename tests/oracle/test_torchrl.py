"""Our generalised advantage estimate against torchrl's, whose discounts are float32 whatever goes in."""

import pytest
import torch
from torchrl.objectives.value.functional import generalized_advantage_estimate

from trainer.learning.losses.ppo import gae


def theirs(
    rewards_T: torch.Tensor, values_U: torch.Tensor, gamma: float, gae_lambda: float, *, truncated: bool
) -> torch.Tensor:
    """torchrl's advantage of one episode that is done at its last step, and terminated unless truncated."""
    done_T = torch.zeros(len(rewards_T), dtype=torch.bool)
    done_T[-1] = True
    columns = (values_U[:-1], values_U[1:], rewards_T, done_T, done_T & (not truncated))
    advantages_T1: torch.Tensor
    advantages_T1, _ = generalized_advantage_estimate(gamma, gae_lambda, *(column[:, None] for column in columns))
    return advantages_T1[:, 0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("truncated", [False, True])
def test_advantages_are_torchrls_and_a_gap_is_as_if_it_were_not_there(seed: int, truncated: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards_T, values_T = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    after = torch.randn(1, generator=generator, dtype=torch.float64)
    mask_T = torch.rand(12, generator=generator) < 0.6
    mask_T[0] = True
    gamma, gae_lambda = (0.8 + 0.2 * torch.rand(2, generator=generator)).tolist()
    got_BT = gae(
        rewards_T[None], values_T[None], mask_T[None], bootstrap_B=after * truncated, gamma=gamma, gae_lambda=gae_lambda
    )
    expected = theirs(rewards_T[mask_T], torch.cat([values_T[mask_T], after]), gamma, gae_lambda, truncated=truncated)
    torch.testing.assert_close(got_BT[0, mask_T], expected, rtol=1e-6, atol=1e-6)
