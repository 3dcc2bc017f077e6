"""Architecture and published size of a job's model, read from a Hugging Face checkpoint on this machine.

A model path is a directory with `config.json` and `*.safetensors` files, or the name of a model in the packaged
catalogue. Sizes are read from the headers of the safetensors files (periplus/values/safetensors_format.py); no tensor
is read. The runtime publishes bf16 weights, so every element counts two bytes, whatever dtype the files have.
"""

import math
from pathlib import Path

from periplus.config import loading
from periplus.errors import ConfigError
from periplus.values.safetensors_format import LENGTH_BYTES, head_bytes, parse_head
from planner.devices.catalogue import architectures
from planner.files.huggingface import architecture_of_config
from planner.files.loaders import load_architecture
from planner.problem.architecture import Architecture

_BF16_BYTES = 2
"""Bytes of one published element."""


def visible_architecture(model_path: str) -> Architecture | None:
    """Return the architecture of the model at that path.

    Return None if no configuration is visible there, or if it belongs to a family of models that is not supported.
    """
    if model_path not in architectures() and not (Path(model_path) / "config.json").exists():
        return None
    try:
        return load_architecture(model_path)
    except ConfigError:
        return None


def sent_architecture(config_json: str, model_path: str) -> Architecture | None:
    """Return the architecture that the text of a `config.json` describes; None for a family that is not supported.

    Raises: ConfigError if it is no JSON.
    """
    tree = loading.parse_json(config_json, f"the config.json of {model_path}")
    try:
        return architecture_of_config(tree, model_path)
    except ConfigError:
        return None


def published_bytes(model_path: str) -> int | None:
    """Return the bytes of one uncompressed bf16 version, or None if no checkpoint is visible at that path.

    Raises: ConfigError for a file that is not in the safetensors format.
    """
    files = sorted(Path(model_path).glob("*.safetensors"))
    return sum(_num_elements(path) for path in files) * _BF16_BYTES if files else None


def _num_elements(path: Path) -> int:
    file_bytes = path.stat().st_size
    try:
        # The length of the head comes first. Only the head is read, since it names the shapes of all tensors.
        with path.open("rb") as file:
            start = file.read(LENGTH_BYTES)
            head = start + file.read(head_bytes(start, file_bytes) - LENGTH_BYTES)
        return sum(math.prod(entry.shape) for entry in parse_head(head, file_bytes).entries)
    except ValueError as error:
        raise ConfigError(f"{path}: not a safetensors file: {error}; is the download complete?") from error
