"""Architecture and published size of a job's model, read from a Hugging Face checkpoint on this machine.

A model path is a directory with `config.json` and `*.safetensors` files, or the name of a model in the packaged
catalogue. Sizes are read from the headers of the safetensors files; no tensor is read. A file begins with eight bytes,
the little-endian length of the header. The header is a JSON object that maps each tensor's name to its dtype, shape and
offsets (huggingface.co/docs/safetensors). The runtime publishes bf16 weights, so every element counts two bytes,
whatever dtype the files have.
"""

import json
import math
from pathlib import Path

from periplus.errors import ConfigError
from planner.devices.catalogue import architectures
from planner.files.importers.loaders import load_architecture
from planner.problem.architecture import Architecture

_BF16_BYTES = 2
"""Bytes of one published element."""
_MAX_HEADER_BYTES = 100 << 20
"""Largest length of a header in bytes that the safetensors format allows."""


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


def published_bytes(model_path: str) -> int | None:
    """Return the bytes of one uncompressed bf16 version, or None if no checkpoint is visible at that path.

    Raises: ConfigError for a file that is not in the safetensors format.
    """
    files = sorted(Path(model_path).glob("*.safetensors"))
    return sum(_num_elements(path) for path in files) * _BF16_BYTES if files else None


def _num_elements(path: Path) -> int:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"header of {length} bytes")
            header = json.loads(file.read(length))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a safetensors file: {error}; is the download complete?") from error
