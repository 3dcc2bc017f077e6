"""Checkpoints: directories `checkpoints/<fork>.<version>/` with parts, and a manifest that lists them (manifest.py).

The parts are the actor's weights in float32, the rest of the learner, and the configuration and tokenizer. If one
process trains, transformers can load the directory. If several ranks train, each writes files with the rows that it
owns. All ranks see the same directory.

Invariants:
- Parts are synced to disk before the manifest lists them with their BLAKE3 hashes, and it is renamed into place last.
  A directory without a manifest is not a checkpoint. So a crash at any moment leaves the earlier checkpoints usable.
- After an error on any rank, such as a full disk, nothing of the new checkpoint is left. `sweep` removes what a killed
  trainer left.
- A complete checkpoint is never written again, because its policy (fork and version) identifies its weights.

Rank 0 calls `save`. For each such call every other rank calls `save_rows`. restoration.py reads what is written here.

The manifest also says where the run was: the line of the audit, the open groups, a running root (hash) over all batches
of its history, and the hash of its parent's manifest. So manifests form a chain, which `periplus job audit` follows.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from periplus.config import finite_json
from periplus.errors import NotFound, TrainingError
from periplus.job.run_directory import explained, write_atomically
from periplus.process.disk import sync
from trainer.checkpointing.learner_state import Stateful, flattened
from trainer.checkpointing.manifest import (
    ACTOR,
    LEARNER,
    LEARNER_TENSORS,
    LEARNT,
    MANIFEST,
    WEIGHTS,
    Content,
    Manifest,
    manifest_json,
    read_manifest,
)
from trainer.checkpointing.parts import described, name_of, write_part
from trainer.distributed.collectives import HostCollectives
from trainer.publishing.local_rows import LocalRows, owned_rows, parameter_rows
from trainer.publishing.shard_digest import rounded_digest

ALONE = HostCollectives()
"""A trainer of one process."""


# ---- saving ----------------------------------------------------------------------------------------------------------


def save(
    root: Path,
    content: Content,
    model: Any,
    learner: Stateful,
    files: Mapping[str, bytes],
    ranks: HostCollectives = ALONE,
) -> Manifest:
    """Write a checkpoint under `root`, sync it to disk, and return its manifest. An existing checkpoint is kept.

    `files` are the contents, by name, of the files that transformers needs besides the weights.

    Raises: DiskFull and other StorageErrors, Denied, NotFound, also if only another rank had the error; TrainingError
    if another rank failed otherwise. Nothing of this checkpoint is left then.
    """
    directory = root / str(content.policy)
    # The policy identifies the weights, so what is there is the same.
    if (directory / MANIFEST).is_file():
        ranks.broadcast_value(None)
        return read_manifest(directory / MANIFEST)
    share = _Share.of(model, learner, ranks)
    needed_bytes = share.num_bytes + sum(map(len, files.values()))
    try:
        with explained(directory, needed_bytes):
            shutil.rmtree(directory, ignore_errors=True)
            root.mkdir(exist_ok=True)  # parents are not created: if the run directory was removed, that is an error
            directory.mkdir()
    except BaseException:
        ranks.broadcast_value(None)  # the other ranks wait for the directory
        raise
    ranks.broadcast_value(str(directory))
    # An error of a full disk names the size of the whole checkpoint.
    with explained(directory, needed_bytes + sum(ranks.gather_values(share.num_bytes)[1:])):
        try:
            weights = rounded_digest(share.actor, ranks)
            assert weights is not None
            entries = _collected(directory, ranks, share, files)
            manifest = manifest_json(content, weights=weights, parts=entries, tensors=share.layouts())
            write_atomically(directory / MANIFEST, finite_json.dumps(manifest, indent=1))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        sync(root)
    return read_manifest(directory / MANIFEST)


def save_rows(model: Any, learner: Stateful, ranks: HostCollectives) -> None:
    """Write the rows that this rank owns, while rank 0 is in `save`. An error of the disk is raised there, not here.

    Raises: any other error, after rank 0 was told of it.
    """
    directory = ranks.broadcast_value(None)
    if directory is None:
        return
    share = _Share.of(model, learner, ranks)
    ranks.gather_values(share.num_bytes)
    rounded_digest(share.actor, ranks)
    outcome = _Outcome.of_writing(Path(directory), share, ranks, {})
    ranks.gather_values(outcome.to_json())
    if outcome.failure is not None and outcome.errno is None:
        raise outcome.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one rank owns of a checkpoint's tensors, and the tree of the learner's state, which all ranks have."""

    actor: tuple[LocalRows, ...]
    learnt: tuple[LocalRows, ...]
    tree: Any

    @classmethod
    def of(cls, model: Any, learner: Stateful, ranks: HostCollectives) -> "_Share":
        tree, tensors = flattened(learner.state_dict())
        return cls(
            # The masters are float32; a model of another type is kept in float32 as well.
            actor=tuple(
                replace(rows, tensor=rows.tensor.to(torch.float32)) for rows in parameter_rows(model, ranks.rank)
            ),
            learnt=tuple(owned_rows(path, tensor, ranks.rank) for path, tensor in tensors.items()),
            tree=tree,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that this rank writes."""
        return sum(rows.tensor.numel() * rows.tensor.element_size() for rows in (*self.actor, *self.learnt))

    def layouts(self) -> dict[str, dict[str, list[Any]]]:
        """Return dtype and shape of each whole tensor, by collection and name."""
        return {
            collection: {rows.name: [name_of(rows), list(rows.shape)] for rows in all_rows}
            for collection, all_rows in ((ACTOR, self.actor), (LEARNT, self.learnt))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How one rank's writing ended: the manifest entries of its files, or an error. `errno` is set for OSErrors."""

    entries: Sequence[Mapping[str, Any]] = ()
    errno: int | None = None
    why: str = ""
    failure: Exception | None = None

    @classmethod
    def of_writing(
        cls, directory: Path, share: _Share, ranks: HostCollectives, files: Mapping[str, bytes]
    ) -> "_Outcome":
        try:
            return cls(entries=_written(directory, share, ranks, files))
        except OSError as error:
            return cls(errno=error.errno or 0, why=error.strerror or str(error), failure=error)
        except Exception as error:  # raised again by the caller, once rank 0 knows
            return cls(why=repr(error), failure=error)

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": list(self.entries),
            "errno": self.errno,
            "why": self.why,
            "failed": self.failure is not None,
        }


def _written(
    directory: Path, share: _Share, ranks: HostCollectives, files: Mapping[str, bytes]
) -> list[Mapping[str, Any]]:
    """Write this rank's files and the given ones, and return their manifest entries. Raises: OSError."""
    for name, data in files.items():
        (directory / name).write_bytes(data)
    suffix = f"rank-{ranks.rank + 1:05}-of-{ranks.size:05}.safetensors"
    weights, learnt = (WEIGHTS, LEARNER_TENSORS) if ranks.size == 1 else (f"{ACTOR}-{suffix}", f"{LEARNT}-{suffix}")
    written = [
        write_part(directory / weights, ACTOR, share.actor),
        write_part(directory / learnt, LEARNT, share.learnt),
    ]
    # Each part is synced and hashed before the manifest that lists it.
    return [
        *(entry for entry in written if entry is not None),
        *(described(directory / name) for name in files),
    ]


def _collected(
    directory: Path, ranks: HostCollectives, share: _Share, files: Mapping[str, bytes]
) -> list[Mapping[str, Any]]:
    """Write rank 0's files, and return the manifest entries of all ranks.

    Raises: OSError of any rank; TrainingError if another rank failed otherwise.
    """
    tree = json.dumps(share.tree).encode()
    own = _Outcome.of_writing(directory, share, ranks, {LEARNER: tree, **dict(sorted(files.items()))})
    outcomes = ranks.gather_values(own.to_json())
    if own.failure is not None:
        raise own.failure
    for rank, outcome in enumerate(outcomes):
        if outcome["errno"] is not None:
            raise OSError(outcome["errno"], outcome["why"], str(directory))
        if outcome["failed"]:
            raise TrainingError(f"rank {rank} could not write its part of {directory}: {outcome['why']}")
    return [entry for outcome in outcomes for entry in outcome["entries"]]


# ---- the checkpoints of a run ----------------------------------------------------------------------------------------


def sweep(root: Path) -> None:
    """Remove directories under `root` that are not complete checkpoints, which killed trainers left behind.

    No other process may be writing under `root`.
    """
    for directory in root.iterdir() if root.is_dir() else ():
        if directory.is_dir() and not (directory / MANIFEST).is_file():
            shutil.rmtree(directory, ignore_errors=True)


def newest(root: Path) -> Manifest:
    """Return the newest complete checkpoint under `root`.

    Raises: NotFound if there is none; ConfigError if a manifest is damaged or has another schema.
    """
    return _all(root)[-1]


def oldest(root: Path) -> Manifest:
    """Return the oldest complete checkpoint under `root`. Raises: as `newest` does."""
    return _all(root)[0]


def prune(root: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep` ones.

    The manifest goes first, so that a half-removed directory is not taken for a checkpoint.
    """
    for manifest in _all(root)[:-keep]:
        (manifest.directory / MANIFEST).unlink()
        shutil.rmtree(manifest.directory, ignore_errors=True)


def _all(root: Path) -> list[Manifest]:
    """Return all complete checkpoints, oldest first. Raises: as `newest` does."""
    found = [read_manifest(path) for path in root.glob(f"*/{MANIFEST}")]
    if not found:
        raise NotFound(f"there is no checkpoint under {root}; was the run stopped before its first one?")
    return sorted(found, key=lambda manifest: manifest.policy)
