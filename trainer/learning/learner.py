"""The learner: samples in, one training step on actor (and critic) out, all or nothing.

A step, for the policy version that it starts from:
1. sort and pad the samples; what depends on arrival ends here;
2. score them as the step starts, without gradient: the reference's log-probabilities (KL penalty), the critic's values
   (PPO), the actor's own (a KL penalty in the reward; or the proximal policy of several updates). With one update the
   proximal policy is the one that is differentiated, and that pass is saved;
3. advantages, from the whole step;
4. `epochs` times over the groups, shuffled and cut into `minibatches`, one update each: prepare the actor's gradient
   and the critic's, and apply both. A group never straddles two minibatches;
5. compare the engine's log-probabilities with the trainer's.

If a loss or gradient is not finite, in whichever update, weights and optimizer states of actor and critic are what they
were before the step. Shuffles are keyed by (seed, version, epoch), and nothing else here is random:
there is no random state to save, and a step repeated after a restore is the same step. It refuses to know where samples
come from and whether they are fresh enough.

Shapes: B rows, T completion columns, U = T + 1 states.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from periplus.errors import ConfigError, NonFiniteLoss
from periplus.values.policy import Policy
from periplus.values.trajectory import MAX_REWARD, is_reward
from trainer.learning.advantages import AdvantageSettings, Outcomes
from trainer.learning.batch import Batch, Sample, collate
from trainer.learning.losses.kl import KlEstimator, kl_estimate
from trainer.learning.losses.objective import LossSums
from trainer.learning.losses.registry import Algorithm
from trainer.learning.mismatch import MismatchReport, measure_mismatch
from trainer.learning.ranks import Ranks
from trainer.learning.scoring import completion_logprobs
from trainer.learning.step import (
    Gradient,
    Targets,
    Trained,
    UpdateSettings,
    actor_gradient,
    apply,
    critic_gradient,
    micro_batches,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """The same for each step. `reward_kl_coefficient` is of a penalty in the reward; one in the loss is in `update`.

    `critic_rate`: the critic's learning rate for each unit of the actor's. `mismatch_alarm` is in nats; None: never.
    """

    algorithm: Algorithm
    advantage: AdvantageSettings
    update: UpdateSettings
    minibatches: int = 1
    epochs: int = 1
    seed: int = 0
    critic_rate: float = 1.0
    reward_kl_coefficient: float = 0.0
    reward_kl_estimator: KlEstimator = KlEstimator.K1
    mismatch_alarm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did: means over its updates, and within each over the tokens that the loss sees.

    `grad_norm` is before clipping. `mean_ratio` and `approx_kl` compare the policy with the behaviour policy;
    `importance_weight` is the mean weight after it was bounded, `cut_fraction` the share of tokens whose weight was
    truncated or masked; `reference_kl` is k3 of the policy at the step's start. What does not exist is None.
    """

    loss: float
    grad_norm: float
    clip_fraction: float
    mean_ratio: float
    approx_kl: float
    importance_weight: float
    cut_fraction: float
    reference_kl: float | None
    value_loss: float | None
    critic_grad_norm: float | None
    num_updates: int
    num_tokens: int
    mismatch: MismatchReport

    def values(self) -> dict[str, float]:
        """Return the figures under the names of the metric registry; what does not exist is left out."""
        values = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "clip_fraction": self.clip_fraction,
            "mean_ratio": self.mean_ratio,
            "approx_kl": self.approx_kl,
            "importance_weight": self.importance_weight,
            "cut_fraction": self.cut_fraction,
            "reference_kl": self.reference_kl,
            "value_loss": self.value_loss,
            "critic_grad_norm": self.critic_grad_norm,
            "logprob_mismatch_alarms": float(self.mismatch.alarm is not None),
        }
        for kind in ("current", "stale", "mixed"):
            found = getattr(self.mismatch, kind)
            if found.num_tokens:
                values |= {f"logprob_mismatch_{kind}_{name}": getattr(found, name) for name in ("mean", "max", "kl")}
                values[f"logprob_mismatch_{kind}_tokens"] = float(found.num_tokens)
        return {name: value for name, value in values.items() if value is not None}


class Learner:
    """Actor, critic and reference of one job in one process, and the step that changes them."""

    def __init__(
        self,
        *,
        actor: Trained,
        critic: Trained | None,
        reference: Any | None,
        settings: LearnerSettings,
        pad_id: int,
        ranks: Ranks | None = None,
    ) -> None:
        assert (critic is not None) == settings.algorithm.has_critic
        wants_reference = bool(settings.reward_kl_coefficient or settings.update.loss.kl_coefficient)
        assert (reference is not None) == wants_reference
        self._actor = actor
        self._critic = critic
        self._reference = reference
        self._settings = settings
        self._pad_id = pad_id
        self._ranks = ranks or Ranks()

    def step(self, samples: Sequence[Sample], *, consumer: Policy, learning_rate: float) -> StepReport | None:
        """Train on the samples, in place, from the policy `consumer`; None if the loss sees none of their tokens.

        Raises: NonFiniteLoss, with all weights and optimizer states as they were; ValueError as `collate` does.
        """
        batch = collate(samples, self._pad_id)
        if not batch.num_tokens:
            return None
        _check_finite(batch)
        updates = self._updates(batch, consumer.version)
        targets = self._targets(batch, keep_proximal=len(updates) > 1)
        start_BT = torch.zeros_like(batch.behaviour_logprobs_BT)

        def seen(rows: Sequence[int], logprobs_BT: torch.Tensor) -> None:
            start_BT[rows] = logprobs_BT

        sums, gradients, value_gradients = LossSums(), [], []
        with self._undone_on_failure(num_updates=len(updates)):
            for rows in updates:
                gradient, update_sums, value_gradient = self._update(batch, targets, rows, learning_rate, seen)
                sums = sums.plus(update_sums)
                gradients.append(gradient)
                value_gradients += [value_gradient] if value_gradient else []
        at_start_BT = self._ranks.sum_(start_BT) if targets.proximal_BT is None else targets.proximal_BT
        mismatch = measure_mismatch(
            at_start_BT,
            batch.behaviour_logprobs_BT,
            batch.mask_BT,
            [sample.policies for sample in batch.samples],
            consumer=consumer,
            threshold=self._settings.mismatch_alarm,
        )
        num_counted = sum(int(batch.mask_BT[rows].sum()) for rows in updates)
        reference_kl = _mean_k3(at_start_BT, targets.reference_BT, batch.mask_BT)
        return self._report(batch, sums, num_counted, gradients, value_gradients, reference_kl, mismatch)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the actor's weights that a checkpoint must hold; plain tensors, numbers and texts."""
        state: dict[str, Any] = {"optimizer": self._actor.optimizer.state_dict()}
        if self._critic is not None:
            state["critic"] = self._critic.model.state_dict()
            state["critic_optimizer"] = self._critic.optimizer.state_dict()
        if self._reference is not None:
            state["reference"] = self._reference.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of state_dict. Raises: ConfigError if it is of a job with another algorithm."""
        if state.keys() != self.state_dict().keys():
            raise ConfigError(
                f"the checkpoint holds {', '.join(sorted(state))}, but this job's learner has "
                f"{', '.join(sorted(self.state_dict()))}; resume with the algorithm it was made by"
            )
        self._actor.optimizer.load_state_dict(state["optimizer"])
        if self._critic is not None:
            self._critic.model.load_state_dict(state["critic"])
            self._critic.optimizer.load_state_dict(state["critic_optimizer"])
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])

    # ---- parts of a step ------------------------------------------------------------------------------------------

    def _updates(self, batch: Batch, version: int) -> list[list[int]]:
        settings = self._settings
        epochs = [
            minibatch_rows(batch.groups, settings.minibatches, (settings.seed, version, epoch))
            for epoch in range(settings.epochs)
        ]
        return [rows for epoch in epochs for rows in epoch if bool(batch.mask_BT[rows].any())]

    def _targets(self, batch: Batch, *, keep_proximal: bool) -> Targets:
        settings, temperature = self._settings, self._settings.update.temperature
        width_T = batch.mask_BT.shape[1]
        actor_BT = reference_BT = values_BU = kl_BT = None
        if keep_proximal or settings.reward_kl_coefficient:
            actor = self._actor.model
            actor_BT = self._scores(lambda part: completion_logprobs(actor, part, temperature), batch, width_T)
        if self._reference is not None:
            reference = self._reference
            reference_BT = self._scores(lambda part: completion_logprobs(reference, part, temperature), batch, width_T)
        if self._critic is not None:
            values_BU = self._scores(self._critic.model, batch, width_T + 1)
        if settings.reward_kl_coefficient:
            assert actor_BT is not None
            assert reference_BT is not None
            kl_BT = settings.reward_kl_coefficient * kl_estimate(actor_BT, reference_BT, settings.reward_kl_estimator)
        outcomes = Outcomes(
            rewards=batch.rewards,
            groups=batch.groups,
            mask_BT=batch.mask_BT,
            lengths_B=batch.lengths_B,
            truncated_B=batch.truncated_B,
            kl_BT=kl_BT,
            values_BU=values_BU,
        )
        found = settings.algorithm.advantages(outcomes, settings.advantage)
        if not bool((torch.isfinite(found.advantages_BT) | ~batch.mask_BT).all()):
            raise NonFiniteLoss(
                f"advantages are not finite, of {batch.num_rows} samples with rewards from {min(batch.rewards)} to "
                f"{max(batch.rewards)}: the step was not applied; check the critic's values and the KL penalty"
            )
        return Targets(
            advantages_BT=found.advantages_BT.float(),
            proximal_BT=actor_BT,
            reference_BT=reference_BT,
            values_BU=values_BU,
            returns_BT=None if found.returns_BT is None else found.returns_BT.float(),
        )

    def _scores(self, score: Callable[[Batch], torch.Tensor], batch: Batch, width: int) -> torch.Tensor:
        scores = torch.zeros((batch.num_rows, width))
        with torch.no_grad():
            for rows in micro_batches(self._ranks.mine(range(batch.num_rows)), self._settings.update.micro_batch_rows):
                scores[rows] = score(batch.take(rows))
        return self._ranks.sum_(scores)

    def _update(
        self,
        batch: Batch,
        targets: Targets,
        rows: Sequence[int],
        learning_rate: float,
        seen: Callable[[Sequence[int], torch.Tensor], None],
    ) -> tuple[Gradient, LossSums, Gradient | None]:
        update, value_gradient = self._settings.update, None
        gradient, sums = actor_gradient(self._actor, batch, targets, rows, update, self._ranks, seen)
        if self._critic is not None:
            value_gradient = critic_gradient(self._critic, batch, targets, rows, update, self._ranks)
            apply(self._critic, learning_rate * self._settings.critic_rate)
        apply(self._actor, learning_rate)
        return gradient, sums, value_gradient

    @contextmanager
    def _undone_on_failure(self, *, num_updates: int) -> Iterator[None]:
        trained = [self._actor] + ([self._critic] if self._critic is not None else [])
        # A single update is found finite before it is applied, so there is nothing to keep a copy for.
        kept = [_snapshot(each) for each in trained] if num_updates > 1 else []
        try:
            yield
        except BaseException:
            for each, before in zip(trained, kept, strict=False):
                _put_back(each, before)
            for each in trained:
                each.optimizer.zero_grad(set_to_none=True)
            raise

    def _report(
        self,
        batch: Batch,
        sums: LossSums,
        num_counted: int,
        gradients: Sequence[Gradient],
        value_gradients: Sequence[Gradient],
        reference_kl: float | None,
        mismatch: MismatchReport,
    ) -> StepReport:
        return StepReport(
            loss=_mean([gradient.loss for gradient in gradients]),
            grad_norm=_mean([gradient.norm for gradient in gradients]),
            clip_fraction=sums.clipped / num_counted,
            mean_ratio=sums.ratio / num_counted,
            approx_kl=sums.approx_kl / num_counted,
            importance_weight=sums.weight / num_counted,
            cut_fraction=sums.cut / num_counted,
            reference_kl=reference_kl,
            value_loss=_mean([gradient.loss for gradient in value_gradients]) if value_gradients else None,
            critic_grad_norm=_mean([gradient.norm for gradient in value_gradients]) if value_gradients else None,
            num_updates=len(gradients),
            num_tokens=batch.num_tokens,
            mismatch=mismatch,
        )


def minibatch_rows(groups: Sequence[int], num_minibatches: int, key: Sequence[int]) -> list[list[int]]:
    """The rows of each minibatch, in ascending order: whole groups, shuffled by `key`, in parts as equal as can be.

    `groups[i]` is the group of row i. One minibatch is all rows in order.
    """
    names = sorted(set(groups))
    shuffled = np.random.default_rng(tuple(key)).permutation(names)
    parts = [{int(name) for name in part} for part in np.array_split(shuffled, min(num_minibatches, len(names)))]
    return [[row for row, group in enumerate(groups) if group in part] for part in parts]


def _check_finite(batch: Batch) -> None:
    for sample, row_T in zip(batch.samples, torch.isfinite(batch.behaviour_logprobs_BT) | ~batch.mask_BT, strict=True):
        if not (is_reward(sample.reward) and bool(row_T.all())):
            raise NonFiniteLoss(
                f"group {sample.group} sample {sample.sample} has the reward {sample.reward}, beyond {MAX_REWARD:.0f}, "
                "or a log-probability that is not finite: the step was not applied; check the reward and the engine"
            )


def _snapshot(trained: Trained) -> tuple[list[torch.Tensor], dict[str, Any]]:
    weights = [parameter.detach().clone() for parameter in trained.model.parameters()]
    return weights, deepcopy(trained.optimizer.state_dict())


def _put_back(trained: Trained, before: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
    weights, state = before
    with torch.no_grad():
        for parameter, weight in zip(trained.model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    trained.optimizer.load_state_dict(state)


def _mean_k3(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor | None, mask_BT: torch.Tensor) -> float | None:
    if reference_BT is None:
        return None
    return float(kl_estimate(logprobs_BT[mask_BT], reference_BT[mask_BT], KlEstimator.K3).mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
