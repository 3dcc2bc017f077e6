"""Figures of each sample of a training step, for people who look at single samples (periplus/job/samples/).

A kept frame has a sample's tokens, its reward and the engine's log-probabilities. What only the trainer knows is
computed here, after the step's updates: the reward that was trained on, the advantage, and how far the trainer's
log-probabilities at the start of the step are from the engine's. Each is one number for each sample, so that a step
adds a few tens of bytes for each sample, and the device is read once.

Shapes: B rows (samples), T completion columns.
"""

from typing import NamedTuple

import torch

from trainer.learning.batch import Batch, reward_of


class SampleFigures(NamedTuple):
    """Figures of one sample of a training step.

    - `reward`: the reward that was trained on.
    - `advantage`: the mean advantage of the tokens that the loss sees. Most algorithms give all tokens of a sample the
      same one; PPO does not.
    - `difference_mean`, `difference_max`: of |log pi_trainer - log pi_engine| in nats over the same tokens, with the
      weights at the start of the step.

    The last three are 0 for a sample of which the loss sees no token. A sample without a reward is none that it sees.
    """

    group: int
    sample: int
    reward: float | None
    advantage: float
    difference_mean: float
    difference_max: float


def figures_of_samples(
    batch: Batch, advantages_BT: torch.Tensor, at_start_BT: torch.Tensor
) -> tuple[SampleFigures, ...]:
    """Return the figures of all samples of a batch, in its order.

    `at_start_BT` are the trainer's log-probabilities under the weights at the start of the step. Values outside of the
    batch's mask may be anything.
    """
    hidden_BT = ~batch.mask_BT
    advantages_BT = advantages_BT.masked_fill(hidden_BT, 0.0).double()
    differences_BT = (at_start_BT - batch.behaviour_logprobs_BT).masked_fill(hidden_BT, 0.0).double().abs()
    num_tokens_B = batch.mask_BT.sum(1).clamp(min=1).double()
    means = (advantages_BT.sum(1) / num_tokens_B, differences_BT.sum(1) / num_tokens_B, differences_BT.amax(1))
    # One transfer for all figures.
    found = zip(*torch.stack(means).tolist(), strict=True)
    return tuple(
        SampleFigures(sample.group, sample.sample, reward_of(sample), *values)
        for sample, values in zip(batch.samples, found, strict=True)
    )
