"""Restores a checkpoint on any number of ranks, however many wrote it. Each rank reads only the rows that it needs.

Invariants (tests/trainer/checkpointing/test_restoration.py):
- The hash of every part is verified before anything is loaded. The ranks share this work.
- A checkpoint that lacks a part, a tensor or a row is refused, and so is one with a row in two parts.
- If a rank finds a problem, all ranks raise the same error, and no model or learner has changed.

Rank 0 calls `restore`. For each such call every other rank calls `restore_rows`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from periplus.errors import ConfigError, PeriplusError
from periplus.values.row_parts import PartReader
from trainer.checkpointing.learner_state import Stateful, check_fits, empty_tensors, paths_in, rebuilt
from trainer.checkpointing.manifest import (
    ACTOR,
    LEARNER,
    LEARNT,
    MANIFEST,
    Manifest,
    read_manifest,
)
from trainer.checkpointing.parts import DTYPES, RowSource, file_hash, fill
from trainer.data.adapters import trained_parameters
from trainer.distributed.collectives import HostCollectives
from trainer.publishing.local_rows import LocalRows, held_rows, parameter_rows, reshard
from trainer.publishing.shard_digest import rounded_digests

ALONE = HostCollectives()
"""A trainer of one process."""


def restore(manifest: Manifest, model: Any, learner: Stateful, ranks: HostCollectives = ALONE) -> None:
    """Verify the hash of every part, then load the weights into `model` and the rest into `learner`.

    Raises: ConfigError, on every rank, if a part is not what the manifest lists, or if the checkpoint is of another
    model or algorithm; model and learner are then as they were.
    """
    ranks.broadcast_value([str(manifest.directory), manifest.digest.hex()])
    _restore(manifest, model, learner, ranks)


def restore_rows(model: Any, learner: Stateful, ranks: HostCollectives) -> None:
    """Load this rank's rows, while rank 0 is in `restore`. Raises: ConfigError as `restore` does."""
    directory, digest = ranks.broadcast_value(None)
    manifest = read_manifest(Path(directory) / MANIFEST)
    assert manifest.digest.hex() == digest, "all ranks see the same directory"
    _restore(manifest, model, learner, ranks)


def _restore(manifest: Manifest, model: Any, learner: Stateful, ranks: HostCollectives) -> None:
    # Each rank hashes some of the parts; what one finds stops all.
    names = sorted(manifest.parts)[ranks.rank :: ranks.size]
    _agree([problem for name in names if (problem := _part_problem(manifest, name))], ranks)
    _agree(_base_problems(manifest, model, ranks), ranks)
    problems, loaded = [], None
    try:
        loaded = _Loaded.of(manifest, model, learner)
    except PeriplusError as error:
        problems.append(str(error))
    _agree(problems, ranks)
    assert loaded is not None
    # From here on nothing is refused any more, but a learner of another algorithm, which changes nothing.
    learner.load_state_dict(loaded.learnt)
    for rows in loaded.actor_rows:
        fill(rows, loaded.actor)


def _base_problems(manifest: Manifest, model: Any, ranks: HostCollectives) -> list[str]:
    """Compare the weights that are not trained with those under which the checkpoint was made. It is a collective."""
    trained = {rows.name for rows in parameter_rows(model, ranks.rank, trained_only=True)}
    frozen = [rows for rows in parameter_rows(model, ranks.rank) if rows.name not in trained]
    found = rounded_digests(frozen, ranks)
    if ranks.rank or found == manifest.frozen:
        return []
    odd = sorted(name for name in found.keys() | manifest.frozen.keys() if found.get(name) != manifest.frozen.get(name))
    return [
        f"{manifest.directory} was made with other weights under its adapters: {odd[:3]} differ; resume with the "
        "model.path and model.lora with which the run began"
    ]


def _agree(problems: Sequence[str], ranks: HostCollectives) -> None:
    found = [problem for each in ranks.exchange_values(list(problems)) for problem in each]
    if found:
        raise ConfigError(found[0])


def _part_problem(manifest: Manifest, name: str) -> str:
    path = manifest.directory / name
    try:
        if path.is_file() and file_hash(path) == manifest.parts[name]:
            return ""
    except OSError as error:
        return f"{path} cannot be read ({error}), so this checkpoint is damaged; remove it"
    return f"{path} is not the part that the manifest lists, so this checkpoint is damaged; remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A checkpoint that was found to fit: where to read the actor, into which rows, and the learner's whole state."""

    actor: RowSource
    actor_rows: Sequence[LocalRows]
    learnt: dict[str, Any]

    @classmethod
    def of(cls, manifest: Manifest, model: Any, learner: Stateful) -> "_Loaded":
        actor, (tree, tensors) = _actor_source(manifest), _learner_source(manifest)
        reshard(model)
        rows = [held_rows(name, parameter) for name, parameter in trained_parameters(model)]
        _check_actor(actor, rows)
        layouts = tensors.layouts()
        if odd := set(paths_in(tree)) ^ layouts.keys():
            raise ConfigError(
                f"{manifest.directory} is damaged: only one of {LEARNER} and the parts has the tensors "
                f"{sorted(odd)[:3]}; remove it"
            )
        check_fits(learner, tree)
        made = empty_tensors(learner, layouts)
        for path, tensor in made.items():
            fill(held_rows(path, tensor), tensors)
        return cls(actor=actor, actor_rows=rows, learnt=rebuilt(tree, made))


def _check_actor(source: RowSource, rows: Sequence[LocalRows]) -> None:
    layouts, wanted = source.layouts(), {each.name: each.shape for each in rows}
    if odd := sorted(layouts.keys() ^ wanted.keys()):
        raise ConfigError(
            f"the checkpoint is of another model: only one of them has the tensors {odd[:3]}; resume with the job that "
            "made the checkpoint"
        )
    for name, shape in wanted.items():
        if layouts[name] != (torch.float32, shape):
            raise ConfigError(
                f"the checkpoint is of another model: {name} is {layouts[name]} in it, but float32 {shape} in this "
                "job's model; resume with the job that made the checkpoint"
            )


class _PartedRows:
    """Tensors in the parts of a checkpoint, as a source of rows."""

    def __init__(self, reader: PartReader) -> None:
        self._reader = reader

    def layouts(self) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {name: (_dtype(tensor.dtype), tensor.shape) for name, tensor in self._reader.tensors.items()}

    def rows(self, name: str, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        return self._reader.rows(name, start, stop)


def _actor_source(manifest: Manifest) -> RowSource:
    return _PartedRows(PartReader(manifest.directory, manifest.tensors[ACTOR]))


def _learner_source(manifest: Manifest) -> tuple[Any, RowSource]:
    """Return the tree of the learner's state, and the source of its tensors."""
    parted = PartReader(manifest.directory, manifest.tensors.get(LEARNT, {}))
    return json.loads((manifest.directory / LEARNER).read_bytes()), _PartedRows(parted)


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ConfigError(f"the checkpoint has a tensor of the type {name}, which no trainer writes; remove it")
    return DTYPES[name]
