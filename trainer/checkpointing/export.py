"""Exports the final model as transformers loads it: bfloat16 weights, configuration and tokenizer.

The model is written to a temporary directory, read back and compared with the digest of the version that was published
last, and then renamed. So `final/` exists only when it is complete and verified.

The weights are rounded and written tensor by tensor, so that little more than one tensor is in memory. If several ranks
share the model, they send their rows of one tensor after another to rank 0, which writes all files.
"""

import copy
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch
from torch.distributed.fsdp import FSDPModule

from periplus.errors import StorageError, TrainingError
from periplus.job.run_directory import explained, write_atomically
from periplus.process.disk import PARTIAL, sync
from periplus.values.digest import TensorHasher, digest_of, state_digest
from periplus.values.low_rank import WEIGHT, is_adapter
from periplus.values.safetensors_format import SafetensorsLine, layout_bytes, safetensors_order
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE, read_safetensors, writing_safetensors
from trainer.data.adapters import adapted_layers, merged_weight
from trainer.distributed.collectives import Arrays, HostCollectives
from trainer.publishing.local_rows import LocalRows, gather_each, parameter_rows
from trainer.publishing.publish import BUNDLE_FILES, bf16_state
from trainer.publishing.shard_digest import rounded_words

CONFIG = "config.json"
"""File name of the model's configuration, as transformers expects it."""

CHAT_TEMPLATE = "chat_template.jinja"
"""File name of a chat template, as transformers expects it."""

MAX_FILE_BYTES = 5 << 30
"""Largest file of weights. A model that is larger gets several files and an index. transformers' limit was the same for
years."""

ALONE = HostCollectives()
"""A trainer of one process."""


def model_files(model_dir: Path, model: Any, chat_template: str | None = None) -> dict[str, bytes]:
    """Return the contents of the files that transformers needs besides the float32 weights of `model`, by name.

    The tokenizer's files come unchanged from `model_dir`, from which the model was loaded, but for `chat_template`, the
    text of a template with which the model was trained instead of its own. The configuration is that of the model,
    with dtype float32.
    """
    files = {name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()}
    if chat_template is not None:
        # transformers prefers this file to a template in the tokenizer's configuration.
        files[CHAT_TEMPLATE] = chat_template.encode()
    return files | {CONFIG: _config(model, torch.float32)}


def final_model(
    model: Any,
    files: Mapping[str, bytes],
    directory: Path,
    published_digest: bytes,
    ranks: HostCollectives = ALONE,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> bytes:
    """Write the model as `directory`, with bfloat16 weights and the files from `model_files`.

    Return the digest of the weights that were written. It is `published_digest`, unless the model has adapters, which
    are merged into their layers.

    `published_digest` is the digest of the version that was published last. An earlier `directory` is replaced. Files
    of weights are at most `max_file_bytes` long, unless a single tensor is longer.

    Rank 0 calls it. For each such call every other rank calls `final_rows`.

    Raises: TrainingError if the model's weights are not that version; StorageError if the disk returns other bytes than
    were written; DiskFull and other StorageErrors, Denied, NotFound. Nothing half-written is left then.
    """
    files = {**files, CONFIG: _config(model, torch.bfloat16)}
    all_rows = _exported_rows(model, ranks.rank)
    partial = directory.with_name(f".{directory.name}{PARTIAL}")
    weights = _WeightFiles(partial, files, _planned(all_rows, max_file_bytes))
    with explained(directory, weights.num_bytes + sum(map(len, files.values()))):
        try:
            with weights:
                # Other ranks send all their rows, whatever happens here, so they wait for nobody.
                gather_each(all_rows, ranks, _words_of(model), weights.add)
            if (found := _published_digest(model, weights.digest)) != published_digest:
                raise TrainingError(
                    f"the weights to export to {directory} have digest {found.hex()}, but the version published last "
                    f"has {published_digest.hex()}: they were not exported; resume the job from its last checkpoint, "
                    "and report this error"
                )
            # Read it back: what people will use must be what was published.
            _prove(partial, weights.digest)
            _swap_in(partial, directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync(directory.parent)
    return weights.digest


def final_rows(model: Any, ranks: HostCollectives) -> None:
    """Send the rows that this rank owns, while rank 0 is in `final_model`."""
    gather_each(_exported_rows(model, ranks.rank), ranks, _words_of(model), lambda rows, arrays: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeightFile:
    """One file of weights to write, with its tensors in their order."""

    name: str
    lines: tuple[SafetensorsLine, ...]


def _planned(all_rows: Sequence[LocalRows], max_file_bytes: int) -> tuple[_WeightFile, ...]:
    """Divide the tensors, in their order, among as few files as their sizes allow."""
    lines = [(rows.name, "BF16", rows.shape) for rows in all_rows]
    cut: list[list[SafetensorsLine]] = [[]]
    room_bytes = max_file_bytes
    for line in safetensors_order(lines):
        size_bytes = layout_bytes(line[1], line[2])
        if cut[-1] and size_bytes > room_bytes:
            cut.append([])
            room_bytes = max_file_bytes
        cut[-1].append(line)
        room_bytes -= size_bytes
    if len(cut) == 1:
        return (_WeightFile(name=SINGLE_FILE, lines=tuple(cut[0])),)
    return tuple(
        _WeightFile(name=f"model-{number:05}-of-{len(cut):05}.safetensors", lines=tuple(each))
        for number, each in enumerate(cut, 1)
    )


class _WeightFiles:
    """Writes the files of an exported model one after another, as the words of its tensors come.

    All that touches the disk happens in `add` and at the end of the `with` block. `add` is called with the tensors in
    the order of the plan, and with the words of one tensor in one or more pieces.
    """

    def __init__(self, directory: Path, files: Mapping[str, bytes], plan: Sequence[_WeightFile]) -> None:
        self._directory, self._files, self._plan = directory, files, plan
        self._file_of = {line[0]: file for file in plan for line in file.lines}
        self._hashers = {line[0]: TensorHasher() for file in plan for line in file.lines}
        self._open: _WeightFile | None = None
        self._write: Callable[[npt.NDArray[Any]], None] | None = None
        self._opened = ExitStack()

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(layout_bytes(dtype, shape) for file in self._plan for _, dtype, shape in file.lines)

    @property
    def digest(self) -> bytes:
        """Digest of the state that was added."""
        lines = (line for file in self._plan for line in file.lines)
        return digest_of((name, dtype, shape, self._hashers[name].digest()) for name, dtype, shape in lines)

    def __enter__(self) -> Self:
        return self

    def add(self, rows: LocalRows, arrays: Arrays) -> None:
        """Append words of a tensor. Raises: OSError."""
        if self._open is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir()
            for name, data in self._files.items():
                write_atomically(self._directory / name, data)
        file = self._file_of[rows.name]
        if file is not self._open:
            self._opened.close()  # completes the file before
            self._open = file
            self._write = self._opened.enter_context(writing_safetensors(self._directory / file.name, file.lines))
        assert self._write is not None
        self._write(arrays[0])
        self._hashers[rows.name].update(arrays[0])

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._opened.__exit__(kind, error, trace)
        if error is None and len(self._plan) > 1:
            file_of = {name: file.name for name, file in sorted(self._file_of.items())}
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": file_of}
            write_atomically(self._directory / INDEX_FILE, json.dumps(index, indent=2))


def _words_of(model: Any) -> Callable[[LocalRows], Arrays]:
    """Return the function that gives the words of a tensor to export, with the adapters of its layer merged."""
    adapted = {f"{name}{WEIGHT}": layer for name, layer in adapted_layers(model).items()}

    def words(rows: LocalRows) -> Arrays:
        layer = adapted.get(rows.name)
        return [rounded_words(rows.tensor if layer is None else merged_weight(layer))]

    return words


def _exported_rows(model: Any, rank: int) -> list[LocalRows]:
    """Return the rows to export: those of all weights, without adapters, which are merged into their layers."""
    return [rows for rows in parameter_rows(model, rank) if not is_adapter(rows.name)]


def _published_digest(model: Any, exported: bytes) -> bytes:
    """Return the digest of what is published: that of the exported weights, unless adapters were merged into them."""
    return state_digest(bf16_state(model)) if adapted_layers(model) else exported


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
    # FSDP2 makes a class of its own of the class of a model that it divides.
    known = next(each for each in type(model).__mro__ if not issubclass(each, FSDPModule))
    config.dtype, config.architectures = dtype, [known.__name__]
    text: str = config.to_json_string()
    return text.encode()


def _prove(directory: Path, written_digest: bytes) -> None:
    if (found := state_digest(read_safetensors(directory))) != written_digest:
        raise StorageError(
            f"{directory / SINGLE_FILE} has digest {found.hex()} when it is read back, but weights of the digest "
            f"{written_digest.hex()} were written: the disk does not keep what is written; repair it, then resume the "
            "job"
        )
