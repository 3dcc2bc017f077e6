"""The learner: it takes the samples of one training step and changes the weights of actor and critic, all or nothing.

A *step* consumes one batch of samples and makes the next policy version. It consists of one or more *updates*, and each
update calls the optimizer once. The *proximal policy* is the policy at the start of the step, around which PPO-like
losses clip. A step does the following:
1. It sorts and pads the samples. From here on nothing depends on the order in which they arrived.
2. It scores the samples without gradient, with the weights at the start of the step. The reference model gives
   log-probabilities for the KL penalty. The critic gives values (PPO). The actor scores them too if the reward has a KL
   penalty, or if there are several updates: these scores are then the proximal policy's. With a single update the
   proximal policy is the one that is differentiated, so this extra forward pass is saved. M2PO needs the scores always,
   since its mask of an update depends on all rows of it. For each later update it scores that update's rows again.
3. It computes advantages from all samples of the step at once.
4. It goes `epochs` times over the groups. In each epoch the groups are shuffled and cut into `minibatches`, with one
   update for each minibatch. A group never straddles two minibatches. An update computes the actor's gradient and the
   critic's, and applies both only after both were found finite.
5. It compares the engine's log-probabilities with the trainer's.

Invariants:
- If a loss or gradient of any update is not finite, weights and optimizer states of actor and critic are again what
  they were before the step.
- The only randomness is the shuffle, and its key is (seed, version, epoch). So there is no random state to save, and a
  step that is repeated after a restore is the same step.

The learner must not know where samples come from, or whether they are fresh enough (trainer/learning/gate.py does).

Shapes: B rows (samples), T completion columns, U = T + 1 states (before each completion token, and after the last).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from periplus.errors import ConfigError, NonFiniteLoss
from periplus.values.policy import Policy
from periplus.values.trajectory import MAX_REWARD, is_reward
from trainer.learning.advantages import AdvantageSettings, Outcomes
from trainer.learning.batch import Batch, Sample, collate, reward_of
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.losses.importance import WeightSpread, spread_of_weights
from trainer.learning.losses.kl import KlEstimator, kl_estimate
from trainer.learning.losses.m2po import outside_trust_region
from trainer.learning.losses.objective import LossSums
from trainer.learning.losses.registry import Algorithm
from trainer.learning.micro_batches import micro_batches_of_rank
from trainer.learning.mismatch import MismatchReport, measure_mismatch
from trainer.learning.rank_speeds import RankSpeeds
from trainer.learning.ranks import Ranks
from trainer.learning.sample_figures import SampleFigures, figures_of_samples
from trainer.learning.scoring import completion_logprobs, state_values
from trainer.learning.step import (
    Gradient,
    Targets,
    Trained,
    UpdateSettings,
    actor_gradient,
    apply,
    critic_gradient,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Settings that are the same for all steps of a job.

    - `algorithm`: the token loss, the advantages, and whether there is a critic.
    - `advantage`, `update`: settings of the advantages, and of each update's gradient.
    - `minibatches`: updates per epoch. `epochs`: passes over the step's samples.
    - `seed`: part of the key that shuffles groups.
    - `critic_rate`: the critic's learning rate divided by the actor's.
    - `reward_kl_coefficient`, `reward_kl_estimator`: the KL penalty that is subtracted from the reward, 0 for none. A
      KL penalty in the loss is part of `update` instead.
    - `mismatch_alarm`: the mean difference of log-probabilities, in nats, above which a step raises an alarm; None
      disables it.
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
    """Figures of one training step. A figure that does not exist for this job is None.

    Means over updates: `loss`, `grad_norm`, `value_loss` and `critic_grad_norm`. Norms are taken before clipping.

    Means over the tokens that the loss sees, each counted once for each update that sees it:
    - `entropy`: entropy of the policy's distribution at the token, in nats, at the sampling temperature;
    - `clip_fraction`: share of tokens where the loss's clip took effect, or that M2PO masked; `clip_fraction_low` and
      `clip_fraction_high` are its parts with a ratio below and above the range;
    - `mean_ratio`, `approx_kl`: ratio and k3 estimate of the current policy against the behaviour policy;
    - `importance_weight`: the importance weight after it was bounded;
    - `cut_fraction`: share of tokens whose importance weight was truncated or masked.

    `weights` is the spread of the importance weights over the step's tokens. `reference_kl` is the mean k3, in nats per
    token, of the policy at the start of the step against the reference. `samples` has figures of each sample.
    `num_tokens` counts the tokens of the batch that the loss sees.
    """

    loss: float
    grad_norm: float
    entropy: float
    clip_fraction: float
    clip_fraction_low: float
    clip_fraction_high: float
    mean_ratio: float
    approx_kl: float
    importance_weight: float
    cut_fraction: float
    weights: WeightSpread
    reference_kl: float | None
    value_loss: float | None
    critic_grad_norm: float | None
    num_updates: int
    num_tokens: int
    mismatch: MismatchReport
    samples: tuple[SampleFigures, ...]

    def values(self) -> dict[str, float]:
        """Return the figures under the names of the metric registry, without those that do not exist."""
        values = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "entropy": self.entropy,
            "clip_fraction": self.clip_fraction,
            "clip_fraction_low": self.clip_fraction_low,
            "clip_fraction_high": self.clip_fraction_high,
            "mean_ratio": self.mean_ratio,
            "approx_kl": self.approx_kl,
            "importance_weight": self.importance_weight,
            "importance_weight_max": self.weights.largest,
            "importance_effective_share": self.weights.effective_share,
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


class _Update(NamedTuple):
    gradient: Gradient
    sums: LossSums
    entropy_sum: float
    value_gradient: Gradient | None


class Learner:
    """Actor, critic and reference model of one job in one process, and the training step that changes them.

    `critic` is given exactly if the algorithm has one, `reference` exactly if some KL coefficient is above 0. All of
    them are on one device, and so is everything that a step computes. Without `ranks` this process trains alone.
    """

    def __init__(
        self,
        *,
        actor: Trained,
        critic: Trained | None,
        reference: PolicyScorer | None,
        settings: LearnerSettings,
        ranks: Ranks | None = None,
    ) -> None:
        assert (critic is not None) == settings.algorithm.has_critic
        wants_reference = bool(settings.reward_kl_coefficient or settings.update.loss.kl_coefficient)
        assert (reference is not None) == wants_reference
        self._actor = actor
        self._critic = critic
        self._reference = reference
        self._settings = settings
        self._ranks = ranks or Ranks()
        self._speeds = RankSpeeds(actor.model.device)

    def step(self, samples: Sequence[Sample], *, consumer: Policy, learning_rate: float) -> StepReport | None:
        """Train on the samples and change the weights in place. Return None if the loss sees none of their tokens.

        Samples without a reward take no part: not in the baseline of their group, and not in the loss.

        `consumer` is the policy at the start of the step: its version keys the shuffle.

        Raises: NonFiniteLoss if a loss, gradient, reward or log-probability is not finite; all weights and optimizer
        states are then as they were. ValueError as `collate` does.
        """
        judged = [sample for sample in samples if sample.reward is not None]
        if samples and not judged:
            return None
        batch = collate(judged, self._actor.model.device)
        if not batch.num_tokens:
            return None
        _check_finite(batch)
        self._ranks = self._speeds.measured(self._ranks)
        updates = self._updates(batch, consumer.version)
        # With several updates only the first starts from the proximal policy, so its scores are kept.
        has_mask = self._settings.update.loss.m2_threshold is not None
        targets = self._targets(batch, keep_proximal=len(updates) > 1 or has_mask)
        start_BT = torch.zeros_like(batch.behaviour_logprobs_BT)

        # With a single update its own forward pass gives the log-probabilities at the start of the step.
        def on_logprobs(index_B: torch.Tensor, logprobs_BT: torch.Tensor) -> None:
            start_BT.index_copy_(0, index_B, logprobs_BT)

        sums, entropy_sum, gradients, value_gradients = LossSums(), 0.0, [], []
        with self._undone_on_failure(num_updates=len(updates)):
            for number, rows in enumerate(updates):
                masked = self._masked(batch, targets, rows, is_first=number == 0) if has_mask else targets
                update = self._update(batch, masked, rows, learning_rate, on_logprobs)
                sums, entropy_sum = sums.plus(update.sums), entropy_sum + update.entropy_sum
                gradients.append(update.gradient)
                value_gradients += [update.value_gradient] if update.value_gradient else []
        # Each rank filled in its own rows and left zeros elsewhere, so that the sum over ranks is the whole tensor.
        at_start_BT = self._ranks.sum_(start_BT) if targets.proximal_BT is None else targets.proximal_BT
        mismatch = measure_mismatch(
            at_start_BT,
            batch.behaviour_logprobs_BT,
            batch.mask_BT,
            [sample.policies for sample in batch.samples],
            consumer=consumer,
            threshold=self._settings.mismatch_alarm,
        )
        importance = self._settings.update.loss.importance
        # Each token counts once for each update that sees it, as in the sums. Loss and norm are means over updates.
        num_counted = sum(batch.num_tokens_of(rows) for rows in updates)
        return StepReport(
            loss=_mean([gradient.loss for gradient in gradients]),
            grad_norm=_mean([gradient.norm for gradient in gradients]),
            entropy=entropy_sum / num_counted,
            clip_fraction=(sums.clipped_low + sums.clipped_high) / num_counted,
            clip_fraction_low=sums.clipped_low / num_counted,
            clip_fraction_high=sums.clipped_high / num_counted,
            mean_ratio=sums.ratio / num_counted,
            approx_kl=sums.approx_kl / num_counted,
            importance_weight=sums.weight / num_counted,
            cut_fraction=sums.cut / num_counted,
            weights=spread_of_weights(at_start_BT, batch.behaviour_logprobs_BT, batch.mask_BT, importance),
            reference_kl=_mean_k3(at_start_BT, targets.reference_BT, batch.mask_BT),
            value_loss=_mean([gradient.loss for gradient in value_gradients]) if value_gradients else None,
            critic_grad_norm=_mean([gradient.norm for gradient in value_gradients]) if value_gradients else None,
            num_updates=len(gradients),
            num_tokens=batch.num_tokens,
            mismatch=mismatch,
            samples=(
                *figures_of_samples(batch, targets.advantages_BT, at_start_BT),
                *(SampleFigures(s.group, s.sample, None, 0.0, 0.0, 0.0) for s in samples if s.reward is None),
            ),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold besides the actor's weights: optimizers, critic and reference.

        The values are plain tensors, numbers and strings.
        """
        state: dict[str, Any] = {"optimizer": self._actor.optimizer.state_dict()}
        if self._critic is not None:
            state["critic"] = self._critic.model.state_dict()
            state["critic_optimizer"] = self._critic.optimizer.state_dict()
        if self._reference is not None:
            state["reference"] = self._reference.model.state_dict()
        return state

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by their keys in the state."""
        critic = {} if self._critic is None else {"critic_optimizer": self._critic.optimizer}
        return {"optimizer": self._actor.optimizer, **critic}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned. Raises: ConfigError if it is from a job with other models or optimizers."""
        if state.keys() != self.state_dict().keys():
            raise ConfigError(
                f"the checkpoint holds {', '.join(sorted(state))}, but this job's learner needs "
                f"{', '.join(sorted(self.state_dict()))}; resume with the algorithm that made the checkpoint"
            )
        self._actor.optimizer.load_state_dict(state["optimizer"])
        if self._critic is not None:
            self._critic.model.load_state_dict(state["critic"])
            self._critic.optimizer.load_state_dict(state["critic_optimizer"])
        if self._reference is not None:
            self._reference.model.load_state_dict(state["reference"])

    # ---- parts of a step ------------------------------------------------------------------------------------------

    def _updates(self, batch: Batch, version: int) -> list[list[int]]:
        # The rows of each update of the step. An update in which the loss would see no token is left out.
        settings = self._settings
        epochs = [
            minibatch_rows(batch.groups, settings.minibatches, (settings.seed, version, epoch))
            for epoch in range(settings.epochs)
        ]
        return [rows for epoch in epochs for rows in epoch if batch.num_tokens_of(rows)]

    def _targets(self, batch: Batch, *, keep_proximal: bool) -> Targets:
        settings, temperature = self._settings, self._settings.update.temperature
        width_T, every_row = batch.num_columns, range(batch.num_rows)
        actor_BT = reference_BT = values_BU = kl_BT = None
        # Score all rows once with the weights at the start of the step.
        if keep_proximal or settings.reward_kl_coefficient:
            actor_BT = self._actor_logprobs(batch, every_row)
        if self._reference is not None:
            reference = self._reference
            reference_BT = self._scores(
                lambda part: completion_logprobs(reference, part, temperature), batch, every_row, width_T
            )
        if self._critic is not None:
            critic = self._critic.model
            values_BU = self._scores(lambda part: state_values(critic, part), batch, every_row, width_T + 1)
        if settings.reward_kl_coefficient:
            assert actor_BT is not None
            assert reference_BT is not None
            # The KL penalty of each token's reward, with the coefficient included.
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
        # Advantages come from all rows of the step, so they do not depend on minibatches, micro-batches or ranks.
        # All ranks hold the same scores, so that all of them refuse the step.
        scored = (actor_BT, reference_BT, values_BU)
        try:
            found = settings.algorithm.advantages(outcomes, settings.advantage)
        except ValueError:  # of a penalty that is not finite
            _check_scores(batch, *scored)
            raise
        # One read from the device for all of them.
        are_fit = [torch.isfinite(each[:, :width_T]) for each in (found.advantages_BT, *scored) if each is not None]
        if not bool((torch.stack(are_fit).all(0) | ~batch.mask_BT).all()):
            _check_scores(batch, *scored)
            raise NonFiniteLoss(
                f"the advantages of {batch.num_rows} samples with rewards from {min(batch.rewards)} to "
                f"{max(batch.rewards)} are not finite: the step was not applied; check the critic's values and the KL "
                "penalty"
            )
        return Targets(
            advantages_BT=found.advantages_BT.float(),
            proximal_BT=actor_BT,
            reference_BT=reference_BT,
            values_BU=values_BU,
            returns_BT=None if found.returns_BT is None else found.returns_BT.float(),
        )

    def _masked(self, batch: Batch, targets: Targets, rows: Sequence[int], *, is_first: bool) -> Targets:
        # The targets with M2PO's mask of an update, which all ranks find from the scores of all its rows.
        threshold, index_B = self._settings.update.loss.m2_threshold, batch.index(rows)
        logprobs_BT = targets.proximal_BT if is_first else self._actor_logprobs(batch, rows)
        assert threshold is not None
        assert logprobs_BT is not None
        tensors = (logprobs_BT, batch.behaviour_logprobs_BT, targets.advantages_BT, batch.mask_BT)
        found_BT = outside_trust_region(*(tensor[index_B] for tensor in tensors), m2_threshold=threshold)
        return replace(targets, untrusted_BT=torch.zeros_like(batch.mask_BT).index_copy_(0, index_B, found_BT))

    def _actor_logprobs(self, batch: Batch, rows: Sequence[int]) -> torch.Tensor:
        actor, temperature = self._actor.model, self._settings.update.temperature
        return self._scores(lambda part: completion_logprobs(actor, part, temperature), batch, rows, batch.num_columns)

    def _scores(
        self, score: Callable[[Batch], torch.Tensor], batch: Batch, rows: Sequence[int], width: int
    ) -> torch.Tensor:
        # Each rank scores its own of the rows. The rest stay 0, and the sum over ranks fills them in: [B, width].
        scores = torch.zeros((batch.num_rows, width), device=batch.device)
        limits = self._settings.update.micro_batch
        with torch.no_grad():
            for chosen in micro_batches_of_rank(rows, batch.sizes, limits, self._ranks):
                scores.index_copy_(0, batch.index(chosen), score(batch.take(chosen)))
        return self._ranks.sum_(scores)

    def _update(
        self,
        batch: Batch,
        targets: Targets,
        rows: Sequence[int],
        learning_rate: float,
        on_logprobs: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> "_Update":
        update, value_gradient, failure = self._settings.update, None, None
        try:
            gradient, sums, entropy_sum = actor_gradient(
                self._actor, batch, targets, rows, update, self._ranks, on_logprobs
            )
            if self._critic is not None:
                value_gradient = critic_gradient(self._critic, batch, targets, rows, update, self._ranks)
        except NonFiniteLoss as error:
            failure = error
        self._speeds.passed()
        # All ranks have found both gradients finite before any of them applies either.
        self._ranks.agree(failure)
        if self._critic is not None:
            apply(self._critic, learning_rate * self._settings.critic_rate)
        apply(self._actor, learning_rate)
        return _Update(gradient, sums, entropy_sum, value_gradient)

    @contextmanager
    def _undone_on_failure(self, *, num_updates: int) -> Iterator[None]:
        trained = [self._actor] + ([self._critic] if self._critic is not None else [])
        # A single update is found finite before it is applied, so no copy of the state before it is needed.
        kept = [_snapshot(each) for each in trained] if num_updates > 1 else []
        try:
            yield
        except BaseException:
            for each, before in zip(trained, kept, strict=False):
                _put_back(each, before)
            # A gradient that was not applied must not add to the next one.
            for each in trained:
                each.optimizer.zero_grad(set_to_none=True)
            raise


def minibatch_rows(groups: Sequence[int], num_minibatches: int, key: Sequence[int]) -> list[list[int]]:
    """Return the rows of each minibatch, in ascending order.

    `groups[i]` is the group of row i. The groups are shuffled with the random seed `key` and cut into `num_minibatches`
    parts of nearly equal numbers of groups, or into one part for each group if there are fewer groups. A group is never
    divided. A single minibatch holds all rows in order.
    """
    names = sorted(set(groups))
    shuffled = np.random.default_rng(tuple(key)).permutation(names)
    # At most one part for each group, so that no part is empty.
    parts = [{int(name) for name in part} for part in np.array_split(shuffled, min(num_minibatches, len(names)))]
    return [[row for row, group in enumerate(groups) if group in part] for part in parts]


def _check_finite(batch: Batch) -> None:
    # Padding and tool gaps may hold anything.
    for sample in batch.samples:
        if not (is_reward(reward_of(sample)) and bool(np.isfinite(sample.behaviour_logprobs[sample.mask]).all())):
            raise NonFiniteLoss(
                f"group {sample.group} sample {sample.sample} has the reward {sample.reward} (the limit is "
                f"{MAX_REWARD:.0f}), or a log-probability that is not finite: the step was not applied; check the "
                "reward function and the engine"
            )


def _check_scores(
    batch: Batch, actor: torch.Tensor | None, reference: torch.Tensor | None, values: torch.Tensor | None
) -> None:
    """Raise NonFiniteLoss if one of the scores at the start of a step is not finite, and name it."""
    for what, scores, where in (
        ("the policy's log-probabilities", actor, "the weights of this run"),
        ("the reference model's log-probabilities", reference, "the reference model"),
        ("the critic's values", values, "the critic's learning rate"),
    ):
        if scores is not None:
            _check_score(what, scores, batch, where)


def _check_score(what: str, scores: torch.Tensor, batch: Batch, where: str) -> None:
    bad_BT = ~torch.isfinite(scores[:, : batch.num_columns]) & batch.mask_BT
    if bool(bad_BT.any()):
        row, column = (int(index) for index in bad_BT.nonzero()[0])
        sample = batch.samples[row]
        raise NonFiniteLoss(
            f"{what} are not finite at {int(bad_BT.sum())} of {batch.num_tokens} tokens (the first one is "
            f"{float(scores[row, column])} at token {column} of group {sample.group} sample {sample.sample}): the step "
            f"was not applied; check {where}"
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
    kl_BT = kl_estimate(logprobs_BT, reference_BT, KlEstimator.K3).masked_fill(~mask_BT, 0.0)
    return float(kl_BT.sum(dtype=torch.float64) / mask_BT.sum())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
