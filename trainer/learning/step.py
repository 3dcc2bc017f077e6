"""One optimizer update: it computes the gradients of actor and critic, checks them, and applies them.

The gradient is accumulated over micro-batches of rows, clipped by its norm, and checked to be finite. If several ranks
share the step, their models are divided by FSDP2, which sums gradients over ranks in backward passes; or each rank has
all of them, and gradients are summed after its passes. Computing (`actor_gradient`, `critic_gradient`) and applying
(`apply`) are separate. The caller applies only after all gradients of the update were found finite, so actor and critic
change together or not at all.

Losses are normalised by the counts of the whole update (`counts_of`), in all micro-batches and on all ranks. The size
of a micro-batch therefore changes the memory that is needed, and not the result but for float32 rounding.

Figures stay on the device until all micro-batches are done. Reading a number from an accelerator waits for all work
that was given to it, so an update reads its loss, its gradient's norm and its sums once.

Nothing here reads a clock, a file or a random source. Which rows to train on, and whether they are fresh enough, was
decided before (trainer/learning/learner.py and gate.py).

Shapes: B rows (samples), T completion columns, U = T + 1 states (before each completion token, and after the last).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from periplus.errors import NonFiniteLoss
from trainer.learning.batch import Batch
from trainer.learning.losses.aggregate import Aggregation, StepCounts, aggregate
from trainer.learning.losses.objective import LossSettings, LossSums, policy_loss
from trainer.learning.losses.ppo import value_loss
from trainer.learning.losses.surrogate import TokenLossFunction
from trainer.learning.micro_batches import MicroBatchLimits, micro_batches_of_rank
from trainer.learning.ranks import Ranks
from trainer.learning.scoring import completion_scores, state_values

SUMMED_TOGETHER = 1 << 24
"""Elements of gradients from which a message that sums them over ranks is sent. Chosen by hand: 64 MiB of float32."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """A model that is trained, and the optimizer that changes its weights.

    `model` is a module that scores packed sequences: a PolicyScorer for the actor, a Critic for the critic.
    """

    model: Any
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """Figures of a gradient that was accumulated in the parameters' `grad`: its loss, and its norm before clipping."""

    loss: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Constants of a training step's losses, for each row of the batch. Only `untrusted_BT` differs between updates.

    - `advantages_BT`: the advantage of each token.
    - `proximal_BT`: log-probabilities at the start of the step. None is allowed if the step has a single
      update: the proximal log-probabilities are then those that this update computes.
    - `reference_BT`: log-probabilities of the frozen reference model; None without a KL penalty.
    - `values_BU`: the critic's values at the start of the step. `returns_BT`: the values that the critic is trained
      towards. Both are None without a critic.
    - `untrusted_BT`: tokens that M2PO masks in the next update; None for other algorithms.
    """

    advantages_BT: torch.Tensor
    proximal_BT: torch.Tensor | None
    reference_BT: torch.Tensor | None
    values_BU: torch.Tensor | None
    returns_BT: torch.Tensor | None
    untrusted_BT: torch.Tensor | None = None

    def take(self, index_B: torch.Tensor) -> "Targets":
        """Return the constants of the selected rows, in that order."""

        def chosen(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value[index_B]

        return Targets(
            advantages_BT=self.advantages_BT[index_B],
            proximal_BT=chosen(self.proximal_BT),
            reference_BT=chosen(self.reference_BT),
            values_BU=chosen(self.values_BU),
            returns_BT=chosen(self.returns_BT),
            untrusted_BT=chosen(self.untrusted_BT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """Settings of one update's gradient.

    - `token_loss`: the algorithm's loss of each token. `loss`: its clip, importance weights, mean and KL penalty.
    - `value_clip`: the farthest that a value may move from the critic's earlier one before the loss clips it; None
      disables the clip.
    - `temperature`: the sampling temperature, by which logits are divided.
    - `max_grad_norm`: the norm to which each model's gradient is clipped.
    - `micro_batch`: the largest size of one forward and backward pass.
    """

    token_loss: TokenLossFunction
    loss: LossSettings
    value_clip: float | None
    temperature: float
    max_grad_norm: float
    micro_batch: MicroBatchLimits


def actor_gradient(
    actor: Trained,
    batch: Batch,
    targets: Targets,
    rows: Sequence[int],
    settings: UpdateSettings,
    ranks: Ranks,
    on_logprobs: Callable[[torch.Tensor, torch.Tensor], None],
) -> tuple[Gradient, LossSums, float]:
    """Compute the gradient of the policy loss over `rows` of the batch, and leave it in the actor's parameters.

    Return the gradient's figures, the loss's sums, and the sum of the policy's entropy in nats, both over the tokens
    that the loss sees. The entropy comes from the same pass.

    `on_logprobs` is called for each micro-batch, with its rows as an index and their log-probabilities (BT, without
    gradient).

    Raises: NonFiniteLoss if the loss or the gradient's norm is not finite.
    """
    counts = counts_of(batch, rows)
    actor.optimizer.zero_grad(set_to_none=True)
    totals, sums = [], []
    # This rank's rows only. Losses are shares of the whole update's mean, so gradients of micro-batches add up.
    for chosen in _summed_once(actor, micro_batches_of_rank(rows, batch.sizes, settings.micro_batch, ranks)):
        index_B = batch.index(chosen)
        part, part_targets = batch.take(chosen), targets.take(index_B)
        logprobs_BT, entropies_BT = completion_scores(actor.model, part, settings.temperature)
        on_logprobs(index_B, logprobs_BT.detach())
        loss, part_sums = policy_loss(
            settings.token_loss,
            logprobs_BT,
            proximal_BT=logprobs_BT.detach() if part_targets.proximal_BT is None else part_targets.proximal_BT,
            behaviour_BT=part.behaviour_logprobs_BT,
            reference_BT=part_targets.reference_BT,
            advantages_BT=part_targets.advantages_BT,
            mask_BT=part.mask_BT,
            counts=counts,
            settings=settings.loss,
            untrusted_BT=part_targets.untrusted_BT,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        totals.append(loss.detach())
        entropy = entropies_BT.masked_fill(~part.mask_BT, 0.0).sum(dtype=torch.float64)
        sums.append(torch.cat([part_sums, entropy[None]]))
    gradient, (*values, entropy_sum) = _finish("policy", actor, totals, sums, len(rows), settings, ranks)
    return gradient, LossSums.of(values), entropy_sum


def critic_gradient(
    critic: Trained, batch: Batch, targets: Targets, rows: Sequence[int], settings: UpdateSettings, ranks: Ranks
) -> Gradient:
    """Compute the gradient of the value loss over `rows` of the batch, and leave it in the critic's parameters.

    The value loss is the mean over the tokens that the policy sampled. Raises: NonFiniteLoss if the loss or the
    gradient's norm is not finite.
    """
    counts = counts_of(batch, rows)
    critic.optimizer.zero_grad(set_to_none=True)
    totals = []
    for chosen in _summed_once(critic, micro_batches_of_rank(rows, batch.sizes, settings.micro_batch, ranks)):
        part, part_targets = batch.take(chosen), targets.take(batch.index(chosen))
        assert part_targets.values_BU is not None
        assert part_targets.returns_BT is not None
        # Padding and tool gaps may hold any value, so they are replaced before any arithmetic. The last state is
        # dropped, since no token follows it.
        hidden_BT = ~part.mask_BT
        loss_BT = value_loss(
            state_values(critic.model, part)[:, :-1].masked_fill(hidden_BT, 0.0),
            part_targets.values_BU[:, :-1].masked_fill(hidden_BT, 0.0),
            part_targets.returns_BT.masked_fill(hidden_BT, 0.0),
            value_clip=settings.value_clip,
        )
        loss = aggregate(loss_BT, part.mask_BT, Aggregation.TOKEN_MEAN, counts, constant_tokens=1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        totals.append(loss.detach())
    return _finish("value", critic, totals, [], len(rows), settings, ranks)[0]


def apply(trained: Trained, learning_rate: float) -> None:
    """Let the optimizer apply the gradient that the parameters hold, at this learning rate, and clear the gradient."""
    for group in trained.optimizer.param_groups:
        group["lr"] = learning_rate
    trained.optimizer.step()
    trained.optimizer.zero_grad(set_to_none=True)


def counts_of(batch: Batch, rows: Sequence[int]) -> StepCounts:
    """Return the counts that normalise the losses of an update over these rows.

    They count the rows of all ranks, and also the tokens that an importance weight rejects.
    """
    return StepCounts(num_tokens=batch.num_tokens_of(rows), num_sequences=len(rows))


def _summed_once(trained: Trained, micro_batches: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    # Copies of a model on several machines sum their gradients once, in the last pass.
    for number, chosen in enumerate(micro_batches, 1):
        for module in trained.model.modules():
            if isinstance(module, FSDPModule):
                module.set_requires_all_reduce(number == len(micro_batches), recurse=False)
        yield chosen


def _finish(
    what: str,
    trained: Trained,
    totals: Sequence[torch.Tensor],
    sums: Sequence[torch.Tensor],
    num_rows: int,
    settings: UpdateSettings,
    ranks: Ranks,
) -> tuple[Gradient, list[float]]:
    # Sum the figures over micro-batches and ranks, clip the gradient's norm in place, and refuse what is not finite.
    parameters = [parameter for parameter in trained.model.parameters() if parameter.requires_grad]
    if ranks.size > 1 and ranks.shards == 1:
        _sum_gradients(parameters, ranks)
    # One vector for all figures: the loss, then the sums.
    loss = torch.stack([total.double() for total in totals]).sum()
    figures = ranks.sum_(torch.cat([loss[None], *([torch.stack(list(sums)).sum(0)] if sums else [])]))
    norm = _clip(parameters, settings.max_grad_norm, ranks)
    found_norm, found_loss, *values = torch.cat([norm.double()[None], figures]).tolist()
    if not (isfinite(found_loss) and isfinite(found_norm)):
        raise NonFiniteLoss(
            f"{what} loss {found_loss} with gradient norm {found_norm} on {num_rows} samples: the step was not "
            "applied; lower the learning rate or the clip range, and check the rewards"
        )
    return Gradient(loss=found_loss, norm=found_norm), values


def _sum_gradients(parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> None:
    """Replace the gradients of the rows of each rank by their sums. Each rank has all parameters."""
    used = torch.tensor([float(each.grad is not None) for each in parameters], device=parameters[0].device)
    # A parameter that no rank used stays without a gradient, as in a single process.
    trained = [each for each, num in zip(parameters, ranks.sum_(used).tolist(), strict=True) if num]
    while trained:
        part, num = list[torch.nn.Parameter](), 0
        while trained and num < SUMMED_TOGETHER:
            part.append(trained.pop(0))
            num += part[-1].numel()
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in part]
        summed = ranks.sum_(torch.cat([grad.reshape(-1) for grad in grads]))
        for each, grad, total in zip(part, grads, torch.split(summed, [grad.numel() for grad in grads]), strict=True):
            each.grad = grad.copy_(total.view_as(grad))


def _clip(parameters: Sequence[torch.nn.Parameter], max_norm: float, ranks: Ranks) -> torch.Tensor:
    # Each rank knows the norm of its rows; the norm of the whole gradient is the same number on all ranks, and so is
    # the factor by which all of them scale their rows.
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if isinstance(norm, DTensor):
        mesh, norm = norm.device_mesh, norm.full_tensor()
        if mesh.ndim > 1:  # copies on several machines, whose sums may differ by rounding, must stay alike
            torch.distributed.broadcast(norm, group_src=0, group=mesh.get_group(0))
    elif ranks.size > 1:
        torch.distributed.broadcast(norm, group_src=0, group=ranks.group)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
