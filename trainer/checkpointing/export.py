"""The final model as Hugging Face loads it: bfloat16 weights, configuration, tokenizer.

It is written beside its place, read back, and renamed into it last: `final/` is there only when it is whole and proven.
"""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from periplus.errors import StorageError, TrainingError
from periplus.job.run_directory import PARTIAL, explained, sync_folder, write_atomically
from periplus.values.digest import state_digest
from periplus.values.weight_state import SINGLE_FILE, content_bytes, read_safetensors, write_safetensors
from trainer.publishing.publish import BUNDLE_FILES, bf16_state

CONFIG = "config.json"


def model_files(model_dir: Path, model: Any) -> dict[str, bytes]:
    """What transformers needs beside the float32 weights of `model`: the tokenizer's files as they are in `model_dir`,
    which it was loaded from, and its configuration."""
    files = {name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()}
    return files | {CONFIG: _config(model, torch.float32)}


def final_model(model: Any, files: Mapping[str, bytes], directory: Path, published_digest: bytes) -> None:
    """Write what was published last, and nothing else, as `directory`. `files`: as from model_files.

    Raises: TrainingError if the model is not what was published last; StorageError if the disk gives back something
    else than was written; DiskFull and other StorageErrors, Denied, NotFound. Nothing half-written stands there then.
    """
    state = bf16_state(model)
    if (found := state_digest(state)) != published_digest:
        raise TrainingError(
            f"the weights to export to {directory} have digest {found.hex()}, the version published last has "
            f"{published_digest.hex()}: they are not exported; resume the job from its last checkpoint, and report this"
        )
    files = {**files, CONFIG: _config(model, torch.bfloat16)}
    partial = directory.with_name(f".{directory.name}{PARTIAL}")
    with explained(directory, content_bytes(state) + sum(map(len, files.values()))):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            for name, data in files.items():
                write_atomically(partial / name, data)
            write_safetensors(partial / SINGLE_FILE, state)
            _prove(partial, published_digest)
            _swap_in(partial, directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(directory.parent)


def _swap_in(partial: Path, directory: Path) -> None:
    """At each moment `directory` is the earlier one, absent, or the new one: never half of either."""
    earlier = directory.with_name(f".{directory.name}.earlier{PARTIAL}")
    shutil.rmtree(earlier, ignore_errors=True)
    if directory.exists():
        directory.rename(earlier)
    partial.rename(directory)
    shutil.rmtree(earlier, ignore_errors=True)


def _config(model: Any, dtype: torch.dtype) -> bytes:
    config = copy.deepcopy(model.config)
    config.dtype, config.architectures = dtype, [type(model).__name__]
    text: str = config.to_json_string()
    return text.encode()


def _prove(directory: Path, published_digest: bytes) -> None:
    if (found := state_digest(read_safetensors(directory))) != published_digest:
        raise StorageError(
            f"{directory / SINGLE_FILE} has digest {found.hex()} when it is read back, the version published last has "
            f"{published_digest.hex()}: the disk does not keep what is written; mend it, then resume the job"
        )
