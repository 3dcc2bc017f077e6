"""One optimizer step on one batch: forward and backward in micro-batches, clip, check, apply.

The step is all or nothing: if the loss or the gradient's norm is not finite, nothing is applied and weights and
optimizer state are what they were. Micro-batches change memory, not the result: the loss is normalised by the token
count of the whole step. The step reads no clock, file or random source; what to train on, and whether it is fresh
enough, was decided before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from periplus.errors import NonFiniteLoss
from trainer.batch import Batch
from trainer.losses.grpo import GrpoSettings, GrpoStats, grpo_loss
from trainer.scoring import completion_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """How a batch becomes a gradient. `decoupled`: the policy at the start of the step is the proximal one."""

    loss: GrpoSettings
    decoupled: bool
    temperature: float
    max_grad_norm: float
    micro_batch_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did: means over its completion tokens, and the gradient's norm before clipping."""

    loss: float
    grad_norm: float
    clip_fraction: float
    mean_ratio: float
    approx_kl: float
    num_tokens: int


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    advantages: Sequence[float],
    settings: StepSettings,
    *,
    learning_rate: float,
) -> StepReport:
    """Applies one step in place and reports it; `advantages` are in the order of the batch's rows.

    Raises: NonFiniteLoss, with weights and optimizer untouched.
    """
    advantages_B = torch.tensor(advantages, dtype=torch.float32)
    if len(advantages_B) != batch.num_rows:
        raise ValueError(f"{len(advantages_B)} advantages for {batch.num_rows} rows")
    optimizer.zero_grad(set_to_none=True)
    loss, stats = _accumulate(model, batch, advantages_B, settings)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm))
    if not (isfinite(loss) and isfinite(grad_norm)):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteLoss(
            f"loss {loss}, gradient norm {grad_norm} on {batch.num_rows} samples: the step was not applied; lower the "
            "learning rate or the clip range, and check the rewards"
        )
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    num_tokens = batch.num_tokens
    return StepReport(
        loss=loss,
        grad_norm=grad_norm,
        clip_fraction=stats.clipped / num_tokens,
        mean_ratio=stats.ratio / num_tokens,
        approx_kl=stats.approx_kl / num_tokens,
        num_tokens=num_tokens,
    )


def _accumulate(
    model: Any, batch: Batch, advantages_B: torch.Tensor, settings: StepSettings
) -> tuple[float, GrpoStats]:
    total, stats = 0.0, GrpoStats(clipped=0.0, ratio=0.0, approx_kl=0.0)
    for start in range(0, batch.num_rows, settings.micro_batch_rows):
        stop = min(start + settings.micro_batch_rows, batch.num_rows)
        part = batch.rows(start, stop)
        logprobs_BT = completion_logprobs(model, part, settings.temperature)
        loss, part_stats = grpo_loss(
            logprobs_BT,
            part.behaviour_logprobs_BT,
            advantages_B[start:stop],
            part.mask_BT,
            settings.loss,
            num_tokens=batch.num_tokens,
            # One optimizer step a batch: the policy at its start is the one that is differentiated.
            proximal_logprobs_BT=logprobs_BT.detach() if settings.decoupled else None,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        stats = stats.plus(part_stats)
    return total, stats
