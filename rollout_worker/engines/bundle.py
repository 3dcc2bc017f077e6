"""Builds tokenizer, environment and engine from the files of a job's bundle.

An engine has the bundle's model configuration and random weights, which are never used: the first full state overwrites
them before the first lease is started.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from periplus.environment.completions import end_token_ids
from periplus.environment.environment import Environment
from periplus.environment.job_environment import prompt_encoder, worker_environment
from periplus.environment.prompts import PromptEncoder
from periplus.errors import ConfigError, EngineRefused, one_line
from periplus.job.architectures import attention_function
from periplus.job.job_file import JobFile
from periplus.job.reward_code import CODE_FOLDER
from periplus.process import telemetry
from periplus.values.probe_prompts import PROBE_FILE
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.cards import (
    card,
    cards_of_new_process,
    check_torch_fits,
    check_vllm_dtype,
    check_vllm_fits,
    slot_bytes,
    torch_dtype,
    weight_bytes,
)
from rollout_worker.engines.engine import Engine, OnSwap
from rollout_worker.engines.request_limits import RequestLimits
from rollout_worker.engines.slot_decoder import LAG, SLOTS_PER_KEPT_PROMPT
from rollout_worker.engines.torch_engine import TorchEngine

log = logging.getLogger(__name__)

NUM_SLOTS = 64
"""Requests that decode at the same time, unless the job says otherwise: with vLLM on a CPU, on each server of
`engine.url`, and with torch if more would need too much memory."""

MORE_SLOTS, MORE_SLOTS_BYTES = 128, 1 << 30
"""Requests of the engine torch, if their keys and values have at most so many bytes in float32. With 4.7 M parameters
in bfloat16 a whole job is a tenth faster than with 64, and 256 give no more (bench/results/2026-11-26-engines.md)."""

CPU_CACHE_GIB = 1.0
"""Memory of vLLM's keys and values on a CPU, unless the job says otherwise. Chosen by hand: some hundred requests of a
small model."""

GPU_SHARE = 0.9
"""Share of a GPU's memory that vLLM takes, unless the job says otherwise. vLLM 0.32's own is 0.92."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBundle:
    """What a worker builds from a bundle. The encoder has a Hugging Face tokenizer.

    `relative_rounding` is the trainer's own (periplus/values/probe_prompts.py), or None if it could not measure it.
    """

    engine: Engine
    encoder: PromptEncoder
    environment: Environment
    relative_rounding: float | None


async def load_bundle(
    files: Mapping[str, bytes], scratch: Path, job: JobFile, *, by_turns: bool = False
) -> LoadedBundle:
    """Write the bundle's files into the folder `scratch`, and build from them.

    With `by_turns` the engine can give up its device's memory for a time, if it knows how. Raises: ConfigError.
    """
    tokenizer, environment = await asyncio.to_thread(_unpacked, files, scratch, job)
    engine = await build_engine(scratch, tokenizer, job, by_turns=by_turns)
    rounding = json.loads(files[PROBE_FILE])["relative_rounding"] if PROBE_FILE in files else None
    return LoadedBundle(
        engine=engine,
        encoder=prompt_encoder(job, tokenizer, scratch),
        environment=environment,
        relative_rounding=rounding,
    )


def _unpacked(files: Mapping[str, bytes], scratch: Path, job: JobFile) -> tuple[Any, Environment]:
    for name, content in files.items():
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if not name.startswith(CODE_FOLDER):
            target.chmod(0o600)
    # The user's code may run as another user (rewards/apart.py), who sees nothing else here.
    scratch.chmod(0o711)
    # Nothing is fetched: all files came with the bundle.
    tokenizer = AutoTokenizer.from_pretrained(scratch, local_files_only=True)
    return tokenizer, worker_environment(job, scratch)


async def build_engine(folder: Path, tokenizer: Any, job: JobFile, *, by_turns: bool = False) -> Engine:
    """Build the job's engine for the model whose configuration lies in `folder`, on this machine's device.

    Raises: EngineRefused if it is not installed, or does not start on the device. ConfigError if the servers of
    `engine.url` do not serve the model.
    """
    engine: Engine
    try:
        match job.engine.name:
            case "torch":
                engine = await asyncio.to_thread(_torch_engine, folder, tokenizer, job)
            case "vllm":
                engine = await _vllm_engine(folder, tokenizer, job, by_turns=by_turns)
    except ConfigError as error:
        if job.engine.url:
            raise
        raise EngineRefused(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise EngineRefused(f"the engine {job.engine.name} does not fit into its device: {one_line(error)}") from error
    lora = job.model.lora
    return engine if lora is None else AdapterEngine(engine, lora.alpha / lora.rank)


def context_tokens(job: JobFile) -> int:
    """Return the most tokens that an engine gets as prompt: a later turn's prompt holds the turns before it."""
    has_turns = job.environment is not None and job.environment.has_turns
    return job.sampling.prompt_tokens + (job.sampling.max_new_tokens if has_turns else 0)


def _torch_engine(folder: Path, tokenizer: Any, job: JobFile) -> TorchEngine:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    here = card(0) if device.type == "cuda" else None
    dtype = torch_dtype(job.engine.dtype, here)
    telemetry.event(log, logging.INFO, "engine_computes_in", dtype=dtype, device=str(here or device))
    attention = attention_function(config)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention).eval()
    model = model.requires_grad_(False).to(device)
    # With a prompt that is kept, for so many slots.
    num_columns = int(context_tokens(job) * (1 + 1 / SLOTS_PER_KEPT_PROMPT)) + job.sampling.max_new_tokens + LAG
    fits_more = MORE_SLOTS * slot_bytes(config, num_columns, torch.float32) <= MORE_SLOTS_BYTES
    num_slots = job.engine.max_requests or (MORE_SLOTS if fits_more else NUM_SLOTS)
    if device.type == "cuda":
        check_torch_fits(card(0), config, num_slots=num_slots, num_columns=num_columns, dtype=model.dtype)
    return TorchEngine(
        model=model,
        end_ids=end_token_ids(folder, tokenizer),
        pad_id=tokenizer.pad_token_id,
        num_slots=num_slots,
        prompt_tokens=context_tokens(job),
        max_new_tokens=job.sampling.max_new_tokens,
    )


async def _vllm_engine(folder: Path, tokenizer: Any, job: JobFile, *, by_turns: bool) -> Engine:
    on_swap = OnSwap(job.engine.on_swap)
    vocab_size = int(AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().vocab_size)
    limits = RequestLimits(
        vocab_size=vocab_size,
        prompt_tokens=context_tokens(job),
        max_new_tokens=job.sampling.max_new_tokens,
    )
    try:
        if job.engine.url:
            from rollout_worker.engines.vllm.served import served_engine

            return await served_engine(
                job.engine.url,
                limits=limits,
                end_ids=end_token_ids(folder, tokenizer),
                num_slots=job.engine.max_requests or NUM_SLOTS,
                on_swap=on_swap,
                api_key=os.environ.get("VLLM_API_KEY"),
            )
        await asyncio.to_thread(_import_vllm)
        from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend, VllmSettings
        from rollout_worker.engines.vllm.vllm_engine import VllmEngine, check_on_swap
    except ImportError as error:
        raise ConfigError(
            f"engine.name is vllm, but this interpreter has no vLLM ({error}); start the agent with "
            "--engine vllm=PYTHON of an environment that has it (docs/engines.md)"
        ) from error
    _name_architecture(folder)
    on_gpu = torch.cuda.is_available()
    gib = job.engine.kv_cache_gib or (None if on_gpu else CPU_CACHE_GIB)
    cache_bytes = None if gib is None else int(gib * (1 << 30))
    dtype = "bfloat16" if job.engine.dtype == "auto" else job.engine.dtype
    if on_gpu and by_turns and cache_bytes is None:
        raise ConfigError(
            "the engine shares its GPU with the trainer, whose states stay there while it samples; set "
            "engine.kv_cache_gib to what they leave"
        )
    if on_gpu:
        await asyncio.to_thread(_check_cards, folder, job, dtype, cache_bytes)
    backend = await AsyncLlmBackend.start(
        VllmSettings(
            folder=folder,
            dtype=dtype,
            num_slots=job.engine.max_requests or (None if on_gpu else NUM_SLOTS),
            max_tokens=context_tokens(job) + job.sampling.max_new_tokens,
            ranks=job.engine.tensor_parallel or 1,
            cache_bytes=cache_bytes,
            gpu_share=job.engine.gpu_share or GPU_SHARE,
            eager=not on_gpu,  # compilation is off there: the first batch would wait for it for 20 seconds
            can_sleep=by_turns and on_gpu,
        )
    )
    try:
        check_on_swap(on_swap, backend)
    except ConfigError:
        await backend.close()
        raise
    return VllmEngine(
        backend=backend,
        limits=limits,
        end_ids=end_token_ids(folder, tokenizer),
        num_slots=backend.num_slots,
        computes_in_bfloat16=dtype == "bfloat16",
    )


def _check_cards(folder: Path, job: JobFile, dtype: str, cache_bytes: int | None) -> None:
    # Raises ConfigError: vLLM itself would find out after half a minute, and name keys of its own.
    ranks = job.engine.tensor_parallel or 1
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    cards = cards_of_new_process()[:ranks]
    check_vllm_dtype(cards, dtype)
    check_vllm_fits(
        cards,
        share=job.engine.gpu_share or GPU_SHARE,
        cache_bytes=cache_bytes,
        weight_bytes=weight_bytes(config, getattr(torch, dtype)) // ranks,
    )


def _import_vllm() -> None:
    # vLLM is imported only for a job that asks for it: it takes 15 seconds, and has an environment of its own.
    import rollout_worker.engines.vllm.async_llm_backend  # noqa: F401  # for those who import it next


def _name_architecture(folder: Path) -> None:
    # Without a class in its configuration, vLLM takes a model for one that only embeds text. A configuration that
    # transformers saved without the model has none; then it is the causal language model of its type, as everywhere.
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    if not config.get("architectures") and config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        config["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config["model_type"]]]
        file.write_text(json.dumps(config), encoding="utf-8")
