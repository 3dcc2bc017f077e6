"""Exports the final model as transformers loads it: bfloat16 weights, configuration and tokenizer.

The model is written to a temporary directory, read back and compared with the digest of the version that was published
last, and then renamed. So `final/` exists only when it is complete and verified.
"""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from periplus.errors import StorageError, TrainingError
from periplus.job.run_directory import explained, write_atomically
from periplus.process.disk import PARTIAL, sync
from periplus.values.digest import state_digest
from periplus.values.weight_state import SINGLE_FILE, content_bytes, read_safetensors, write_safetensors
from trainer.publishing.publish import BUNDLE_FILES, bf16_state

CONFIG = "config.json"
"""File name of the model's configuration, as transformers expects it."""


def model_files(model_dir: Path, model: Any) -> dict[str, bytes]:
    """Return the contents of the files that transformers needs besides the float32 weights of `model`, by name.

    The tokenizer's files come unchanged from `model_dir`, from which the model was loaded. The configuration is that of
    the model, with dtype float32.
    """
    files = {name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()}
    return files | {CONFIG: _config(model, torch.float32)}


def final_model(model: Any, files: Mapping[str, bytes], directory: Path, published_digest: bytes) -> None:
    """Write the model as `directory`, with bfloat16 weights and the files from `model_files`.

    `published_digest` is the digest of the version that was published last. An earlier `directory` is replaced.

    Raises: TrainingError if the model's weights are not that version; StorageError if the disk returns other bytes than
    were written; DiskFull and other StorageErrors, Denied, NotFound. Nothing half-written is left then.
    """
    state = bf16_state(model)
    if (found := state_digest(state)) != published_digest:
        raise TrainingError(
            f"the weights to export to {directory} have digest {found.hex()}, but the version published last has "
            f"{published_digest.hex()}: they were not exported; resume the job from its last checkpoint, and report "
            "this error"
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
            # Read it back: what people will use must be what was published.
            _prove(partial, published_digest)
            _swap_in(partial, directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync(directory.parent)


def _swap_in(partial: Path, directory: Path) -> None:
    """Rename `partial` to `directory`. At each moment `directory` is the earlier one, absent, or the new one."""
    earlier = directory.with_name(f".{directory.name}.earlier{PARTIAL}")
    shutil.rmtree(earlier, ignore_errors=True)
    # A rename cannot replace a directory that is not empty, so the earlier one is moved aside first.
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
            f"{directory / SINGLE_FILE} has digest {found.hex()} when it is read back, but the version published last "
            f"has {published_digest.hex()}: the disk does not keep what is written; repair it, then resume the job"
        )
