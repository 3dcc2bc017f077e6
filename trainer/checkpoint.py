"""Checkpoints: `checkpoints/<fork>.<version>/` with its parts, and a manifest that makes it one.

Parts (float32 weights of the actor; everything else of the learner) are written and synced first; the manifest, which
lists them with their hashes, is renamed into place last. A directory without a manifest is no checkpoint, so a crash at
any moment leaves the previous one whole. A complete checkpoint is never written again: its policy names its weights.
Restoring verifies every part before anything is loaded. Sharding later adds parts to the same manifest.

The manifest also says where the run stood: the line of the audit, the groups that were open, the root over all batches
of its history, and its parent, by hash: manifests are a chain, and `periplus job audit` walks it.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from blake3 import blake3

from periplus import finite_json
from periplus.digest import state_digest
from periplus.errors import ConfigError, NotFound
from periplus.policy import Lineage, Policy
from periplus.run_directory import write_atomically
from periplus.state import read_safetensors, write_safetensors
from trainer.publish import bf16_state, float32_state, load_float32

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
    """What a checkpoint says of itself. `parts`: hash by name; `progress`: sums that the final summary continues;
    `digest`: of the manifest's own bytes."""

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


def save(root: Path, content: Content, model: Any, learner: Stateful) -> Manifest:
    """Write a checkpoint under `root` and make it durable, unless it is there."""
    directory = root / str(content.policy)
    if (directory / MANIFEST).is_file():
        return _read(directory / MANIFEST)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_safetensors(directory / WEIGHTS, float32_state(model))
    torch.save(learner.state_dict(), directory / LEARNER)
    parts = []
    for name in (WEIGHTS, LEARNER):
        _sync(directory / name)
        parts.append({"name": name, "bytes": (directory / name).stat().st_size, "blake3": _hash(directory / name)})
    manifest = _manifest(content) | {"weights": state_digest(bf16_state(model)).hex(), "parts": parts}
    write_atomically(directory / MANIFEST, finite_json.dumps(manifest, indent=1))
    _sync(root)
    return _read(directory / MANIFEST)


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
        policy = Policy(data["fork"], data["version"])
        return Manifest(
            job_id=data["job_id"], policy=policy,
            lineage=Lineage(policy.fork, tuple(Policy(fork, version) for fork, version in data["parents"])),
            parts={name: listed[name] for name in (WEIGHTS, LEARNER)}, progress=data["progress"],
            audit_line=data["audit"]["n"], next_group=data["next_group"], open_groups=tuple(data["open_groups"]),
            batches_root=bytes.fromhex(data["batches_root"]), digest=blake3(text).digest(), directory=path.parent,
        )  # fmt: skip
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
