"""PPO with a critic (Schulman et al., arXiv 1707.06347) and generalised advantage estimation (arXiv 1506.02438).

    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = delta_t + gamma lambda A_{t+1}                               equation 16 of the latter
    R_t     = A_t + V_t                                                    target of the critic
    l_t     = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)       A whitened over the step's tokens
    critic  = 1/2 max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2)

V_t is the critic's value of the state before token t. r_t is the sample's reward at its last token and 0 at others,
minus a KL penalty at each token. A is whitened over the tokens of the step before it enters the loss.

*Tool gaps*: tokens that the policy did not sample pass V_{t+1} and A_{t+1} on unchanged (as in AReaL, verl and
NeMo-RL). So the length of a tool's answer discounts nothing.

*Truncation*: the value after a completion that ended by itself is 0. With `bootstrap_truncated`, the value after a
truncated completion is the critic's value of the state after its last token. Together with a final reward this makes an
answer without an end worth more than one with an end, and no reward ever corrects that value. It is right where the
length limit is not part of the task, and ruins training where it is (docs/design/0004-losses.md).

*Assumption*: the trainer computes V at the step, with the critic at the start of the step, so V is never stale.

Shapes: B rows (samples), T completion columns, U = T + 1 states (before each completion token, and after the last).
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes, token_rewards, whiten
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def ppo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token, BT: l_it of the module's formula."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def ppo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return the advantage of each token and the critic's targets R, both BT, by the module's formulas.

    Without `normalise` the advantages are not whitened.
    """
    assert outcomes.values_BU is not None
    mask_BT, values_BU = outcomes.mask_BT, outcomes.values_BU.double()
    # The value of the state after each row's last token, which counts only for truncated rows and if the job says so.
    after_B = values_BU.gather(1, outcomes.lengths_B[:, None])[:, 0]
    goes_on_B = outcomes.truncated_B & settings.bootstrap_truncated
    advantages_BT = gae(
        token_rewards(outcomes),
        values_BU[:, :-1],
        mask_BT,
        bootstrap_B=torch.where(goes_on_B, after_B, torch.zeros_like(after_B)),
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
    )
    return Advantages(
        advantages_BT=whiten(advantages_BT, mask_BT) if settings.normalise else advantages_BT,
        returns_BT=advantages_BT + values_BU[:, :-1],
    )


def gae(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    bootstrap_B: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Return generalised advantage estimates, BT: A_t of the module's formula.

    `values_BT` are the values before each token. `bootstrap_B` is the value after the last token, 0 where the episode
    ended. A column outside the mask has the advantage of the next sampled token; rewards and values there are ignored.
    Columns after the end of a row count as outside the mask.
    """
    # Go backwards through the columns and carry V_{t+1} and A_{t+1} along, unchanged where the mask is false.
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B, next_advantage_B = bootstrap_B, torch.zeros_like(bootstrap_B)
    for t in reversed(range(rewards_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        sampled_B = mask_BT[:, t]
        next_advantage_B = torch.where(sampled_B, delta_B + gamma * gae_lambda * next_advantage_B, next_advantage_B)
        next_value_B = torch.where(sampled_B, values_BT[:, t], next_value_B)
        advantages_BT[:, t] = next_advantage_B
    return advantages_BT


def value_loss(
    values_BT: torch.Tensor, old_values_BT: torch.Tensor, returns_BT: torch.Tensor, *, value_clip: float | None
) -> torch.Tensor:
    """Return the critic's loss of each value, BT: the clipped squared error of the module's formula.

    `old_values_BT` are the values at the start of the step. `value_clip` is eps_v; None gives the plain squared error.
    """
    error_BT = (values_BT - returns_BT).square()
    if value_clip is not None:
        near_BT = torch.minimum(torch.maximum(values_BT, old_values_BT - value_clip), old_values_BT + value_clip)
        error_BT = torch.maximum(error_BT, (near_BT - returns_BT).square())
    return 0.5 * error_BT
