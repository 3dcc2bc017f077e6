"""The weights of a policy as plain bytes: checkpoint name -> tensor, without torch.

A state is a value: nobody writes into a tensor's `data`, and decoders may share it between states. Data are the
tensor's row-major little-endian bytes, whatever the dtype: NaN payloads and -0.0 are kept because nothing here knows
what a number is. Tied weights appear once, under the name that the checkpoint stores.

Files are safetensors, read and written here from the published format: u64 header length, JSON header padded with
spaces to 8 bytes, data. (The safetensors package's raw interface changed shape between releases, and the kernel needs
no torch-side dependency.) Dtypes below one byte are refused.
"""

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame, NotFound

ELEMENT_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Of each dtype, under its name in safetensors."""

MAX_HEADER_BYTES = 100 << 20
"""The cap that the safetensors package sets too."""

MAX_DIMENSIONS = 64
"""numpy's own limit."""

_METADATA = "__metadata__"
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One array. Built from any flat contiguous array of the elements, kept as its uint8 view. Equal: bit for bit.

    Raises: ValueError for an unknown dtype, or if data and shape disagree.
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


State = Mapping[str, Tensor]


def layout_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor. Raises: ValueError for what cannot be one."""
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(ELEMENT_BYTES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"shape {shape!r} is not at most {MAX_DIMENSIONS} integers of 0 to 2^63 - 1")
    return ELEMENT_BYTES[dtype] * math.prod(shape)


def content_bytes(state: State) -> int:
    """Bytes of all tensors."""
    return sum(tensor.data.size for tensor in state.values())


def read_safetensors(directory: Path) -> dict[str, Tensor]:
    """The state in a Hugging Face checkpoint directory, in one file or in shards.

    Raises: NotFound if there is none; CorruptFrame if a file breaks the format or the index.
    """
    index_path = directory / _INDEX_FILE
    if not index_path.is_file():
        return read_safetensors_file(directory / _SINGLE_FILE)
    try:
        shard_of = {str(k): str(v) for k, v in json.loads(index_path.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFrame(f"{index_path} is no index of shards: {error}; download it again") from error
    state: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard:
            raise CorruptFrame(f"{index_path} names a shard outside its directory: {shard!r}")
        state |= read_safetensors_file(directory / shard)
    if missing := shard_of.keys() - state.keys():
        raise CorruptFrame(f"{index_path} promises {sorted(missing)[:3]}, which no shard has; download it again")
    return state


def read_safetensors_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. Raises: NotFound, CorruptFrame."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist; give a directory with {_SINGLE_FILE} or {_INDEX_FILE}") from error
    try:
        return _parse(raw)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFrame(f"{path} is not a safetensors file: {error}; download it again") from error


def write_safetensors(path: Path, state: State) -> None:
    """Write one file; after a crash it is there whole or not at all.

    Wide elements come first, then names in order, as the safetensors package does: so that every tensor is aligned.
    Raises: ValueError for the one name that the format reserves.
    """
    if _METADATA in state:
        raise ValueError(f"no tensor can be named {_METADATA!r} in a safetensors file")
    tensors = sorted(state.items(), key=lambda item: (-ELEMENT_BYTES[item[1].dtype], item[0]))
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    offset = 0
    for name, tensor in tensors:
        end = offset + tensor.data.size
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, tensor in tensors:
            file.write(tensor.data.data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _parse(raw: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
    (header_bytes,) = struct.unpack("<Q", raw[:8].tobytes().ljust(8, b"\xff"))
    if header_bytes > min(MAX_HEADER_BYTES, raw.size - 8):
        raise ValueError(f"its header would have {header_bytes} bytes, the file has {raw.size}")
    header = json.loads(raw[8 : 8 + header_bytes].tobytes())
    header.pop(_METADATA, None)
    data = raw[8 + header_bytes :]
    state, covered_bytes = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        if start != covered_bytes or not start <= end <= data.size:
            raise ValueError(f"tensor {name!r} lies at {start}-{end}, expected to begin at {covered_bytes}")
        state[name.encode().decode()] = Tensor(entry["dtype"], tuple(entry["shape"]), data[start:end])
        covered_bytes = end
    if covered_bytes != data.size:
        raise ValueError(f"{data.size - covered_bytes} bytes belong to no tensor")
    return state
