"""How far the engine's log-probabilities are from the trainer's: what shows stale weights that nobody reported.

Both compute the log-probability of the same tokens. What the difference means depends on who sampled:

    current   one policy throughout, the one that the step starts from: the difference is arithmetic (the trainer's
              float32 weights against published bf16, other kernels). More is a fault: other weights than claimed,
              another temperature, a wrong mask. The alarm looks here and nowhere else.
    stale     one policy throughout, an older one: arithmetic, and how far the policy moved.
    mixed     several policies within a sample: also what a swap during generation did to cached keys and values.

For each: the mean and the largest |log pi_trainer - log pi_engine| and k3 = x - 1 - log x, x = pi_trainer / pi_engine,
an estimate of KL(engine || trainer), over the tokens that the loss sees, in nats. k3 is bounded for each token
(losses/log_ratio.py), so that it is finite whatever an engine claims. Pure functions.

Shapes: B rows, T completion columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from trainer.learning.losses.log_ratio import bounded_k3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Over `num_tokens` tokens; all 0 if there are none."""

    num_tokens: int = 0
    mean: float = 0.0
    max: float = 0.0
    kl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReport:
    """The three kinds of samples apart. `alarm`: the mean of `current` where it is above the threshold, else None."""

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
    """Compare a whole step's log-probabilities; `policies` are those of each row, `threshold` in nats, None: no alarm.

    The trainer's log-probabilities are those of the weights that the step starts from.
    """
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
