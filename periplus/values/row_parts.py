"""Tensors whose rows lie in several files, as the manifest of a checkpoint lists them, and readers of these rows.

A trainer of several processes writes one safetensors file for each process, with the rows that this process holds. A
tensor without dimensions counts as one row. In the manifest,

    tensors     for each collection ("actor", "learner"): dtype and shape of each whole tensor, by name
    parts       for each file: its name, size and hash; and if it holds tensors, the collection (`holds`) and the range
                of rows [start, stop) of each tensor in it (`rows`)

Each row of each tensor must be in exactly one part: a gap or an overlap is an error. Parts are memory-mapped, so that
reading some rows costs only these rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.errors import CorruptFrame
from periplus.values.safetensors_format import ELEMENT_BYTES, layout_bytes
from periplus.values.weight_state import Tensor, read_safetensors_file


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows [start, stop) of a tensor, which lie in the file `part`."""

    part: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedTensor:
    """A tensor and the files of its rows. The ranges are ascending, and hold each row exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ranges: tuple[RowRange, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return ELEMENT_BYTES[self.dtype] * prod(self.shape[1:])

    def shape_of(self, num_rows: int) -> tuple[int, ...]:
        """Return the shape of a part of the tensor with this number of rows."""
        return (num_rows, *self.shape[1:]) if self.shape else ()


def num_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a tensor: its first dimension, or 1 for a tensor without dimensions."""
    return shape[0] if shape else 1


def parted_tensors(manifest: Mapping[str, Any]) -> dict[str, dict[str, PartedTensor]]:
    """Return the tensors that a manifest lists, by collection and name.

    Raises: ValueError, KeyError, TypeError or AttributeError for what is no such list, and ValueError if rows of a
    tensor are missing or in two parts.
    """
    layouts = {
        str(collection): {str(name): (str(dtype), _shape(dtype, shape)) for name, (dtype, shape) in lines.items()}
        for collection, lines in manifest["tensors"].items()
    }
    ranges: dict[str, dict[str, list[RowRange]]] = {
        collection: {name: [] for name in lines} for collection, lines in layouts.items()
    }
    counts = Counter(part["name"] for part in manifest["parts"])
    if twice := {name for name in counts if counts[name] > 1}:
        raise ValueError(f"the part {min(twice)!r} is listed twice")
    for part in manifest["parts"]:
        for name, (start, stop) in part.get("rows", {}).items():
            if name not in ranges.get(part["holds"], ()):
                raise ValueError(f"the part {part['name']!r} has rows of {name!r}, which is not among the tensors")
            if not (type(start) is int and type(stop) is int and 0 <= start < stop):
                raise ValueError(f"the part {part['name']!r} has rows [{start!r}, {stop!r}) of {name!r}")
            ranges[part["holds"]][name].append(RowRange(part=str(part["name"]), start=start, stop=stop))
    return {
        collection: {
            name: PartedTensor(
                name=name, dtype=dtype, shape=shape, ranges=_covering(name, shape, ranges[collection][name])
            )
            for name, (dtype, shape) in lines.items()
        }
        for collection, lines in layouts.items()
    }


def _shape(dtype: Any, shape: Any) -> tuple[int, ...]:
    found = tuple(shape)
    layout_bytes(dtype, found)  # raises for an unknown dtype or an impossible shape
    return found


def _covering(name: str, shape: tuple[int, ...], ranges: list[RowRange]) -> tuple[RowRange, ...]:
    ordered, at = sorted(ranges, key=lambda found: found.start), 0
    for found in ordered:
        if found.start != at:
            what = "are missing" if found.start > at else f"are in {found.part!r} and in another part"
            raise ValueError(f"rows {min(at, found.start)} to {max(at, found.start) - 1} of {name!r} {what}")
        at = found.stop
    if at != num_rows(shape):
        raise ValueError(f"the parts end at row {at} of {name!r}, which has {num_rows(shape)}")
    return tuple(ordered)


class PartReader:
    """Reads rows of the tensors of one collection from the parts in a directory.

    Creating it opens every part, and compares the part's own list of tensors with the manifest.

    Raises: CorruptFrame if a part is no safetensors file, or does not hold exactly the rows that the manifest says;
    NotFound if a part does not exist.
    """

    def __init__(self, directory: Path, tensors: Mapping[str, PartedTensor]) -> None:
        self.tensors = tensors
        expected: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
        for tensor in tensors.values():
            for rows in tensor.ranges:
                if Path(rows.part).name != rows.part:
                    raise CorruptFrame(f"the manifest in {directory} names a part outside of it: {rows.part!r}")
                expected.setdefault(rows.part, {})[tensor.name] = (
                    tensor.dtype,
                    tensor.shape_of(rows.stop - rows.start),
                )
        self._files: dict[str, dict[str, Tensor]] = {}
        for part, lines in expected.items():
            found = read_safetensors_file(directory / part)
            held = {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()}
            if held != lines:
                odd = sorted(name for name in held.keys() | lines.keys() if held.get(name) != lines.get(name))
                raise CorruptFrame(
                    f"{directory / part} does not hold the rows that its manifest lists for {odd[:3]}; remove this "
                    "checkpoint"
                )
            self._files[part] = found

    def rows(self, name: str, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes of rows [start, stop) of a tensor, in order and in one array for each part."""
        tensor = self.tensors[name]
        for held in tensor.ranges:
            first, last = max(start, held.start), min(stop, held.stop)
            if first < last:
                data = self._files[held.part][name].data
                yield data[(first - held.start) * tensor.row_bytes : (last - held.start) * tensor.row_bytes]
