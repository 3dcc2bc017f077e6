"""Checks the model and data files that a job names, without torch.

The checks run on the machine that submits a job, and again where its trainer runs. Both machines must have the same
model and data sets, because these are not sent with a job yet. The model's configuration is read as
JSON, and only the headers of its weights are read. Checks that need the model's own code, such as the names and shapes
of its tensors, are in `trainer/data/pretrained.py`. docs/jobs.md lists every check.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from periplus.config.local_paths import exists
from periplus.environment.datasets.locate import data_files
from periplus.errors import ConfigError, CorruptFrame, NotFound
from periplus.job import reward_code
from periplus.job.architectures import architecture_remarks
from periplus.job.hub import cached_folder, hub_name
from periplus.job.job_file import BUILTIN_PREFIX, JobFile
from periplus.job.model_section import BUILTIN
from periplus.values.weight_state import checkpoint_files

CONFIG_FILE = "config.json"
"""File name of a Hugging Face model configuration."""

ADAPTER_FILE = "adapter_config.json"
"""File name by which a LoRA adapter of the library peft is recognised."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
"""File names of a tokenizer; a checkpoint must have at least one of them."""

CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the transformers classes that predict the next token; other classes have another head, or none."""

_OF_FILES = frozenset({"_name_or_path", "transformers_version"})
"""Keys of a configuration that say how its file was written, and nothing of the model."""

_MAX_CONFIG_BYTES = 16 << 20
"""Largest `config.json` that is read, in bytes. Chosen by hand: real configurations have a few kilobytes."""


def check_inputs(job: JobFile) -> tuple[str, ...]:
    """Check that the job's model, data files and own code exist, are usable, and that the model has enough positions.

    Return a warning if no test covers the model's architecture. Raises: ConfigError for a missing, damaged,
    changed or unsupported file, or for samples longer than the model's positions.
    """
    positions: object
    remarks: tuple[str, ...] = ()
    # A sample is a prompt and a completion together.
    longest = job.sampling.prompt_tokens + job.sampling.max_new_tokens
    if job.model.path.startswith(BUILTIN_PREFIX):
        _check_builtin(job.model.path)
        positions = BUILTIN[job.model.path].max_positions
    else:
        path = model_folder(job)
        tree = check_model_dir(path)
        positions = tree.get("max_position_embeddings")
        remarks = architecture_remarks(
            tree,
            str(path / CONFIG_FILE),
            engine=job.engine.name,
            has_adapters=job.model.lora is not None,
            longest=longest,
        )
    if isinstance(positions, int) and longest > positions:
        raise ConfigError(
            f"sampling.prompt_tokens is {job.sampling.prompt_tokens} and sampling.max_new_tokens is "
            f"{job.sampling.max_new_tokens}, together {longest}, but the model {job.model.path!r} has only {positions} "
            "positions; lower one of the two"
        )
    reference = reference_folder(job)
    if reference is not None:
        check_model_dir(reference)
    reward_code.read_code(job.reward, job.environment)  # it refuses what has changed since it was shown
    for number, source in enumerate(job.data.datasets):
        data_files(source, "data.path" if job.data.path is not None else f"data.sources.{number}.path")
    for name, each in job.eval.sets.items():
        if each.data is not None:
            data_files(each.data, f"eval.sets.{name}.data.path")
    return remarks


def model_folder(job: JobFile) -> Path:
    """Return the folder with the checkpoint of a job's model, which is not a built-in one.

    Raises: ConfigError if the model is a name of the Hub that the cache of this machine lacks.
    """
    name = hub_name(job.model.path, job.model.revision, "model", "model.path")
    return Path(job.model.path) if name is None else cached_folder(name, "model.path")


def reference_folder(job: JobFile) -> Path | None:
    """Return the folder of the checkpoint that a job names as its KL reference, or None. Raises: ConfigError."""
    path = job.algorithm.kl_reference
    if path is None:
        return None
    name = hub_name(path, None, "model", "algorithm.kl_reference")
    return Path(path) if name is None else cached_folder(name, "algorithm.kl_reference")


def check_model_dir(path: Path) -> Mapping[str, Any]:
    """Return the configuration of a model in a Hugging Face checkpoint directory.

    Raises: ConfigError if `path` is not a directory with a configuration, readable weights and a tokenizer, or if its
    model is not supported.
    """
    if not _is_dir(path):
        raise ConfigError(
            f"model.path {str(path)!r} is not a directory; {_remote(path)}give a Hugging Face checkpoint "
            f"directory or {next(iter(BUILTIN))}"
        )
    # Before the check for files, because an adapter's directory usually lacks some of them.
    if (base := adapter_base(path)) is not None:
        return check_model_dir(base)
    wanted = {CONFIG_FILE: (CONFIG_FILE,), "*.safetensors": ("*.safetensors",), "a tokenizer": TOKENIZER_FILES}
    lacks = [what for what, names in wanted.items() if not any(any(path.glob(name)) for name in names)]
    if lacks:
        raise ConfigError(
            f"model.path {str(path)!r} is not a Hugging Face checkpoint: it lacks {', '.join(lacks)}; save model and "
            "tokenizer there with save_pretrained"
        )
    tree = _config(path / CONFIG_FILE)
    refuse_config(tree, str(path / CONFIG_FILE), num_tensors=_num_tensors(path))
    return tree


def adapter_base(path: Path) -> Path | None:
    """Return the folder of the base model of a LoRA adapter's directory, or None if it is no adapter's.

    The base is a directory, absolute or beside the adapter, or a name on the Hub. Raises: ConfigError if it is not
    here, or if the adapter is of another kind than LoRA.
    """
    if not exists(path / ADAPTER_FILE):
        return None
    tree = _config(path / ADAPTER_FILE)
    kind, named = tree.get("peft_type"), tree.get("base_model_name_or_path")
    if kind != "LORA" or not isinstance(named, str):
        raise ConfigError(
            f"model.path {str(path)!r} is an adapter of the kind {kind!r} of the base model {named!r}; only LoRA "
            "adapters that name their base model are supported: merge it (merge_and_unload in peft) and save the model"
        )
    beside = path / named
    base = beside if exists(beside) else Path(named)
    if not exists(base):
        name = hub_name(named, None, "model", f"base_model_name_or_path of {path / ADAPTER_FILE}")
        if name is None:
            raise ConfigError(
                f"model.path {str(path)!r} is a LoRA adapter of {named!r}, which does not exist here; put the base "
                f"model there, or change base_model_name_or_path in its {ADAPTER_FILE}"
            )
        base = cached_folder(name, "model.path")
    if exists(base / ADAPTER_FILE):
        raise ConfigError(f"model.path {str(path)!r} is an adapter of the adapter {named!r}; merge that one first")
    return base


def check_planned_config(path: Path, planned: str) -> None:
    """Check that a model's configuration is the one that its job was submitted with, and planned for.

    `planned` is the text of that `config.json`. Raises: ConfigError, which names the keys that differ.
    """
    here, there = _config((adapter_base(path) or path) / CONFIG_FILE), json.loads(planned)
    differ = sorted(
        key for key in here.keys() | there.keys() if here.get(key) != there.get(key) and key not in _OF_FILES
    )
    if differ:
        shown = "; ".join(f"{key} is {here.get(key)!r} here and was {there.get(key)!r}" for key in differ[:3])
        raise ConfigError(
            f"the model in {path} is not the one that the job was submitted with: {shown}; put the same model on both "
            "machines"
        )


def refuse_config(tree: Mapping[str, Any], source: str, *, num_tensors: int) -> None:
    """Refuse a model that its configuration alone shows to be unsupported.

    `num_tensors` is the number of tensors in the weights beside the configuration.
    Raises: ConfigError.
    """
    if not isinstance(tree.get("model_type"), str):
        raise ConfigError(
            f"{source} has the model_type {tree.get('model_type')!r}, which is not text; is it a Hugging Face "
            "configuration?"
        )
    if tree.get("quantization_config"):
        raise ConfigError(
            f"{source} has a quantization_config, and quantised weights are not supported yet; give the checkpoint in "
            "bfloat16, float16 or float32"
        )
    if tree.get("is_encoder_decoder"):
        raise ConfigError(f"{source} is of an encoder-decoder model; only decoder-only language models are supported")
    names = [str(name) for name in tree.get("architectures") or ()]
    if names and not any(name.endswith(CAUSAL_SUFFIXES) for name in names):
        raise ConfigError(
            f"{source} says that the model is {', '.join(names)}, which does not predict the next token; give a "
            f"checkpoint of a causal language model (architectures: ...{CAUSAL_SUFFIXES[0]})"
        )
    # Every layer has at least one tensor: a configuration with more layers belongs to other weights.
    num_layers = tree.get("num_hidden_layers", 0)
    if isinstance(num_layers, int) and num_layers > num_tensors:
        raise ConfigError(
            f"{source} says num_hidden_layers: {num_layers}, but the weights beside it have only {num_tensors} "
            "tensors; give the config.json that belongs to the weights"
        )


def _num_tensors(path: Path) -> int:
    try:
        return sum(len(file.tensors) for file in checkpoint_files(path))
    except (CorruptFrame, NotFound, OSError) as error:
        raise ConfigError(
            f"model.path {str(path)!r} has no readable weights: {_why(error)}; save or download the model again"
        ) from error


def _config(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_CONFIG_BYTES + 1)
        if len(raw) > _MAX_CONFIG_BYTES:
            raise ValueError(f"it is larger than {_MAX_CONFIG_BYTES} bytes")
        tree = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {_why(error)}; save the model again") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} must hold a JSON object, not {type(tree).__name__}; save the model again")
    return tree


def _why(error: Exception) -> str:
    """Return what an error says to a person, without the number of an error of the operating system."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _check_builtin(name: str) -> None:
    if name not in BUILTIN:
        close = difflib.get_close_matches(name, BUILTIN, n=1)
        hint = f"did you mean {close[0]}?" if close else f"built-in models: {', '.join(BUILTIN)}"
        raise ConfigError(f"model.path {name!r} is not a built-in model; {hint}")


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or a folder above that may not be read
        return False


def _remote(path: Path) -> str:
    """Return advice for a path that looks like an address; empty for other paths."""
    here = Path.cwd()
    parts = path.relative_to(here).parts if path.is_relative_to(here) else ()
    return (
        "addresses other than hf:// are not supported: download it first; " if parts and parts[0].endswith(":") else ""
    )
