"""Checkpoints: `checkpoints/<fork>.<version>/` with its parts, and a manifest that makes it one.

Parts (float32 weights of the actor; everything else of the learner; configuration and tokenizer, so that transformers
loads the directory) are written and synced first; the manifest, which lists them with their hashes, is renamed into
place last. A directory without a manifest is no checkpoint, so a crash at any moment leaves the previous one whole; an
error, such as a full disk, removes what was written, and `sweep` what a killed trainer left. A complete checkpoint is
never written again: its policy names its weights. Restoring verifies every part before anything is loaded. Sharding
later adds parts to the same manifest.

The manifest also says where the run stood: the line of the audit, the groups that were open, the root over all batches
of its history, and its parent, by hash: manifests are a chain, and `periplus job audit` walks it.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, Protocol

import torch
from blake3 import blake3

from periplus.config import finite_json
from periplus.errors import ConfigError, NotFound
from periplus.job.run_directory import explained, sync_folder, write_atomically
from periplus.values.digest import state_digest
from periplus.values.policy import Lineage, Policy
from periplus.values.weight_state import content_bytes, read_safetensors, write_safetensors
from trainer.publishing.publish import bf16_state, float32_state, load_float32

SCHEMA = "periplus.checkpoint/1"
MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
LEARNER = "learner.pt"


class Stateful(Protocol):
    """What a learner is to a checkpoint; torch's optimizers are the same."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself. `parts`: the hash of each file by name; `progress`: sums that the final summary
    continues; `digest`: of the manifest's own bytes."""

    job_id: str
    policy: Policy
    lineage: Lineage
    parts: Mapping[str, str]
    progress: Mapping[str, float]
    audit_line: int
    next_group: int
    open_groups: tuple[int, ...]
    batches_root: bytes
    digest: bytes
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Where a run stands. `audit_line` and `audit_prev`: the first line not covered, and the hash of the one before;
    `next_group` and `open_groups`: see trainer/ledger/machine.py; `parent`: the previous checkpoint of this history."""

    job_id: str
    policy: Policy
    lineage: Lineage
    progress: Mapping[str, float]
    audit_line: int
    audit_prev: bytes
    next_group: int
    open_groups: Sequence[int]
    batches_root: bytes
    parent: Manifest | None


def save(root: Path, content: Content, model: Any, learner: Stateful, files: Mapping[str, bytes]) -> Manifest:
    """Write a checkpoint under `root` and make it durable, unless it is there. `files`: what transformers needs beside
    the weights, by name.

    Raises: DiskFull and other StorageErrors, Denied, NotFound; nothing is left of this checkpoint then.
    """
    directory = root / str(content.policy)
    if (directory / MANIFEST).is_file():
        return _read(directory / MANIFEST)
    state, learnt = float32_state(model), learner.state_dict()
    needed_bytes = content_bytes(state) + _tensor_bytes(learnt) + sum(map(len, files.values()))
    with explained(directory, needed_bytes):
        shutil.rmtree(directory, ignore_errors=True)
        root.mkdir(exist_ok=True)  # not its parents: a run directory that was removed is an error
        try:
            directory.mkdir()
            for name, data in files.items():
                (directory / name).write_bytes(data)
            write_safetensors(directory / WEIGHTS, state)
            _save_learner(directory / LEARNER, learnt)
            parts = [_part(directory / name) for name in (WEIGHTS, LEARNER, *sorted(files))]
            manifest = _manifest(content) | {"weights": state_digest(bf16_state(model)).hex(), "parts": parts}
            write_atomically(directory / MANIFEST, finite_json.dumps(manifest, indent=1))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        sync_folder(root)
    return _read(directory / MANIFEST)


def sweep(root: Path) -> None:
    """Remove what trainers that died left half-written or half-removed. Nobody else may be writing under `root`."""
    for directory in root.iterdir() if root.is_dir() else ():
        if directory.is_dir() and not (directory / MANIFEST).is_file():
            shutil.rmtree(directory, ignore_errors=True)


def _part(path: Path) -> dict[str, Any]:
    _sync(path)
    return {"name": path.name, "bytes": path.stat().st_size, "blake3": _hash(path)}


def _save_learner(path: Path, state: Mapping[str, Any]) -> None:
    with path.open("wb", buffering=0) as file:
        sink = _Sink(file)
        torch.save(state, sink)  # type: ignore[arg-type]  # it writes and flushes, and asks no more
    if sink.error is not None:
        raise sink.error


class _Sink:
    """A file for torch.save, which hides an error of writing behind a RuntimeError of its own: the first one is kept
    here, and the rest of the data is dropped."""

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        try:
            while view and self.error is None:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_tensor_bytes, value.values()))
    return sum(map(_tensor_bytes, value)) if isinstance(value, list | tuple) else 0


def _manifest(content: Content) -> dict[str, Any]:
    parent = content.parent
    return {
        "schema": SCHEMA,
        "job_id": content.job_id,
        "fork": content.policy.fork,
        "version": content.policy.version,
        "parents": [[policy.fork, policy.version] for policy in content.lineage.parents],
        "parent": None if parent is None else [parent.policy.fork, parent.policy.version],
        "parent_manifest": None if parent is None else parent.digest.hex(),
        "audit": {"n": content.audit_line, "prev": content.audit_prev.hex()},
        "next_group": content.next_group,
        "open_groups": list(content.open_groups),
        "batches_root": content.batches_root.hex(),
        "progress": dict(content.progress),
    }


def newest(root: Path) -> Manifest:
    """The newest complete checkpoint under `root`. Raises: NotFound, ConfigError."""
    return _all(root)[-1]


def oldest(root: Path) -> Manifest:
    """The oldest complete checkpoint under `root`. Raises: NotFound, ConfigError."""
    return _all(root)[0]


def restore(manifest: Manifest, model: Any, learner: Stateful) -> None:
    """Verify every part, then load. Raises: ConfigError for a part that is not what the manifest says."""
    for name, expected in manifest.parts.items():
        path = manifest.directory / name
        if not path.is_file() or _hash(path) != expected:
            raise ConfigError(f"{path} is not the part that the manifest lists; the checkpoint is damaged, remove it")
    load_float32(model, read_safetensors(manifest.directory))
    learner.load_state_dict(torch.load(manifest.directory / LEARNER, weights_only=True))


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints."""
    for manifest in _all(root)[:-keep]:
        (manifest.directory / MANIFEST).unlink()
        shutil.rmtree(manifest.directory, ignore_errors=True)


def _all(root: Path) -> list[Manifest]:
    """Every complete checkpoint, oldest first. Raises: NotFound if there is none."""
    found = [_read(path) for path in root.glob(f"*/{MANIFEST}")]
    if not found:
        raise NotFound(f"no checkpoint under {root}; was the run stopped before its first one?")
    return sorted(found, key=lambda manifest: manifest.policy)


def _read(path: Path) -> Manifest:
    try:
        text = path.read_bytes()
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ConfigError(f"{path} has schema {data['schema']!r}; this build reads {SCHEMA}")
        listed = {part["name"]: part["blake3"] for part in data["parts"]}
        if missing := {WEIGHTS, LEARNER} - listed.keys():
            raise ValueError(f"it lists no {sorted(missing)[0]}")
        policy = Policy(data["fork"], data["version"])
        return Manifest(
            job_id=data["job_id"],
            policy=policy,
            lineage=Lineage(policy.fork, tuple(Policy(fork, version) for fork, version in data["parents"])),
            parts=listed,
            progress=data["progress"],
            audit_line=data["audit"]["n"],
            next_group=data["next_group"],
            open_groups=tuple(data["open_groups"]),
            batches_root=bytes.fromhex(data["batches_root"]),
            digest=blake3(text).digest(),
            directory=path.parent,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no checkpoint manifest ({error!r}); remove its directory") from error


def _hash(path: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
