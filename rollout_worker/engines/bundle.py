"""Builds tokenizer, environment and engine from the files of a job's bundle.

The model has the bundle's configuration and random weights, which are never used: the first full state overwrites them
before the first lease is started.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from periplus.environment.environment import Environment
from periplus.environment.job_environment import DATA_FILE, environment_of
from periplus.job.job_file import JobFile
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.engine import Engine
from rollout_worker.engines.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBundle:
    """What a worker builds from a bundle. `tokenizer` is a Hugging Face tokenizer."""

    engine: Engine
    tokenizer: Any
    environment: Environment


def load_bundle(files: Mapping[str, bytes], scratch: Path, job: JobFile, num_slots: int) -> LoadedBundle:
    """Write the bundle's files into the folder `scratch`, and build from them. Raises: ConfigError."""
    for name, content in files.items():
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    # Nothing is fetched: all files came with the bundle.
    tokenizer = AutoTokenizer.from_pretrained(scratch, local_files_only=True)
    # A job with a data file has it in the bundle; other environments generate their problems.
    data_file = scratch / DATA_FILE
    environment = environment_of(job, data_file if data_file.exists() else None)
    engine = build_engine(scratch, tokenizer, job, num_slots)
    return LoadedBundle(engine=engine, tokenizer=tokenizer, environment=environment)


def build_engine(folder: Path, tokenizer: Any, job: JobFile, num_slots: int) -> Engine:
    """Build the job's engine for the model whose configuration lies in `folder`. Raises: ConfigError."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    # float32, as the trainer computes, so that log-probabilities differ only by the rounding of the weights.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.requires_grad_(False)
    engine = TorchEngine(
        model=model,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        num_slots=num_slots,
        prompt_tokens=job.sampling.prompt_tokens,
        max_new_tokens=job.sampling.max_new_tokens,
    )
    lora = job.model.lora
    return engine if lora is None else AdapterEngine(engine, lora.alpha / lora.rank)
