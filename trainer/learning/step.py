"""One optimizer update: forward and backward in micro-batches, sum over ranks, clip, check; applied by the caller.

A gradient is *prepared* first and *applied* after everything that belongs to the update was found finite, so that actor
and critic change together or not at all. Micro-batches change memory, not the result: losses are normalised by the
counts of the whole update. Nothing here reads a clock, a file or a random source; what to train on, and whether it is
fresh enough, was decided before.

Shapes: B rows, T completion columns, U = T + 1 states.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import torch

from periplus.errors import NonFiniteLoss
from trainer.learning.batch import Batch
from trainer.learning.losses.aggregate import Aggregation, StepCounts, aggregate
from trainer.learning.losses.objective import LossSettings, LossSums, policy_loss
from trainer.learning.losses.ppo import value_loss
from trainer.learning.losses.surrogate import TokenLossFunction
from trainer.learning.ranks import Ranks
from trainer.learning.scoring import completion_logprobs


@dataclass(slots=True, kw_only=True)
class Trained:
    """A model and what changes it."""

    model: Any
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """What was accumulated in the parameters' `grad`: the loss it is of, and its norm before clipping."""

    loss: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a step trains towards, for each row of the batch: fixed while its updates change the weights.

    `proximal_BT`: log-probabilities at the step's start; None: those of the update itself, which is the step's only
    one. `reference_BT`: of the frozen reference. `values_BU` and `returns_BT`: of the critic.
    """

    advantages_BT: torch.Tensor
    proximal_BT: torch.Tensor | None
    reference_BT: torch.Tensor | None
    values_BU: torch.Tensor | None
    returns_BT: torch.Tensor | None

    def take(self, rows: Sequence[int]) -> "Targets":
        def chosen(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value[rows]

        return Targets(
            advantages_BT=self.advantages_BT[rows],
            proximal_BT=chosen(self.proximal_BT),
            reference_BT=chosen(self.reference_BT),
            values_BU=chosen(self.values_BU),
            returns_BT=chosen(self.returns_BT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How one update's gradient is computed."""

    token_loss: TokenLossFunction
    loss: LossSettings
    value_clip: float | None
    temperature: float
    max_grad_norm: float
    micro_batch_rows: int


def micro_batches(rows: Sequence[int], size: int) -> list[Sequence[int]]:
    """The rows in pieces of at most `size`, in order."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def actor_gradient(
    actor: Trained,
    batch: Batch,
    targets: Targets,
    rows: Sequence[int],
    settings: UpdateSettings,
    ranks: Ranks,
    seen: Callable[[Sequence[int], torch.Tensor], None],
) -> tuple[Gradient, LossSums]:
    """The gradient of the policy loss over `rows` of the batch, left in the actor's parameters.

    `seen` is told the log-probabilities (BT, detached) of each micro-batch's rows. Raises: NonFiniteLoss.
    """
    counts = counts_of(batch, rows)
    actor.optimizer.zero_grad(set_to_none=True)
    total, sums = 0.0, LossSums()
    for chosen in micro_batches(ranks.mine(rows), settings.micro_batch_rows):
        part, at = batch.take(chosen), targets.take(chosen)
        logprobs_BT = completion_logprobs(actor.model, part, settings.temperature)
        seen(chosen, logprobs_BT.detach())
        loss, part_sums = policy_loss(
            settings.token_loss,
            logprobs_BT,
            proximal_BT=logprobs_BT.detach() if at.proximal_BT is None else at.proximal_BT,
            behaviour_BT=part.behaviour_logprobs_BT,
            reference_BT=at.reference_BT,
            advantages_BT=at.advantages_BT,
            mask_BT=part.mask_BT,
            counts=counts,
            settings=settings.loss,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        sums = sums.plus(part_sums)
    return _finish("policy", actor, total, len(rows), settings, ranks), _summed(sums, ranks)


def critic_gradient(
    critic: Trained, batch: Batch, targets: Targets, rows: Sequence[int], settings: UpdateSettings, ranks: Ranks
) -> Gradient:
    """The gradient of the value loss, a mean over the tokens of `rows`, left in the critic's parameters.

    Raises: NonFiniteLoss.
    """
    counts = counts_of(batch, rows)
    critic.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for chosen in micro_batches(ranks.mine(rows), settings.micro_batch_rows):
        part, at = batch.take(chosen), targets.take(chosen)
        assert at.values_BU is not None
        assert at.returns_BT is not None
        hidden_BT = ~part.mask_BT
        loss_BT = value_loss(
            critic.model(part)[:, :-1].masked_fill(hidden_BT, 0.0),
            at.values_BU[:, :-1].masked_fill(hidden_BT, 0.0),
            at.returns_BT.masked_fill(hidden_BT, 0.0),
            value_clip=settings.value_clip,
        )
        loss = aggregate(loss_BT, part.mask_BT, Aggregation.TOKEN_MEAN, counts, constant_tokens=1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return _finish("value", critic, total, len(rows), settings, ranks)


def apply(trained: Trained, learning_rate: float) -> None:
    """Take the step of the prepared gradient."""
    for group in trained.optimizer.param_groups:
        group["lr"] = learning_rate
    trained.optimizer.step()
    trained.optimizer.zero_grad(set_to_none=True)


def counts_of(batch: Batch, rows: Sequence[int]) -> StepCounts:
    """What an update over these rows is normalised by: it counts all ranks' rows and rejects nothing."""
    return StepCounts(num_tokens=int(batch.mask_BT[rows].sum()), num_sequences=len(rows))


def _finish(
    what: str, trained: Trained, total: float, num_rows: int, settings: UpdateSettings, ranks: Ranks
) -> Gradient:
    parameters = [parameter for parameter in trained.model.parameters() if parameter.requires_grad]
    if ranks.size > 1:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            ranks.sum_(parameter.grad)
    loss = float(ranks.sum_(torch.tensor(total, dtype=torch.float64)))
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm))
    if not (isfinite(loss) and isfinite(norm)):
        raise NonFiniteLoss(
            f"{what} loss {loss}, gradient norm {norm} on {num_rows} samples: the step was not applied; lower the "
            "learning rate or the clip range, and check the rewards"
        )
    return Gradient(loss=loss, norm=norm)


def _summed(sums: LossSums, ranks: Ranks) -> LossSums:
    names = [f.name for f in fields(sums)]
    values = ranks.sum_(torch.tensor([getattr(sums, name) for name in names], dtype=torch.float64)).tolist()
    return LossSums(**dict(zip(names, values, strict=True)))
