"""The files of a checkpoint that hold tensors: a rank writes the rows that it owns, and reads those that it needs."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from periplus.process.disk import sync
from periplus.values.safetensors_format import safetensors_order
from periplus.values.weight_state import writing_safetensors
from trainer.publishing.local_rows import LocalRows

BLOCK_BYTES = 16 << 20
"""Bytes that are copied at a time from a file into a tensor, which bounds the memory of a restore. Chosen by hand."""

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types of tensors that a checkpoint can hold, by their names in safetensors."""

NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
"""Names in safetensors by type."""


class RowSource(Protocol):
    """Tensors of a checkpoint, of which any rows can be read."""

    def layouts(self) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return dtype and shape of each tensor by name."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes of rows [start, stop) of a tensor, in order."""
        ...


def host_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a tensor in the host's memory, which are the tensor's own where possible."""
    found: npt.NDArray[np.uint8] = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return found


def write_part(path: Path, collection: str, tensors: Sequence[LocalRows]) -> dict[str, Any] | None:
    """Write the rows that this rank owns into a safetensors file, tensor by tensor, and return its manifest entry.

    Return None, and write nothing, if this rank owns no row. Raises: OSError; ValueError for an unknown dtype.
    """
    by_name = {rows.name: rows for rows in tensors if rows.start < rows.stop}
    if not by_name:
        return None
    lines = safetensors_order((name, name_of(rows), rows.local_shape) for name, rows in by_name.items())
    with writing_safetensors(path, lines) as write:
        for name, _, _ in lines:
            write(host_bytes(by_name[name].tensor))
    ranges = {name: [rows.start, rows.stop] for name, rows in sorted(by_name.items())}
    return {**described(path), "holds": collection, "rows": ranges}


def described(path: Path) -> dict[str, Any]:
    """Sync a file to disk, and return its manifest entry: name, size in bytes and BLAKE3 hash. Raises: OSError."""
    sync(path)
    return {"name": path.name, "bytes": path.stat().st_size, "blake3": file_hash(path)}


def file_hash(path: Path) -> str:
    """Return the BLAKE3 hash of a file, in hexadecimal. Raises: OSError."""
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()


def name_of(rows: LocalRows) -> str:
    """Return the dtype of a tensor by its name in safetensors. Raises: ValueError for a dtype that has none here."""
    if rows.tensor.dtype not in NAMES:
        raise ValueError(f"{rows.name} is {rows.tensor.dtype}, which no checkpoint can hold")
    return NAMES[rows.tensor.dtype]


@torch.no_grad()
def fill(rows: LocalRows, source: RowSource) -> None:
    """Overwrite the rows that this rank holds of a tensor, in place. Dtype and shape agree with the source."""
    flat, at = rows.tensor.view(-1), 0
    for data in source.rows(rows.name, rows.start, rows.stop):
        for start in range(0, data.size, BLOCK_BYTES):
            block = torch.from_numpy(data[start : start + BLOCK_BYTES].copy()).view(flat.dtype)
            flat[at : at + block.numel()].copy_(block)
            at += block.numel()
    assert at == (rows.stop - rows.start) * prod(rows.shape[1:]), "the source has all rows"
