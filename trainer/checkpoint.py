"""Checkpoints: `checkpoints/<fork>.<version>/` with its parts, and a manifest that makes it one.

Parts (float32 masters, optimizer) are written and synced first; the manifest, which lists them with their hashes, is
renamed into place last. A directory without a manifest is no checkpoint, so a crash at any moment leaves the previous
one whole. A complete checkpoint is never written again: its policy names its weights. Restoring verifies every part
before anything is loaded. Sharding later adds parts to the same manifest.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from periplus.errors import ConfigError, NotFound
from periplus.policy import Policy
from periplus.run_directory import write_atomically
from periplus.state import read_safetensors, write_safetensors
from trainer.publish import float32_state, load_float32

SCHEMA = "periplus.checkpoint/1"
MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself. `parts`: hash by name; `progress`: sums that the final summary continues."""

    job_id: str
    policy: Policy
    parts: Mapping[str, str]
    progress: Mapping[str, float]
    directory: Path


def save(
    root: Path, job_id: str, policy: Policy, model: Any, optimizer: Any, progress: Mapping[str, float]
) -> Manifest:
    """Write a checkpoint of `policy` under `root` and make it durable, unless it is there."""
    directory = root / str(policy)
    if (directory / MANIFEST).is_file():
        return _read(directory / MANIFEST)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_safetensors(directory / WEIGHTS, float32_state(model))
    torch.save(optimizer.state_dict(), directory / OPTIMIZER)
    parts = []
    for name in (WEIGHTS, OPTIMIZER):
        _sync(directory / name)
        parts.append({"name": name, "bytes": (directory / name).stat().st_size, "blake3": _hash(directory / name)})
    manifest = {
        "schema": SCHEMA, "job_id": job_id, "fork": policy.fork, "version": policy.version, "parts": parts,
        "progress": dict(progress),
    }  # fmt: skip
    write_atomically(directory / MANIFEST, json.dumps(manifest, indent=1))
    _sync(root)
    return _read(directory / MANIFEST)


def newest(root: Path) -> Manifest:
    """The newest complete checkpoint under `root`. Raises: NotFound, ConfigError."""
    found = [_read(path) for path in root.glob(f"*/{MANIFEST}")]
    if not found:
        raise NotFound(f"no checkpoint under {root}; was the run stopped before its first one?")
    return max(found, key=lambda manifest: manifest.policy)


def restore(manifest: Manifest, model: Any, optimizer: Any) -> None:
    """Verify every part, then load. Raises: ConfigError for a part that is not what the manifest says."""
    for name, expected in manifest.parts.items():
        path = manifest.directory / name
        if not path.is_file() or _hash(path) != expected:
            raise ConfigError(f"{path} is not the part that the manifest lists; the checkpoint is damaged, remove it")
    load_float32(model, read_safetensors(manifest.directory))
    optimizer.load_state_dict(torch.load(manifest.directory / OPTIMIZER, weights_only=True))


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints."""
    complete = sorted((_read(path) for path in root.glob(f"*/{MANIFEST}")), key=lambda manifest: manifest.policy)
    for manifest in complete[:-keep]:
        (manifest.directory / MANIFEST).unlink()
        shutil.rmtree(manifest.directory, ignore_errors=True)


def _read(path: Path) -> Manifest:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ConfigError(f"{path} has schema {data['schema']!r}; this build reads {SCHEMA}")
        listed = {part["name"]: part["blake3"] for part in data["parts"]}
        return Manifest(
            job_id=data["job_id"], policy=Policy(data["fork"], data["version"]),
            parts={name: listed[name] for name in (WEIGHTS, OPTIMIZER)}, progress=data["progress"],
            directory=path.parent,
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
