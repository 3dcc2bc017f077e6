"""Measures how far the engine's log-probabilities are from the trainer's, to detect engines with wrong weights.

Trainer and engine compute the log-probability of the same tokens. What a difference means depends on which policy
sampled, so samples are divided into three kinds:

    current   The whole sample is from the policy at the start of the step. The difference is arithmetic: float32
              weights in the trainer against published bfloat16, and other kernels. A larger one is a fault, such as
              other weights than claimed, another temperature or a wrong mask. Only this kind raises the alarm.
    stale     The whole sample is from one older policy. The difference also shows how far the policy moved.
    mixed     Several policies generated the sample. The difference also shows how outdated the cached keys and values
              were after weights were swapped during generation.

For each kind the result has the mean and the maximum of |log pi_trainer - log pi_engine|, and the mean of k3 = x - 1 -
log x with x = pi_trainer / pi_engine, which estimates KL(engine || trainer). All are in nats, over the tokens that the
loss sees. k3 is bounded for each token (losses/log_ratio.py), so that it is finite whatever an engine claims. All
figures are computed on the tensors' device, and read from there at once. The functions are pure.

Shapes: B rows, T completion columns, J kinds of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from trainer.learning.losses.log_ratio import bounded_k3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Difference of log-probabilities in nats over `num_tokens` tokens; all fields are 0 if there are none.

    `mean` and `max` are of the absolute difference. `kl` is the mean of k3.
    """

    num_tokens: int = 0
    mean: float = 0.0
    max: float = 0.0
    kl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReport:
    """The mismatch of each kind of sample. `alarm` is the mean of `current` if it is above the threshold, else None."""

    current: Mismatch
    stale: Mismatch
    mixed: Mismatch
    alarm: float | None


def measure_mismatch(
    trainer_logprobs_BT: torch.Tensor,
    engine_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    policies: Sequence[tuple[PolicyRun, ...]],
    *,
    consumer: Policy,
    threshold: float | None,
) -> MismatchReport:
    """Compare the log-probabilities of all tokens of a training step.

    `trainer_logprobs_BT` are those under the weights at the start of the step. `policies` holds the policy runs of each
    row. `consumer` is the policy at the start of the step. `threshold` is in nats; None disables the alarm.
    """
    # Every row is of one kind: current, mixed, or else stale.
    current = [tuple(run.policy for run in runs) == (consumer,) for runs in policies]
    mixed = [len(runs) > 1 for runs in policies]
    stale = [not (a or b) for a, b in zip(current, mixed, strict=True)]
    kinds_JB = torch.tensor([current, stale, mixed], device=mask_BT.device)
    found = _measured(trainer_logprobs_BT, engine_logprobs_BT, mask_BT, kinds_JB)
    alarmed = threshold is not None and found[0].mean > threshold
    return MismatchReport(current=found[0], stale=found[1], mixed=found[2], alarm=found[0].mean if alarmed else None)


def _measured(
    trainer_BT: torch.Tensor, engine_BT: torch.Tensor, mask_BT: torch.Tensor, kinds_JB: torch.Tensor
) -> list[Mismatch]:
    # Padding may hold anything, NaN included. Outside the mask the difference is 0, and so are its k3 and its share.
    difference_BT = (trainer_BT - engine_BT).masked_fill(~mask_BT, 0.0).double()
    sizes_BT, kl_BT = difference_BT.abs(), bounded_k3(difference_BT)
    # Sums over the columns, then over the rows of each kind; a product would turn an infinite value of another kind of
    # row into NaN, so rows of other kinds are replaced.
    per_row = (mask_BT.sum(1).double(), sizes_BT.sum(1), kl_BT.sum(1))
    sums = [torch.where(kinds_JB, row_B, torch.zeros_like(row_B)).sum(1) for row_B in per_row]
    largest = torch.where(kinds_JB, sizes_BT.amax(1), torch.zeros_like(sizes_BT[:, 0])).amax(1)
    found = torch.stack([*sums, largest], 1).tolist()
    return [
        Mismatch(num_tokens=int(count), mean=size / count, max=most, kl=kl / count) if count else Mismatch()
        for count, size, kl, most in found
    ]
