"""Translates a job's keys into the settings of losses, advantages, optimizer and warm-up, and builds the learner.

This is the only module that knows both the job file and the settings of trainer/learning, which takes plain values
only. The job file was validated and resolved before. Keys that the algorithm does not use may be None, and take a
neutral default here.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from periplus.job.job_file import JobFile
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.critic import Critic
from trainer.learning.learner import Learner, LearnerSettings
from trainer.learning.losses.aggregate import Aggregation
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator
from trainer.learning.losses.objective import LossSettings
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.losses.surrogate import Clip
from trainer.learning.ranks import Ranks
from trainer.learning.schedule import Decay, learning_rate
from trainer.learning.step import Trained, UpdateSettings
from trainer.learning.warmup import WarmupSettings

WARMUP_LOSS_WINDOW = 5
"""Number of steps over which the warm-up's loss is averaged before it is compared with the target. Chosen by hand."""


def warmup_settings(job: JobFile) -> WarmupSettings:
    """Return the settings of the supervised warm-up, of a job that has one (`train.warmup` is set)."""
    warmup = job.train.warmup
    assert warmup is not None
    return WarmupSettings(
        max_steps=warmup.max_steps,
        batch_rows=warmup.batch_size,
        peak_learning_rate=warmup.lr,
        ramp_steps=warmup.ramp_steps,
        max_grad_norm=job.optimizer.max_grad_norm,
        weight_decay=warmup.weight_decay,
        target_loss=warmup.target_loss,
        loss_window=WARMUP_LOSS_WINDOW,
        seed=job.seed,
    )


def build_learner(
    job: JobFile,
    actor: Any,
    *,
    pad_id: int,
    ranks: Ranks | None = None,
    place: Callable[[Any], Any] = lambda model: model,
) -> Learner:
    """Build the learner of a resolved job around the actor as it is now.

    A copy of the actor becomes the reference policy of the KL term, if the job has one. A copy of it is also the
    backbone of the critic, if the algorithm has one. To resume, load the actor's weights, then the rest with
    `Learner.load_state_dict`.

    `place` moves a model to where it is trained, such as to several devices, and returns it. It is called for the
    copies before the actor, since a model that is divided cannot be copied.
    """
    settings = learner_settings(job)
    reference = place(deepcopy(actor).requires_grad_(False)) if job.algorithm.kl_coefficient else None
    critic = place(Critic(actor)) if settings.algorithm.has_critic else None
    actor = place(actor)
    return Learner(
        actor=Trained(model=actor, optimizer=_adamw(job, actor)),
        critic=None if critic is None else Trained(model=critic, optimizer=_adamw(job, critic)),
        reference=reference,
        settings=settings,
        pad_id=pad_id,
        ranks=ranks,
    )


def learner_settings(job: JobFile) -> LearnerSettings:
    """Return the learner's settings for a resolved job; they are the same in every step."""
    algorithm = job.algorithm
    estimator = KlEstimator(algorithm.kl_estimator or KlEstimator.K3)
    return LearnerSettings(
        algorithm=ALGORITHMS[algorithm.name],
        advantage=AdvantageSettings(
            normalise=algorithm.advantage_normalisation != "none",
            gamma=_or(algorithm.gamma, 1.0),
            gae_lambda=_or(algorithm.gae_lambda, 1.0),
            bootstrap_truncated=bool(algorithm.bootstrap_truncated),
            overlong_filter=bool(algorithm.overlong_filter),
            overlong_cache_tokens=algorithm.overlong_cache_tokens or 0,
            max_tokens=job.sampling.max_new_tokens,
        ),
        update=UpdateSettings(
            token_loss=ALGORITHMS[algorithm.name].token_loss,
            loss=_loss_settings(job),
            value_clip=algorithm.value_clip,
            temperature=job.sampling.temperature,
            max_grad_norm=job.optimizer.max_grad_norm,
            micro_batch_rows=job.train.micro_batch_samples,
        ),
        minibatches=job.train.minibatches,
        epochs=job.train.epochs,
        seed=job.seed,
        # The schedule gives the actor's rate, and the critic's follows it in this proportion.
        critic_rate=_or(algorithm.critic_lr, 0.0) / job.optimizer.lr if job.optimizer.lr else 0.0,
        reward_kl_coefficient=algorithm.kl_coefficient if algorithm.kl_in == "reward" else 0.0,
        reward_kl_estimator=estimator,
        mismatch_alarm=job.train.logprob_mismatch_alarm,
    )


def learning_rate_of(job: JobFile, step: int) -> float:
    """Return the learning rate of step `step`, counted from 0."""
    optimizer = job.optimizer
    return learning_rate(
        step,
        num_steps=job.steps,
        peak=optimizer.lr,
        ramp_steps=optimizer.warmup_steps,
        decay=Decay(optimizer.schedule),
        floor=optimizer.floor,
    )


def _loss_settings(job: JobFile) -> LossSettings:
    algorithm = job.algorithm
    assert algorithm.loss_aggregation is not None, "the job is not resolved"
    defaults = Importance()
    return LossSettings(
        clip=Clip(low=algorithm.clip_low, high=algorithm.clip_high, dual=algorithm.dual_clip),
        importance=Importance(
            correction=Correction(algorithm.importance_correction),
            level=Level(algorithm.importance_level or defaults.level),
            cap=_or(algorithm.importance_cap, defaults.cap),
            low=_or(algorithm.importance_low, defaults.low),
            high=_or(algorithm.importance_high, defaults.high),
        ),
        aggregation=Aggregation(algorithm.loss_aggregation),
        constant_tokens=_or(algorithm.loss_constant_tokens, 1),
        kl_coefficient=algorithm.kl_coefficient if algorithm.kl_in == "loss" else 0.0,
        kl_estimator=KlEstimator(algorithm.kl_estimator or KlEstimator.K3),
    )


def _adamw(job: JobFile, model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = job.optimizer
    return torch.optim.AdamW(
        model.parameters(), lr=optimizer.lr, betas=optimizer.betas, weight_decay=optimizer.weight_decay
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
