"""M2PO: second-moment trust policy optimisation (Zheng et al., arXiv 2510.01161).

    x_it = log pi_theta - log pi_b                                         pi_b is the policy that sampled the token
    C    = the tokens with A_it > 0 and x_it > 0, or A_it < 0 and x_it < 0
    M2   = mean of x_it^2 over C, without the masked tokens                the second moment, in nats squared
    m_it = 0 for the fewest tokens of C, largest x_it^2 first, with which M2 <= m2_threshold;  1 for all other tokens
    l_it = -m_it (pi_theta / pi_b) A_it                                    the ratio is not clipped
    L    = 1 / sum_i n_i  sum_i sum_t l_it                                 masked tokens count in the mean

The advantages are GRPO's. C holds the tokens whose gradient moves the ratio further from 1. Only these can be clipped
in other algorithms, too. The paper's threshold is 0.04 in all experiments. Unlike a clip, the mask keeps a token with a
high ratio for as long as the batch as a whole is near the policy that sampled it.

*Decisions*, where the paper leaves room:
- M2 is the mean over C, as in the authors' code. The paper writes a mean over all tokens; but tokens outside C cannot
  be masked, so with stale samples no mask might reach the threshold. With C, some mask always does.
- A masked token leaves the mean. (The authors' code counts it with the largest x^2 of the tokens that remain.)
- Tokens with equal x^2 are masked together, so the mask does not depend on the order of the rows.
- The mask is that of the whole update, over all micro-batches and ranks, with the weights before the update. The
  learner scores the update's rows without gradient for it. (The authors' code has a mask for each micro-batch.)

*Deviation*: pi_theta / pi_b is the product of pi_theta / pi_prox, which `m2po_loss` has, and of the importance weight
pi_prox / pi_b. The job bounds the weight, by default at 100.

Shapes: B rows (samples), T completion columns.
"""

import torch

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes
from trainer.learning.losses.grpo import grpo_advantages
from trainer.learning.losses.surrogate import Clip, TokenLoss, clipped_surrogate


def m2po_loss(
    logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, advantages_BT: torch.Tensor, mask_BT: torch.Tensor, clip: Clip
) -> TokenLoss:
    """Return the loss of each token before any is masked, BT: -A_it pi_theta / pi_prox. `clip` is not read."""
    return clipped_surrogate(logprobs_BT, proximal_BT, advantages_BT, mask_BT, Clip(low=None, high=None))


def m2po_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Return GRPO's advantages, which M2PO uses unchanged."""
    return grpo_advantages(outcomes, settings)


def outside_trust_region(
    logprobs_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    m2_threshold: float,
) -> torch.Tensor:
    """Return where m_it of the module's formula is 0, BT, bool. The tensors hold all rows of an optimizer update.

    `m2_threshold` is in nats squared. Padding may hold anything. Nothing is read from the tensors' device.
    """
    log_ratio_BT = (logprobs_BT.detach() - behaviour_BT).masked_fill(~mask_BT, 0.0).double()
    concerned_BT = log_ratio_BT.sign() * advantages_BT.masked_fill(~mask_BT, 0.0).sign() > 0
    # The squares of C in ascending order, and infinity for each token outside C, with one more at the end: B T + 1.
    squares_BT = (log_ratio_BT**2).masked_fill(~concerned_BT, torch.inf)
    ascending = torch.nn.functional.pad(squares_BT.flatten().sort().values, (0, 1), value=torch.inf)
    # The k-th mean is M2 if the k smallest squares are kept. The means ascend, so the first ones are in the threshold.
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=ascending.device)
    num_kept = (means <= m2_threshold).sum()
    # Mask the first square that does not fit, and all that are not smaller.
    return concerned_BT & (squares_BT >= ascending.index_select(0, num_kept[None]))
