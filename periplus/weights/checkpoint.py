"""A Hugging Face checkpoint directory, and the plan of the same directory with other weights in it.

The weights are `model.safetensors`, or shards with their index. A tensor of the new state stays in the file that held
its name, and a tensor with a new name goes into the last file. A shard that is left without tensors is not written. A
file whose tensors keep their names, dtypes and shapes keeps its head byte for byte, and so its order and metadata. In
other files tensors are ordered as the safetensors package does. The index is copied if it still holds, and rebuilt
otherwise.

Everything else is copied, because transformers expects it in one place: configuration, tokenizer, templates, code,
subdirectories. Not copied are hidden names, links to directories, and files that hold other weights or an optimizer's
state (`OTHER_WEIGHTS`), because they would be those of the old checkpoint.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from periplus.codec.weights.layout import StateLayout, TensorLayout, layout_of
from periplus.errors import CorruptFrame, NotFound
from periplus.process.disk import sync
from periplus.values.safetensors_format import METADATA, safetensors_head, safetensors_order
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE, SafetensorsFile, Tensor, checkpoint_files

OTHER_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz"})
"""Suffixes of files that hold tensors. Their lists (such as `.bin.index.json`) are treated alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDirectory:
    """One checkpoint directory with its tensors memory-mapped."""

    directory: Path
    files: tuple[SafetensorsFile, ...]
    state: Mapping[str, Tensor]
    layout: StateLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file to be written: its head, and its tensors in the order of their data."""

    name: str
    head: bytes
    lines: tuple[TensorLayout, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.head) + sum(line.num_bytes for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContent:
    """The planned content of a directory: files with tensors, the index (or None), relative paths of other files.

    `left_out` are files of the old directory that are not copied, because they hold other weights.
    """

    files: tuple[PlannedFile, ...]
    index: bytes | None
    others: tuple[Path, ...]
    left_out: tuple[Path, ...]


def open_checkpoint(directory: Path) -> CheckpointDirectory:
    """Open a checkpoint directory. Raises: NotFound, CorruptFrame."""
    if not directory.is_dir():
        reason = "is no directory" if directory.exists() else "does not exist"
        raise NotFound(f"{directory} {reason}; give a checkpoint's directory, with {SINGLE_FILE} or {INDEX_FILE}")
    files = checkpoint_files(directory)
    state = {name: tensor for file in files for name, tensor in file.tensors.items()}
    return CheckpointDirectory(directory=directory, files=files, state=state, layout=layout_of(state))


def plan(old: CheckpointDirectory, layout: StateLayout) -> DirectoryContent:
    """Plan the directory of `old` with a state of this layout.

    Raises: CorruptFrame for a name that no file can hold.
    """
    others, left_out = _other_files(old)
    files = _planned_files(old, layout)
    index_path = old.directory / INDEX_FILE
    # A single file has no index, and so has a state without tensors.
    is_single = [file.path.name for file in old.files] == [SINGLE_FILE] or not layout.lines
    index = None if is_single else _index(index_path.read_bytes(), old, files, layout)
    return DirectoryContent(files=files, index=index, others=others, left_out=left_out)


def single_file(layout: StateLayout) -> PlannedFile:
    """Plan one file for all tensors. Raises: CorruptFrame for a name that no file can hold."""
    return _ordered(SINGLE_FILE, layout.lines, {"format": "pt"})


def _planned_files(old: CheckpointDirectory, layout: StateLayout) -> tuple[PlannedFile, ...]:
    if not layout.lines:
        return (single_file(layout),)
    file_of = {name: file.path.name for file in old.files for name in file.tensors}
    # Tensors with a new name go into the last file.
    last = old.files[-1].path.name
    planned = []
    for file in old.files:
        lines = tuple(line for line in layout.lines if file_of.get(line.name, last) == file.path.name)
        kept = tuple(TensorLayout(name=name, dtype=t.dtype, shape=t.shape) for name, t in file.tensors.items())
        # The same tensors: the old header serves as it is, with its order and metadata.
        if set(lines) == set(kept):
            planned.append(PlannedFile(name=file.path.name, head=file.head, lines=kept))
        elif lines:
            planned.append(_ordered(file.path.name, lines, file.metadata))
    return tuple(planned)


def _ordered(name: str, lines: tuple[TensorLayout, ...], metadata: Mapping[str, str]) -> PlannedFile:
    if any(line.name == METADATA for line in lines):
        raise CorruptFrame(f"the delta's layout has a tensor {METADATA!r}, which no safetensors file can hold")
    by_name = {line.name: line for line in lines}
    ordered = safetensors_order((line.name, line.dtype, line.shape) for line in lines)
    head = safetensors_head(ordered, metadata)
    return PlannedFile(name=name, head=head, lines=tuple(by_name[name] for name, _, _ in ordered))


def _index(raw: bytes, old: CheckpointDirectory, files: tuple[PlannedFile, ...], layout: StateLayout) -> bytes:
    # The file stays byte for byte as it was.
    if layout == old.layout:
        return raw
    tree: dict[str, Any] = json.loads(raw)
    found = tree.get("metadata")
    # Keys that other tools put there are kept; the sums over tensors are made anew.
    metadata = found if isinstance(found, dict) else {}
    metadata["total_size"] = layout.content_bytes
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(math.prod(line.shape) for line in layout.lines)
    weight_map = {line.name: file.name for file in files for line in file.lines}
    tree |= {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(tree, indent=2) + "\n").encode()


def _other_files(old: CheckpointDirectory) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    own = {INDEX_FILE, *(file.path.name for file in old.files)}
    others: list[Path] = []
    left_out: list[Path] = []
    for folder, folders, names in os.walk(old.directory):
        # Changing the list in place keeps os.walk out of hidden folders, and fixes the order.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(old.directory)
            if str(relative) in own or name.startswith(".") or not path.is_file():
                continue
            (left_out if _holds_weights(name) else others).append(relative)
    return tuple(others), tuple(left_out)


def _holds_weights(name: str) -> bool:
    return Path(name.lower().removesuffix(".index.json")).suffix in OTHER_WEIGHTS


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def open_target(folder: Path, files: tuple[PlannedFile, ...], *, existing: bool = False) -> Iterator["Target"]:
    """Open the planned files for writing: new ones that start with their heads, or `existing` ones."""
    place: dict[str, tuple[int, int]] = {}
    descriptors: list[int] = []
    with ExitStack() as stack:
        for planned in files:
            mode = "r+b" if existing else "x+b"
            descriptor = stack.enter_context((folder / planned.name).open(mode, buffering=0)).fileno()
            descriptors.append(descriptor)
            at = len(planned.head)
            for line in planned.lines:
                place[line.name] = (descriptor, at)
                at += line.num_bytes
            # The file gets its full size at once, so that spans may be written in any order.
            if not existing:
                _write_all(descriptor, planned.head, 0)
                os.ftruncate(descriptor, at)
        yield Target(place, descriptors)


class Target:
    """Tensors in open files, by name -> (descriptor, offset)."""

    def __init__(self, place: Mapping[str, tuple[int, int]], descriptors: Sequence[int]) -> None:
        self._place = place
        self._descriptors = descriptors

    def write(self, name: str, start_byte: int, data: memoryview) -> None:
        """Write bytes of one tensor."""
        descriptor, at = self._place[name]
        _write_all(descriptor, data, at + start_byte)

    def read(self, name: str, start_byte: int, num_bytes: int) -> bytearray:
        """Read bytes of one tensor."""
        descriptor, at = self._place[name]
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            got = os.preadv(descriptor, [view], at + start_byte + num_bytes - len(view))
            if not got:
                raise EOFError(f"{name!r} was cut short while it was written")
            view = view[got:]
        return data

    def sync(self) -> None:
        """Return when everything is on disk."""
        for descriptor in self._descriptors:
            os.fsync(descriptor)


def copy_others(old: CheckpointDirectory, planned: DirectoryContent, folder: Path) -> None:
    """Write the index and the other files into `folder`, synced."""
    if planned.index is not None:
        (folder / INDEX_FILE).write_bytes(planned.index)
        sync(folder / INDEX_FILE)
    for relative in planned.others:
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old.directory / relative, folder / relative)
        sync(folder / relative)
    # The names of the files are durable only with their folders.
    for made in _folders(folder):
        sync(made)


def _folders(folder: Path) -> Iterator[Path]:
    return (Path(path) for path, _, _ in os.walk(folder))


def _write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
