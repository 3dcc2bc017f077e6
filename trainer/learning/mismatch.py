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
loss sees. k3 is bounded for each token (losses/log_ratio.py), so that it is finite whatever an engine claims. The
functions are pure.

Shapes: B rows, T completion columns, N selected tokens.
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
    current_B = torch.tensor([tuple(run.policy for run in runs) == (consumer,) for runs in policies])
    mixed_B = torch.tensor([len(runs) > 1 for runs in policies])

    def of(rows_B: torch.Tensor) -> Mismatch:
        chosen_BT = mask_BT & rows_B[:, None]
        return _mismatch((trainer_logprobs_BT[chosen_BT] - engine_logprobs_BT[chosen_BT]).double())

    current = of(current_B)
    alarmed = threshold is not None and current.mean > threshold
    return MismatchReport(
        current=current,
        stale=of(~current_B & ~mixed_B),
        mixed=of(mixed_B),
        alarm=current.mean if alarmed else None,
    )


def _mismatch(difference_N: torch.Tensor) -> Mismatch:
    if not len(difference_N):
        return Mismatch()
    return Mismatch(
        num_tokens=len(difference_N),
        mean=float(difference_N.abs().mean()),
        max=float(difference_N.abs().max()),
        kl=float(bounded_k3(difference_N).mean()),
    )
