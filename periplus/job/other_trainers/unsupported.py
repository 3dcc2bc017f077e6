"""Settings of other trainers that a Periplus job does not have, each with the advice that a user gets for it.

The names are those of TRL, verl, OpenRLHF, prime-rl and vLLM. Such a key is refused as not supported yet, with what to
do instead, rather than as a misspelt key. Names for which a job has its own key are in
`periplus.job.other_trainers.known_elsewhere`. A test checks that no name here is a key of the job
file, apart from those of evaluations, which are refused for training.
"""

from collections.abc import Mapping
from types import MappingProxyType

from periplus.config.loading import NotSupported

ONLY_IN_EVALUATION = ("top_p", "top_k", "min_new_tokens")
"""Keys of eval.sampling that `sampling`, which is for training, does not have."""

_WHY: Mapping[str, tuple[str, ...]] = {
    "training draws from the whole distribution, since the losses need the probability that each token was drawn with, "
    "and the trainer cannot know which tokens were ruled out; sampling.temperature is the one setting, and evaluation "
    "has its own in eval.sampling": (
        *ONLY_IN_EVALUATION,
        "min_tokens",
        "min_completion_length",
    ),
    "samples are drawn from the whole distribution, since the losses need the probability that each token was drawn "
    "with; sampling.temperature is the one setting": (
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "num_beams",
        "best_of",
        "logit_bias",
    ),
    "a completion ends at the tokenizer's end token, at a text of sampling.stop or at sampling.max_new_tokens": (
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
    ),
    "sampling has temperature, stop and max_new_tokens for training, and eval.sampling those of evaluation": (
        "generation_kwargs",
        "generation_config",
        "sampling_params",
    ),
    "adapters have no dropout, since samples are scored by the model that sampled them; leave it out": (
        "lora_dropout",
    ),
    "the base under adapters is held in bfloat16; leave it out": ("qlora",),
    "weights are float32 in training and bfloat16 when published; train.dtype chooses what passes compute in": (
        "load_in_4bit",
        "load_in_8bit",
        "quantization",
        "quantization_config",
        "kv_cache_dtype",
        "fp8",
        "fp16",
    ),
    "engines are torch and vllm, and the section engine has their settings; others are the engine's own defaults": (
        "vllm_mode",
        "vllm_config",
        "sglang",
        "enforce_eager",
        "enable_prefix_caching",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "speculative_config",
    ),
    "train.devices and train.sharding say how devices share the trained model (FSDP2 or copies); leave this out": (
        "fsdp",
        "fsdp2",
        "fsdp_config",
        "deepspeed",
        "zero_stage",
        "megatron",
        "strategy",
        "accelerate",
        "ddp",
        "tensor_model_parallel_size",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_parallel_size",
        "ulysses_sequence_parallel_size",
        "param_offload",
        "optimizer_offload",
        "cpu_offload",
        "torch_compile",
        "use_liger_kernel",
        "use_liger_loss",
        "attn_implementation",
        "flash_attn",
        "use_remove_padding",
    ),
    "the planner places a job over the regions that have joined; regions.trainer, regions.rollout and "
    "plan.workers_per_region guide it": (
        "nnodes",
        "num_nodes",
        "num_gpus",
        "actor_num_nodes",
        "vllm_num_engines",
        "colocate_all_models",
        "placement",
        "resource_pool",
        "gpus",
        "hardware",
    ),
    "tools and conversations are an environment of several turns, which environment names (docs/environments.md)": (
        "multi_turn",
        "tools",
        "tool_config_path",
        "tool_kwargs",
        "agent_loop",
        "interaction",
        "rollout_func",
    ),
    "a reward function of one's own may ask a service, and reward.functions lists it by its import path": (
        "remote_rm_url",
        "reward_manager",
    ),
    "the KL reference (algorithm.kl_reference) stays as it is, and algorithm.kl_coefficient is constant": (
        "sync_ref_model",
        "ref_model_sync_steps",
        "ref_model_mixup_alpha",
        "kl_target",
        "kl_horizon",
        "target_kl",
        "adaptive_kl",
        "adap_kl_ctrl",
    ),
    "the loss has no such term; docs/design/0004-losses.md lists what each algorithm has": (
        "entropy_coeff",
        "entropy_coef",
        "entropy_bonus",
        "entropy_loss_coef",
        "top_entropy_quantile",
        "ptx_coef",
        "sft_loss_coef",
        "teacher_model",
        "distillation",
        "use_bias_correction_kl",
    ),
    "the critic of ppo starts as a copy of the actor, with a value head of zeros": (
        "critic_model",
        "critic_path",
        "critic_pretrain",
        "value_model",
        "value_model_path",
        "critic_warmup",
    ),
    "nothing is downloaded: `hf download NAME` brings a model or a data set into the local cache, where model.path and "
    "data.path find it by its name": (
        "hub_model_id",
        "push_to_hub",
        "hf_token",
        "trust_remote_code",
        "cache_dir",
    ),
    "data.path or data.sources name the problems, and held-out problems are taken from them": (
        "val_files",
        "eval_dataset",
    ),
    "every step's record goes to metrics.jsonl in the run's directory, and to the trackers that output.trackers names: "
    "tensorboard, wandb, trackio": (
        "mlflow",
        "swanlab",
        "comet_ml",
        "clearml",
        "log_completions",
        "logging_steps",
    ),
    "accounts and credentials are no part of a job; set wandb's own variables in the trainer's environment, such as "
    "WANDB_MODE and WANDB_ENTITY": (
        "wandb_entity",
        "wandb_api_key",
        "wandb_key",
        "wandb_org",
        "wandb_group",
        "wandb_mode",
        "wandb_team",
    ),
    "a job is as long as steps says; set it to the problems to be seen, divided by train.groups_per_step": (
        "num_train_epochs",
        "total_epochs",
        "num_epochs",
        "num_episodes",
        "max_epochs",
    ),
    "a run is continued by `periplus job submit FILE --resume RUN_DIR`": (
        "resume",
        "resume_from",
        "resume_from_checkpoint",
        "resume_mode",
        "resume_path",
        "load_checkpoint",
    ),
    "optimizer.warmup_steps counts steps": ("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio"),
    "this is a section of another tool's file; `periplus job schema` prints the keys of a job": (
        "actor_rollout_ref",
        "orchestrator",
        "inference",
        "policy",
        "generation",
        "grpo_config",
        "hydra",
    ),
}

UNSUPPORTED: Mapping[str, NotSupported] = MappingProxyType(
    {name: NotSupported(instead) for instead, names in _WHY.items() for name in names}
)
"""The advice for each unsupported setting, by the last part of its name, such as `top_p` in `sampling.top_p`."""
