"""PPO with a critic (Schulman et al., arXiv 1707.06347) and generalised advantage estimation (arXiv 1506.02438).

    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = delta_t + gamma lambda A_{t+1}                               equation 16 of the latter
    R_t     = A_t + V_t                                                    what the critic should have said
    l_t     = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)       A whitened over the step's tokens
    critic  = 1/2 max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2)

V_t is the value of the state before token t; r_t is the sample's reward at its last token, less a KL penalty on each.
*Tool gaps*: tokens that the policy did not sample carry V_{t+1} and A_{t+1} through unchanged (AReaL, verl, NeMo-RL),
so the length of a tool's answer discounts nothing. *Truncation*: a completion that ended by itself has no value after
it; one cut off at the length limit is bootstrapped with the critic's value of the state after its last token, if
`bootstrap_truncated` says so. Beside a final reward that makes an answer without an end worth more than one with, and
that value is never trained itself: right where the limit is no part of the task, ruinous where it is. *Assumption*: V
is computed by the trainer at the step, with the critic that the step starts from: it is as fresh as can be.

Shapes: B rows, T completion columns, U = T + 1 states.
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes, token_rewards, whiten
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def ppo_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """The loss of each token, l above."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, clip)


def ppo_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """The advantage of each token, A above (not whitened without `normalise`), and the critic's targets R."""
    assert outcomes.values_BU is not None
    mask_BT, values_BU = outcomes.mask_BT, outcomes.values_BU.double()
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
    """A_t, BT. Outside the mask it is the advantage that is carried through; rewards and values there are not read.

    `bootstrap_B` is the value after the last token: 0 where the episode ended. Columns after a row's end are gaps.
    """
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
    """What each value costs the critic, BT; `value_clip` is eps_v, None for the plain squared error."""
    error_BT = (values_BT - returns_BT).square()
    if value_clip is not None:
        near_BT = torch.minimum(torch.maximum(values_BT, old_values_BT - value_clip), old_values_BT + value_clip)
        error_BT = torch.maximum(error_BT, (near_BT - returns_BT).square())
    return 0.5 * error_BT
