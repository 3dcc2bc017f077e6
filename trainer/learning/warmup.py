"""A short supervised warm-up: it teaches a random model the form of an answer, and little of the task.

Reinforcement learning can only improve a policy that is sometimes right. The warm-up therefore trains on a few solved
examples, by maximum likelihood (AdamW, cross-entropy of the completion tokens). It stops as soon as the mean loss of
the last steps falls below `target_loss`, or after `max_steps`. A fixed number of steps would not do: a small model goes
from no right answer to mastery within a hundred steps, so it could end anywhere between.

The order of examples is a function of the seed. `warm_up` is a generator, so the caller can show progress and may stop
at any step. It must not know of policies, versions or the ledger.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from periplus.values.schedule import Decay, learning_rate
from periplus.values.trajectory import StopReason
from trainer.data.dataset import Example
from trainer.learning.batch import Batch, Sample, collate
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.micro_batches import MicroBatchLimits, micro_batches
from trainer.learning.scoring import completion_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupSettings:
    """Settings of a warm-up.

    The learning rate rises linearly to `peak_learning_rate` in `ramp_steps` steps, and stays there. The warm-up ends
    when the mean loss of the last `loss_window` steps is below `target_loss`, in nats per completion token, or after
    `max_steps` steps. `batch_rows` is the number of examples per step, `micro_batch` the largest size of one pass over
    them. `seed` orders the examples.
    """

    max_steps: int
    batch_rows: int
    peak_learning_rate: float
    ramp_steps: int
    max_grad_norm: float
    weight_decay: float
    target_loss: float
    loss_window: int
    micro_batch: MicroBatchLimits
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupProgress:
    """Progress after one step. `step` counts from 1, `loss` is in nats per completion token."""

    step: int
    max_steps: int
    loss: float


def warm_up(scorer: PolicyScorer, examples: Sequence[Example], settings: WarmupSettings) -> Iterator[WarmupProgress]:
    """Train the scorer's model in place, and yield after each step, until the target loss or the last step is reached.

    Raises: ValueError if there are no examples.
    """
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=0.0, betas=(0.9, 0.99), weight_decay=settings.weight_decay)
    recent: list[float] = []
    for step, chosen in zip(range(settings.max_steps), _order(len(examples), settings), strict=False):
        rate = learning_rate(
            step,
            num_steps=settings.max_steps,
            peak=settings.peak_learning_rate,
            ramp_steps=settings.ramp_steps,
            decay=Decay.CONSTANT,
        )
        batch = _batch([examples[i] for i in chosen], scorer.device)
        loss = _imitate(scorer, optimizer, batch, rate, settings)
        yield WarmupProgress(step=step + 1, max_steps=settings.max_steps, loss=loss)
        # The losses of the last `loss_window` steps, this one included.
        recent = [*recent[1 - settings.loss_window :], loss] if settings.loss_window > 1 else [loss]
        if len(recent) == settings.loss_window and sum(recent) / len(recent) < settings.target_loss:
            return


def _order(num_examples: int, settings: WarmupSettings) -> Iterator[tuple[int, ...]]:
    if num_examples < 1:
        raise ValueError("a warm-up needs examples, and none were given")
    # Endless: a new permutation of all examples whenever the last one is used up.
    generator = np.random.default_rng(settings.seed)
    pending: list[int] = []
    while True:
        while len(pending) < settings.batch_rows:
            pending.extend(int(index) for index in generator.permutation(num_examples))
        yield tuple(pending[: settings.batch_rows])
        pending = pending[settings.batch_rows :]


def _batch(examples: Sequence[Example], device: torch.device) -> Batch:
    return collate(
        [
            # Supervised: rewards, policies and behaviour log-probabilities are not used.
            Sample(
                group=row,
                sample=0,
                prompt_ids=np.asarray(example.prompt_ids, np.int32),
                completion_ids=np.asarray(example.completion_ids, np.int32),
                behaviour_logprobs=np.zeros(len(example.completion_ids), np.float32),
                mask=np.ones(len(example.completion_ids), np.bool_),
                policies=(),
                reward=0.0,
                stop_reason=StopReason.EOS,
            )
            for row, example in enumerate(examples)
        ],
        device,
    )


def _imitate(
    scorer: PolicyScorer, optimizer: torch.optim.Optimizer, batch: Batch, rate: float, settings: WarmupSettings
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for rows in micro_batches(range(batch.num_rows), batch.sizes, settings.micro_batch):
        part = batch.take(rows)
        logprobs_BT = completion_logprobs(scorer, part, temperature=1.0)
        # This part's share of the mean cross-entropy over all completion tokens.
        loss = -(logprobs_BT * part.mask_BT).sum() / batch.num_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(scorer.parameters(), settings.max_grad_norm)
    optimizer.step()
    return float(torch.stack(losses).sum())
