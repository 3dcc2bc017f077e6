"""Format of the files in `samples/` of a run directory: a block for each training step and for each evaluation.

    block   magic "PSMP", u8 layout, u8 kind (0: a step, 1: an evaluation), u16 number of names, u32 fork, u64 version,
            u32 number of rows, u32 bytes of the names, CRC-32 of the 28 bytes before and of all that follows  32 bytes
            names, as UTF-8 with a line break after each: of an evaluation what was evaluated, then the regions
            rows (ROW), one for each sample, 64 bytes each

All numbers are little-endian. The policy of a block is the one that the step made, or at which the evaluation began,
so that its version is the `step` of metrics.jsonl. A file is named `<fork>-<version of its first block>.steps`, with
leading zeros, so that names sort as blocks do. Blocks are only appended. A block that a killed process left
half-written fails its checksum; what stands behind it in its file is not read. A trainer begins a new file at its
start, so nothing ever follows a torn block.

Rows have a fixed size and whole files are at most a few MiB, so that all rewards of a run with a million samples are
read in tens of milliseconds, without an index of their own.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy

SUFFIX = ".steps"
"""End of the name of a file with blocks."""

FILE_BYTES = 4 << 20
"""Size from which a trainer begins a new file: 65,000 samples. Chosen by hand. Files are removed whole, so this bounds
how many rows outlive their trajectories."""

NO_REGION = (1 << 16) - 1
"""The `region` of a row whose worker's region is not known."""

ROW = np.dtype(
    [
        ("group", "<u8"),
        ("reward", "<f8"),  # the reward that was trained on
        ("sequence", "<u8"),  # position of the frame in the store
        ("epoch", "<u4"),
        ("sample", "<u4"),
        ("index", "<u4"),  # of the trajectory in its frame
        ("tokens", "<u4"),  # of the completion, context included
        ("advantage", "<f4"),  # mean over the tokens that the loss saw
        ("difference_mean", "<f4"),  # of |log pi_trainer - log pi_engine|, in nats, over the same tokens
        ("difference_max", "<f4"),
        ("staleness", "<u2"),  # the largest of a token, in versions
        ("region", "<u2"),  # index among the block's regions
    ]
)
"""One sample of a step."""

Rows = npt.NDArray[np.void]
"""An array of ROW."""

_HEAD = struct.Struct("<4sBBHIQII")
_CRC = struct.Struct("<I")
_BLOCK_HEAD_BYTES = _HEAD.size + _CRC.size
_MAGIC, _LAYOUT = b"PSMP", 2
_NAME = re.compile(r"(\d{10})-(\d{14})\.steps")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBlock:
    """The samples of one step or evaluation; `rows` is an array of ROW.

    `policy` is the one that the step made, or at which the evaluation began. `evaluation` is the name of the evaluation
    set, "held-out" for held-out problems, or empty for a step.
    """

    policy: Policy
    regions: tuple[str, ...]
    rows: Rows
    evaluation: str = ""

    def region_of(self, row: int) -> str:
        """Return the region of a row's worker, or an empty text if it is not known."""
        index = int(self.rows["region"][row])
        return self.regions[index] if index < len(self.regions) else ""


def file_name(first: Policy) -> str:
    """Return the name of the file whose first block has this policy."""
    return f"{first.fork:010d}-{first.version:014d}{SUFFIX}"


def is_block_file(name: str) -> bool:
    """Return whether a file of this name holds blocks."""
    return _NAME.fullmatch(name) is not None


def pack_block(block: StepBlock) -> bytes:
    """Return the bytes of a block."""
    names = (block.evaluation, *block.regions) if block.evaluation else block.regions
    encoded = "".join(f"{name}\n" for name in names).encode()
    kind, policy = bool(block.evaluation), block.policy
    head = _HEAD.pack(_MAGIC, _LAYOUT, kind, len(names), policy.fork, policy.version, len(block.rows), len(encoded))
    rest = encoded + block.rows.astype(ROW).tobytes()
    return head + _CRC.pack(zlib.crc32(rest, zlib.crc32(head))) + rest


def read_blocks(data: bytes) -> Iterator[StepBlock]:
    """Yield the blocks of a file up to the first one that is torn, damaged or of another layout."""
    at, view = 0, memoryview(data)
    names: dict[bytes, tuple[str, ...]] = {}
    while at + _BLOCK_HEAD_BYTES <= len(data):
        magic, layout, kind, num_names, fork, version, num_rows, num_name_bytes = _HEAD.unpack_from(data, at)
        names_at = at + _BLOCK_HEAD_BYTES
        rows_at = names_at + num_name_bytes
        end = rows_at + num_rows * ROW.itemsize
        if magic != _MAGIC or layout != _LAYOUT or end > len(data):
            return
        (checksum,) = _CRC.unpack_from(data, at + _HEAD.size)
        if zlib.crc32(view[names_at:end], zlib.crc32(view[at : at + _HEAD.size])) != checksum:
            return
        encoded = data[names_at:rows_at]
        # Almost all blocks have the same regions.
        if encoded not in names:
            names[encoded] = tuple(encoded.decode(errors="replace").split("\n")[:num_names])
        evaluation, regions = (names[encoded][0], names[encoded][1:]) if kind and num_names else ("", names[encoded])
        rows = np.frombuffer(data, ROW, num_rows, rows_at)
        yield StepBlock(policy=Policy(fork, version), regions=regions, rows=rows, evaluation=evaluation)
        at = end


def empty_rows(num_rows: int) -> Rows:
    """Return rows to be filled in, without a region."""
    rows = np.zeros(num_rows, ROW)
    rows["region"] = NO_REGION
    return rows


def column(blocks: Sequence[StepBlock], name: str) -> npt.NDArray[Any]:
    """Return one field of the rows of several blocks, one after the other."""
    # Field by field, because only a few of them are read of all rows of a run.
    return np.concatenate([np.zeros(0, ROW[name]), *(block.rows[name] for block in blocks)])
