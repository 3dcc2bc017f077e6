"""Translates a job's keys into the settings of losses, advantages, optimizer and warm-up, and builds the learner.

It also decides how the model computes: in which dtype, in passes of how many tokens, and whether layers recompute
their activations (trainer/learning/forward has the rules). The model's device is where everything happens.

This is the only module that knows both the job file and the settings of trainer/learning, which takes plain values
only. The job file was validated and resolved before. Keys that the algorithm does not use may be None, and take a
neutral default here.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, assert_never

import torch
from transformers import PretrainedConfig

from periplus.job.inputs import reference_folder
from periplus.job.job_file import JobFile
from periplus.job.train_section import SMALL_MODEL, ShardingChoice
from trainer.data.adapters import AdapterSettings, inject, round_base, trained_parameters
from trainer.data.pretrained import load_weights
from trainer.learning.advantages import AdvantageSettings
from trainer.learning.critic import Critic
from trainer.learning.forward.attention import is_packable, use_packed_attention
from trainer.learning.forward.compiled import compile_layers, is_compiled
from trainer.learning.forward.memory import (
    CPU_ACTIVATION_BYTES,
    ModelWidths,
    PassPlan,
    activation_budget,
    free_device_bytes,
    plan_pass,
    state_bytes,
)
from trainer.learning.forward.precision import compute_dtype, has_bfloat16_units
from trainer.learning.forward.recomputation import is_recomputed, recompute_layers
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.learner import Learner, LearnerSettings
from trainer.learning.losses.aggregate import Aggregation
from trainer.learning.losses.importance import Correction, Importance, Level
from trainer.learning.losses.kl import KlEstimator
from trainer.learning.losses.objective import LossSettings
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.losses.surrogate import Clip
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.learning.muon import MuonWithAdamW
from trainer.learning.ranks import Ranks
from trainer.learning.step import Trained, UpdateSettings
from trainer.learning.transformers_schedule import scheduled_rate
from trainer.learning.warmup import WarmupSettings

PLANNED_SHARE = 0.75
"""Largest share of a GPU's free memory that weights, gradients and optimizer take where a plan says how ranks divide
them. Chosen by hand: the rest is for activations."""
OPEN_SHARE = 0.5
"""The same share where nothing says it. Chosen by hand."""
WARMUP_LOSS_WINDOW = 5
"""Number of steps over which the warm-up's loss is averaged before it is compared with the target. Chosen by hand."""


def policy_scorer(job: JobFile, model: Any) -> PolicyScorer:
    """Return the scorer of a job's model, which computes as the job says on the model's device.

    The model is prepared for it: for packed sequences if its architecture allows it, compiled if the job asks for it,
    and for recomputation if the job asks for it or memory does. Its own calls give the same results as before, but for
    rounding in compiled layers. A second call prepares nothing again. Raises: ConfigError if layers are to be compiled
    and this machine has no compiler.
    """
    use_packed_attention(model)
    if job.train.compile and not is_compiled(model):
        compile_layers(model)
    if pass_plan(job, model).recompute and not is_recomputed(model):
        recompute_layers(model)
    return PolicyScorer(model, compute_dtype=_compute_dtype(job, model, model.device))


def pass_plan(job: JobFile, model: Any, device: torch.device | None = None, num_ranks: int | None = None) -> PassPlan:
    """Return the size of a forward and backward pass in tokens, and whether layers recompute their activations.

    `device` is where the model computes; None is the device on which it is. What the job leaves open depends, on a GPU,
    on the memory that is free now, and on how many ranks divide the model: None for all.
    """
    device = device or model.device
    dtype, train = _compute_dtype(job, model, device), job.train
    is_open = train.micro_batch_tokens is None or train.activation_checkpointing == "auto"
    return plan_pass(
        model_widths(model.config),
        dtype_bytes=dtype.itemsize,
        budget_bytes=_activation_budget_bytes(job, model, device, dtype, num_ranks) if is_open else 0,
        longest=job.sampling.prompt_tokens + job.sampling.max_new_tokens,
        device_type=device.type,
        tokens=train.micro_batch_tokens,
        recompute=None if train.activation_checkpointing == "auto" else train.activation_checkpointing == "on",
    )


def model_widths(config: PretrainedConfig) -> ModelWidths:
    """Return the sizes of a model that decide about activation memory, from its configuration in transformers."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return ModelWidths(
        layers=config.num_hidden_layers,
        hidden=hidden,
        attention=head_dim * (heads + 2 * kv_heads),
        # Four times the hidden width is the custom of models that do not say.
        mlp=getattr(config, "intermediate_size", None) or 4 * hidden,
        logits=0 if is_packable(config) else config.vocab_size,
    )


def _compute_dtype(job: JobFile, model: Any, device: torch.device) -> torch.dtype:
    return compute_dtype(
        job.train.dtype,
        device=device,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        has_bfloat16_units=has_bfloat16_units(device),
    )


def _activation_budget_bytes(
    job: JobFile, model: Any, device: torch.device, dtype: torch.dtype, num_ranks: int | None
) -> int:
    if device.type != "cuda":
        return CPU_ACTIVATION_BYTES
    return activation_budget(free_device_bytes(device), _taken_bytes(job, model, device, dtype, num_ranks))


def _taken_bytes(job: JobFile, model: Any, device: torch.device, dtype: torch.dtype, num_ranks: int | None) -> int:
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return state_bytes(
        num_parameters,
        num_trained=0 if job.model.lora is not None else num_parameters,  # adapters are small: the margin has them
        moments=bool(job.optimizer.momentum) if job.optimizer.name == "sgd" else 2,
        has_critic=ALGORITHMS[job.algorithm.name].has_critic,
        has_reference=bool(job.algorithm.kl_coefficient),
        is_rounded=dtype != torch.float32,
        is_placed=model.device == device,
        num_ranks=num_ranks or job.train.devices,
    )


def warmup_settings(job: JobFile, model: Any) -> WarmupSettings:
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
        micro_batch=_micro_batch(job, model),
        seed=job.seed,
    )


def settled(
    job: JobFile, model: Any, device: torch.device, ranks: Sequence[int] = (), planned_sharding: str = ""
) -> JobFile:
    """Return the job with what it leaves open about forward passes and sharding decided for a device.

    `ranks` are the numbers of ranks of the trainer's machines. Ranks that share a step must decide alike, also if only
    one of them has the weights on that device. `planned_sharding` is taken if the job leaves it open and a copy fits.
    """
    kind = _compute_dtype(job, model, device)
    shards: dict[ShardingChoice, int] = {"full": sum(ranks), "none": 1}
    if len(ranks) > 1 and len(set(ranks)) == 1:
        shards["hybrid"] = ranks[0]
    sharding = _sharding(job, model, device, shards, planned_sharding)
    plan = pass_plan(job, model, device, shards[sharding])
    decided = {
        "dtype": str(kind).removeprefix("torch."),
        "micro_batch_tokens": plan.tokens,
        "activation_checkpointing": "on" if plan.recompute else "off",
        "sharding": "none" if shards[sharding] == 1 else sharding,
    }
    return job.model_copy(update={"train": job.train.model_copy(update=decided)})


def _sharding(
    job: JobFile, model: Any, device: torch.device, shards: Mapping[ShardingChoice, int], planned: str
) -> ShardingChoice:
    """Return how ranks divide the model. `shards` has what they can do, with the number of ranks that share a copy."""
    wanted = job.train.sharding
    if wanted != "auto":
        return wanted if wanted in shards else "full"
    if device.type != "cuda":
        is_small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL_MODEL
        return next((name for name in shards if name == planned), "none" if is_small and shards["full"] > 1 else "full")
    kind, free = _compute_dtype(job, model, device), free_device_bytes(device)
    taken = {name: _taken_bytes(job, model, device, kind, num) for name, num in shards.items()}
    for name in shards:
        # A plan counts no activations, and fewer bytes a parameter.
        if name == planned and (name == "full" or taken[name] <= PLANNED_SHARE * free):
            return name
    fewest_messages_first = sorted(shards, key=lambda name: shards[name])
    return next(
        (name for name in fewest_messages_first if shards["full"] > 1 and taken[name] <= OPEN_SHARE * free), "full"
    )


def build_learner(
    job: JobFile, actor: Any, *, ranks: Ranks | None = None, place: Callable[[Any], None] = lambda module: None
) -> Learner:
    """Build the learner of a resolved job around the actor as it is now, on the actor's device.

    The reference policy of the KL term, if the job has one, is the checkpoint that the job names or else a copy of the
    actor. A copy of the actor is also the backbone of the critic, if the algorithm has one. Adapters are added to the
    actor, if the job has some. To resume, load the actor's weights, then the rest with `Learner.load_state_dict`.

    `place` moves a PolicyScorer or Critic, in place, to where it is trained, such as to several devices. It is called
    for the copies before the actor, since a model that is divided cannot be copied.
    """
    job = settled(job, actor, actor.device)  # once: what is free on a GPU changes while the learner is built
    adapters = adapter_settings(job)
    if adapters is not None:
        round_base(actor)  # before it is copied, so that all copies are those of the base that readers have
    scorer = policy_scorer(job, actor)
    settings = learner_settings(job, actor)
    reference = _reference(job, scorer) if job.algorithm.kl_coefficient else None
    if reference is not None:
        place(reference)
    critic = Critic(actor, compute_dtype=scorer.compute_dtype) if settings.algorithm.has_critic else None
    if critic is not None:
        place(critic)
    if adapters is not None:
        inject(actor, adapters, job.seed)
    place(scorer)
    return Learner(
        actor=Trained(model=scorer, optimizer=_optimizer(job, scorer)),
        critic=None if critic is None else Trained(model=critic, optimizer=_optimizer(job, critic)),
        reference=reference,
        settings=settings,
        ranks=ranks,
    )


def _reference(job: JobFile, actor: PolicyScorer) -> PolicyScorer:
    """Return the reference policy: a copy of the actor, or the checkpoint that the job names."""
    folder = reference_folder(job)
    if folder is None:
        return deepcopy(actor).requires_grad_(False)
    model = load_weights(folder).to(next(actor.parameters()).device)
    return policy_scorer(job, model).requires_grad_(False)


def adapter_settings(job: JobFile) -> AdapterSettings | None:
    """Return the settings of a job's adapters, or None if all weights are trained."""
    lora = job.model.lora
    if lora is None:
        return None
    return AdapterSettings(rank=lora.rank, alpha=lora.alpha, target_modules=lora.target_modules)


def learner_settings(job: JobFile, model: Any) -> LearnerSettings:
    """Return the learner's settings for a resolved job and its model; they are the same in every step."""
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
            micro_batch=_micro_batch(job, model),
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
    """Return the learning rate of step `step`, counted from 0. Raises: ConfigError for options that it cannot have."""
    rate, optimizer = job.learning_rate(step), job.optimizer
    if rate is not None:
        return rate
    return scheduled_rate(
        step,
        name=optimizer.schedule,
        num_steps=job.steps,
        peak=optimizer.lr,
        ramp_steps=optimizer.warmup_steps,
        options=optimizer.schedule_options,
    )


def _micro_batch(job: JobFile, model: Any) -> MicroBatchLimits:
    return MicroBatchLimits(rows=job.train.micro_batch_samples, tokens=pass_plan(job, model).tokens)


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
        m2_threshold=algorithm.m2_threshold,
    )


def _optimizer(job: JobFile, model: torch.nn.Module) -> torch.optim.Optimizer:
    chosen, named = job.optimizer, list(trained_parameters(model))
    parameters = [parameter for _, parameter in named]
    shared: dict[str, Any] = {"lr": chosen.lr, "weight_decay": chosen.weight_decay}
    match chosen.name:
        case "adamw":
            # One pass over the memory: 8 ms in place of 20 for 4.7 M parameters on a core.
            return torch.optim.AdamW(parameters, betas=chosen.betas, fused=True, **shared)
        case "sgd":
            return torch.optim.SGD(parameters, momentum=_or(chosen.momentum, 0.0), **shared)
        case "muon":
            return MuonWithAdamW(named, betas=chosen.betas, momentum=_or(chosen.momentum, 0.95), **shared)
        case _:
            assert_never(chosen.name)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
