"""Reading that needs no codec: opening and hashing a checkpoint, reading a delta's file, and comparing the two."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from periplus.values.digest import digest_of, tensor_digest
from periplus.values.weight_state import WeightState, content_bytes
from periplus.weights.checkpoint import CheckpointDirectory, open_checkpoint
from periplus.weights.files import DeltaReader, FileHead, FileTail, open_delta
from periplus.weights.output import disk_errors
from periplus.weights.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A delta's file that was read to its end, or written."""

    path: Path
    file_bytes: int
    head: FileHead
    tail: FileTail


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryVerdict:
    """Whether a directory holds the state that a delta leads to.

    `found` is its digest, `why_not` is empty if it matches.
    """

    delta: Delta
    found: bytes
    why_not: str

    @property
    def is_result(self) -> bool:
        return self.found == self.delta.head.result_digest


def inspect(file: Path, progress: Progress) -> Delta:
    """Read a delta's file to its end. Raises: NotFound, CorruptFrame, UnknownCodec, StorageError."""
    with open_delta(file) as delta:
        total_bytes = file.stat().st_size
        for _ in delta.parts():
            progress(f"reading {file}", delta.file_bytes, total_bytes)
        return finished(delta)


def verify(directory: Path, file: Path, progress: Progress) -> DirectoryVerdict:
    """Check whether the weights in `directory` are those that the delta in `file` leads to.

    Raises: NotFound, CorruptFrame, UnknownCodec, StorageError.
    """
    delta = inspect(file, progress)
    found = opened(directory)
    state_digest = digest(found.state, f"hashing {directory}", progress)
    return DirectoryVerdict(delta=delta, found=state_digest, why_not=_why_not(found, state_digest, delta.head))


def opened(directory: Path) -> CheckpointDirectory:
    """Open a checkpoint. Raises: NotFound, CorruptFrame, StorageError."""
    with disk_errors(f"cannot read {directory}"):
        return open_checkpoint(directory)


def finished(delta: DeltaReader) -> Delta:
    """Return the delta of a reader that has read its last part."""
    return Delta(path=delta.path, file_bytes=delta.file_bytes, head=delta.head, tail=delta.tail)


def digest(state: WeightState, what: str, progress: Progress) -> bytes:
    """Return the state digest, computed on all cores."""
    done_bytes, total_bytes, digests = 0, content_bytes(state), []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            # Tensors are hashed in parallel and taken in order.
            for tensor, digest in zip(state.values(), pool.map(tensor_digest, state.values()), strict=True):
                digests.append(digest)
                done_bytes += tensor.data.size
                progress(what, done_bytes, total_bytes)
        # On Ctrl-C the tensors that are not begun are not hashed.
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    lines = ((name, tensor.dtype, tensor.shape) for name, tensor in state.items())
    return digest_of((*line, digest) for line, digest in zip(lines, digests, strict=True))


def _why_not(found: CheckpointDirectory, digest: bytes, head: FileHead) -> str:
    if digest == head.result_digest:
        return ""
    if digest == head.base_digest:
        return "it is what the delta starts from: not yet applied"
    # Neither state: name the first difference that a person can act on, from the coarsest on.
    found_lines = {line.name: line for line in found.layout.lines}
    expected_lines = {line.name: line for line in head.layout.lines}
    for what, names in (
        ("lacks", expected_lines.keys() - found_lines.keys()),
        ("also has", found_lines.keys() - expected_lines.keys()),
        (
            "has another dtype or shape of",
            {name for name in found_lines.keys() & expected_lines if found_lines[name] != expected_lines[name]},
        ),
    ):
        if names:
            return f"it {what} {min(names)!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return "tensors are the same by name, dtype and shape, and differ in values"
