"""Settings that other trainers have and a Periplus job does not: what to say to who gives one.

Names are those of TRL, verl, OpenRLHF, prime-rl and vLLM. Each is refused as not supported yet, with what to do
instead, and not as a misspelt key. Names for which a job has a key are in `periplus.job.job_file.KNOWN_ELSEWHERE`. A
test holds that no name here is a key of ours.
"""

from collections.abc import Mapping
from types import MappingProxyType

from periplus.config.loading import NotSupported

_WHY: Mapping[str, tuple[str, ...]] = {
    "samples are drawn from the whole distribution, since the losses need the probability that each token was drawn "
    "with; sampling.temperature is the one setting": (
        "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "num_beams", "best_of", "logit_bias",
    ),
    "a completion ends at the tokenizer's end token or at sampling.max_new_tokens": (
        "stop", "stop_strings", "stop_token_ids", "ignore_eos", "min_tokens", "min_new_tokens", "min_completion_length",
    ),
    "all weights are trained; merge an adapter into its model before you give it as model.path": (
        "lora", "lora_rank", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "target_modules", "peft",
        "peft_config", "use_peft", "use_lora", "qlora",
    ),
    "models train in float32 and are published in bfloat16": (
        "load_in_4bit", "load_in_8bit", "quantization", "quantization_config", "kv_cache_dtype", "fp8", "fp16", "bf16",
        "torch_dtype", "dtype", "model_dtype", "mixed_precision",
    ),
    "rollouts run on the embedded torch engine; leave this out": (
        "vllm", "use_vllm", "vllm_mode", "vllm_config", "sglang", "engine", "inference_engine", "rollout_engine",
        "gpu_memory_utilization", "vllm_gpu_memory_utilization", "enforce_eager", "enable_prefix_caching",
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "speculative_config",
    ),
    "one trainer process holds the whole model; leave this out": (
        "fsdp", "fsdp2", "fsdp_config", "deepspeed", "zero_stage", "megatron", "strategy", "accelerate", "ddp",
        "tensor_parallel_size", "tensor_model_parallel_size", "vllm_tensor_parallel_size", "pipeline_parallel_size",
        "pipeline_model_parallel_size", "data_parallel_size", "context_parallel_size", "expert_parallel_size",
        "ulysses_sequence_parallel_size", "num_processes", "param_offload", "optimizer_offload", "cpu_offload",
        "gradient_checkpointing", "enable_gradient_checkpointing", "activation_checkpointing", "torch_compile",
        "use_liger_kernel", "use_liger_loss", "attn_implementation", "flash_attn", "use_remove_padding",
        "use_dynamic_bsz",
    ),
    "the planner places a job over the regions that have joined; regions.trainer, regions.rollout and "
    "plan.workers_per_region guide it": (
        "nnodes", "n_gpus_per_node", "num_nodes", "num_gpus", "num_gpus_per_node", "actor_num_nodes",
        "actor_num_gpus_per_node", "vllm_num_engines", "colocate_all_models", "placement", "resource_pool", "gpus",
        "devices", "hardware",
    ),
    "an episode is one prompt and one completion": (
        "multi_turn", "max_turns", "max_assistant_turns", "max_user_turns", "tools", "tool_config_path", "tool_kwargs",
        "agent_loop", "interaction", "max_tool_calling_iterations", "rollout_func",
    ),
    "a sample is scored by its environment's verifier, or by an exact match with the answers of data.path": (
        "reward_model", "reward_model_path", "reward_funcs", "reward_fn", "reward_function", "reward_weights",
        "custom_reward_function", "reward_pretrain", "remote_rm_url", "rubric", "verifier", "reward_manager",
    ),
    "the KL reference is the policy that the job starts from, and algorithm.kl_coefficient is constant": (
        "ref_model", "ref_model_path", "reference_model", "sync_ref_model", "ref_model_sync_steps",
        "ref_model_mixup_alpha", "kl_target", "kl_horizon", "target_kl", "adaptive_kl", "adap_kl_ctrl",
    ),
    "the loss has no such term; docs/design/0004-losses.md lists what each algorithm has": (
        "entropy_coeff", "entropy_coef", "entropy_bonus", "entropy_loss_coef", "top_entropy_quantile", "ptx_coef",
        "sft_loss_coef", "teacher_model", "distillation", "use_bias_correction_kl",
    ),
    "the critic of ppo starts as a copy of the actor, with a value head of zeros": (
        "critic_model", "critic_path", "critic_pretrain", "value_model", "value_model_path", "critic_warmup",
    ),
    "nothing is downloaded: `hf download NAME --local-dir DIR` gets files, which model.path and data.path name": (
        "dataset_name", "dataset_id", "dataset_config", "hub_model_id", "push_to_hub", "hf_token", "revision",
        "model_revision", "trust_remote_code", "cache_dir",
    ),
    "data.path is one JSONL file with a prompt and an answer in each line; held-out problems are taken from it": (
        "dataset", "datasets", "train_files", "val_files", "prompt_data", "eval_dataset", "train_dataset", "input_key",
        "prompt_key", "label_key", "answer_key", "prompt_column",
    ),
    "a prompt is framed by the chat template of the model's tokenizer; put other text into the prompts": (
        "chat_template", "system_prompt", "apply_chat_template", "input_template", "chat_template_kwargs",
    ),
    "step records go to metrics.jsonl in the run's directory; read that file": (
        "wandb", "use_wandb", "wandb_project", "wandb_run_name", "tensorboard", "mlflow", "swanlab", "logger",
        "monitor", "log_completions", "logging_steps",
    ),
    "a job is as long as steps says; set it to the problems to be seen, divided by train.groups_per_step": (
        "num_train_epochs", "total_epochs", "num_epochs", "num_episodes", "max_epochs",
    ),
    "a run is continued by `periplus job submit FILE --resume RUN_DIR`": (
        "resume", "resume_from", "resume_from_checkpoint", "resume_mode", "resume_path", "load_checkpoint",
    ),
    "optimizer.warmup_steps counts steps": ("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio"),
    "this is a section of another tool's file; `periplus job schema` prints the keys of a job": (
        "actor_rollout_ref", "orchestrator", "inference", "policy", "generation", "grpo_config", "hydra",
    ),
}  # fmt: skip

UNSUPPORTED: Mapping[str, NotSupported] = MappingProxyType(
    {name: NotSupported(instead) for instead, names in _WHY.items() for name in names}
)
"""Sentences by the last part of a name, such as `top_p` in `sampling.top_p`."""
