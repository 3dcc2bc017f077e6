"""The weights of a policy as plain bytes: a mapping from checkpoint name to tensor, without torch.

A state is a value: a tensor's `data` must never be written to, because decoders may share it between states. The data
are the tensor's row-major little-endian bytes for every dtype. NaN payloads and -0.0 are kept, because nothing here
interprets numbers. Tied weights appear once, under the name that the checkpoint stores.

Files are safetensors (safetensors_format.py). They are memory-mapped, not loaded: opening 16 GB costs reading their
headers, and a state larger than memory can be hashed, compared and encoded. Arrays are read-only. A file that is
replaced (written beside and renamed, as here) stays unchanged for a process that has it open. A file that is cut short
in place ends the process with SIGBUS at the next access.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame, NotFound
from periplus.process.disk import replacing
from periplus.values.safetensors_format import (
    LENGTH_BYTES,
    SafetensorsLine,
    head_bytes,
    layout_bytes,
    parse_head,
    safetensors_head,
    safetensors_order,
)

SINGLE_FILE = "model.safetensors"
"""File name of the weights of a checkpoint that is one file."""

INDEX_FILE = "model.safetensors.index.json"
"""File name of the index of a checkpoint that is split into shards."""

MAX_INDEX_BYTES = 256 << 20
"""Largest index file, in bytes. Chosen by hand above MAX_HEADER_BYTES: it has a file name for each tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One array, built from any flat contiguous array of its elements and kept as that array's uint8 view.

    Tensors are equal if they are equal bit for bit. Raises: ValueError for an unknown dtype, or if data and shape
    disagree.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    def __post_init__(self) -> None:
        expected_bytes = layout_bytes(self.dtype, self.shape)
        if self.data.ndim != 1 or self.data.nbytes != expected_bytes or not self.data.flags.c_contiguous:
            found = f"{self.data.dtype} {self.data.shape}"
            raise ValueError(f"{self.dtype} {self.shape} needs {expected_bytes} flat contiguous bytes, not {found}")
        object.__setattr__(self, "data", self.data.view(np.uint8))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same_layout = self.dtype == other.dtype and self.shape == other.shape
        return same_layout and (self.data is other.data or np.array_equal(self.data, other.data))

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, self.data.tobytes()))


WeightState = Mapping[str, Tensor]
"""A state: tensors by checkpoint name."""


def content_bytes(state: WeightState) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.data.size for tensor in state.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SafetensorsFile:
    """One safetensors file. `head` is everything before the data; `tensors` are in the order of their data."""

    path: Path
    head: bytes
    metadata: Mapping[str, str]
    tensors: Mapping[str, Tensor]


def read_safetensors(directory: Path) -> dict[str, Tensor]:
    """Return the state in a Hugging Face checkpoint directory, from one file or from shards.

    Raises: NotFound if there is none; CorruptFrame if a file breaks the format or the index.
    """
    return {name: tensor for file in checkpoint_files(directory) for name, tensor in file.tensors.items()}


def checkpoint_files(directory: Path) -> tuple[SafetensorsFile, ...]:
    """Return the files of a Hugging Face checkpoint directory, sorted by name. No tensor is in two files.

    A single file takes precedence over an index, as in transformers.

    Raises: NotFound if there is none; CorruptFrame if a file breaks the format or the index.
    """
    index_path = directory / INDEX_FILE
    if (directory / SINGLE_FILE).is_file() or not index_path.is_file():
        return (open_safetensors(directory / SINGLE_FILE),)
    shard_of = _weight_map(index_path)
    files = tuple(open_safetensors(directory / shard) for shard in sorted(set(shard_of.values())))
    file_of: dict[str, str] = {}
    # The header of each shard counts: it may hold a tensor that the index does not list, or lack one that it does.
    for file in files:
        if twice := file_of.keys() & file.tensors.keys():
            name = min(twice)
            raise CorruptFrame(f"tensor {name!r} is in {file_of[name]} and in {file.path.name}; remove one of the two")
        file_of |= dict.fromkeys(file.tensors, file.path.name)
    if missing := shard_of.keys() - file_of.keys():
        raise CorruptFrame(f"{index_path} lists {sorted(missing)[:3]}, which no shard has; download it again")
    return files


def _weight_map(index_path: Path) -> dict[str, str]:
    try:
        if index_path.stat().st_size > MAX_INDEX_BYTES:
            raise ValueError(f"it has {index_path.stat().st_size} bytes, at most {MAX_INDEX_BYTES}")
        shard_of = {str(name): str(shard) for name, shard in json.loads(index_path.read_bytes())["weight_map"].items()}
        if not shard_of:
            raise ValueError("it lists no tensor")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFrame(f"{index_path} is not an index of shards: {error}; download it again") from error
    # An index is a stranger's file, and must not lead out of its directory.
    for shard in set(shard_of.values()):
        if Path(shard).name != shard:
            raise CorruptFrame(f"{index_path} names a shard outside its directory: {shard!r}")
    return shard_of


def read_safetensors_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file. Raises: NotFound, CorruptFrame."""
    return dict(open_safetensors(path).tensors)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open one file, memory-mapped. Raises: NotFound, CorruptFrame."""
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path} does not exist; give a directory with {SINGLE_FILE} or {INDEX_FILE}") from error
    try:
        return _parse(path, raw.view(np.ndarray))
    except ValueError as error:
        raise CorruptFrame(f"{path} is not a safetensors file: {error}; download it again") from error


def write_safetensors(path: Path, state: WeightState) -> None:
    """Write a state to one file, atomically: after a crash or an error the file is complete or absent.

    Raises: ValueError for the one name that the format reserves; OSError.
    """
    lines = safetensors_order((name, tensor.dtype, tensor.shape) for name, tensor in state.items())
    with writing_safetensors(path, lines) as write:
        for name, _, _ in lines:
            write(state[name].data)


@contextmanager
def writing_safetensors(path: Path, lines: Sequence[SafetensorsLine]) -> Iterator[Callable[[npt.NDArray[Any]], None]]:
    """Yield a function that appends flat arrays of data to a file of tensors, so that no more than these are in memory.

    `lines` are the tensors' names, dtypes and shapes in the order of `safetensors_order`; their data come in that
    order, in pieces of any size. The file appears when the body ends.

    Raises: ValueError for the one name that the format reserves, or if the data are not as long as the tensors;
    OSError. There is no file then.
    """
    expected_bytes, written_bytes = sum(layout_bytes(dtype, shape) for _, dtype, shape in lines), 0
    head = safetensors_head(lines, {"format": "pt"})
    with replacing(path) as file:
        file.write(head)

        def write(data: npt.NDArray[Any]) -> None:
            nonlocal written_bytes
            file.write(data.view(np.uint8).data)
            written_bytes += data.nbytes

        yield write
        if written_bytes != expected_bytes:
            raise ValueError(f"{path} got {written_bytes} bytes of data, and its tensors have {expected_bytes}")


def _parse(path: Path, raw: npt.NDArray[np.uint8]) -> SafetensorsFile:
    head = raw[: head_bytes(raw[:LENGTH_BYTES].tobytes(), raw.size)].tobytes()
    parsed, data = parse_head(head, raw.size), raw[len(head) :]
    tensors = {entry.name: Tensor(entry.dtype, entry.shape, data[entry.start : entry.end]) for entry in parsed.entries}
    return SafetensorsFile(path=path, head=head, metadata=parsed.metadata, tensors=tensors)
