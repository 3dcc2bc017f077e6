"""The format of checkpoints: a directory `checkpoints/<fork>.<version>/` with parts, and a manifest that lists them.

The parts are the actor's weights in float32, everything else of the learner, and the configuration and tokenizer. So
transformers can load the directory. Parts are written and synced to disk first. The manifest lists them with their
BLAKE3 hashes, and is renamed into place last.

Invariants:
- A directory without a manifest is not a checkpoint. So a crash at any moment leaves the earlier checkpoints usable.
- After an error, such as a full disk, nothing of the new checkpoint is left. `sweep` removes what a killed trainer
  left.
- A complete checkpoint is never written again, because its policy (fork and version) identifies its weights.
- Restoring verifies the hash of every part before anything is loaded.

The manifest also says where the run was: the line of the audit, the open groups, a running root (hash) over all batches
of its history, and the hash of its parent's manifest. So manifests form a chain, which `periplus job audit` follows.
"""

import json
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
from periplus.job.run_directory import explained, write_atomically
from periplus.process.disk import sync
from periplus.values.digest import state_digest
from periplus.values.policy import Lineage, Policy
from periplus.values.weight_state import content_bytes, read_safetensors, write_safetensors
from trainer.publishing.publish import bf16_state, float32_state, load_float32

SCHEMA = "periplus.checkpoint/1"
"""Name and version of the manifest's format."""

MANIFEST = "manifest.json"
"""File whose presence makes a directory a checkpoint."""

WEIGHTS = "model.safetensors"
"""File of the actor's weights in float32."""

LEARNER = "learner.pt"
"""File of the learner's state: optimizers, critic and reference model."""


class Stateful(Protocol):
    """An object whose state a checkpoint saves and restores, with the same methods as torch's optimizers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a complete checkpoint's manifest.

    - `policy`, `lineage`: the version that was saved, and the history of its fork.
    - `parts`: the BLAKE3 hash of each file, in hexadecimal, by file name.
    - `progress`: sums over the run, which the final summary continues.
    - `audit_line`: number of the first line of the audit that the checkpoint does not cover.
    - `next_group`, `open_groups`: the ledger's next group, and the groups that were open.
    - `batches_root`: running hash over all batches of the history.
    - `digest`: BLAKE3 hash of the manifest's own bytes. `directory`: where the checkpoint is.
    """

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
    """Where a run is when a checkpoint is written: what the manifest holds besides the parts.

    - `audit_line`, `audit_prev`: number of the first line of the audit that the checkpoint does not cover, and the
      hash of the line before.
    - `next_group`, `open_groups`: the ledger's next group, and the groups that are open (trainer/ledger/machine.py).
    - `batches_root`: running hash over all batches of the history.
    - `parent`: the previous checkpoint of this history; None for the first.
    """

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
    """Write a checkpoint under `root`, sync it to disk, and return its manifest. An existing checkpoint is kept.

    `files` are the contents, by name, of the files that transformers needs besides the weights.

    Raises: DiskFull and other StorageErrors, Denied, NotFound. Nothing of this checkpoint is left then.
    """
    directory = root / str(content.policy)
    # The policy identifies the weights, so what is there is the same.
    if (directory / MANIFEST).is_file():
        return _read(directory / MANIFEST)
    state, learnt = float32_state(model), learner.state_dict()
    # An error of a full disk names this size.
    needed_bytes = content_bytes(state) + _tensor_bytes(learnt) + sum(map(len, files.values()))
    with explained(directory, needed_bytes):
        shutil.rmtree(directory, ignore_errors=True)
        root.mkdir(exist_ok=True)  # parents are not created: if the run directory was removed, that is an error
        try:
            directory.mkdir()
            for name, data in files.items():
                (directory / name).write_bytes(data)
            write_safetensors(directory / WEIGHTS, state)
            _save_learner(directory / LEARNER, learnt)
            # Each part is synced and hashed before the manifest that lists it.
            parts = [_part(directory / name) for name in (WEIGHTS, LEARNER, *sorted(files))]
            manifest = _manifest(content) | {"weights": state_digest(bf16_state(model)).hex(), "parts": parts}
            write_atomically(directory / MANIFEST, finite_json.dumps(manifest, indent=1))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        sync(root)
    return _read(directory / MANIFEST)


def sweep(root: Path) -> None:
    """Remove directories under `root` that are not complete checkpoints, which killed trainers left behind.

    No other process may be writing under `root`.
    """
    for directory in root.iterdir() if root.is_dir() else ():
        if directory.is_dir() and not (directory / MANIFEST).is_file():
            shutil.rmtree(directory, ignore_errors=True)


def _part(path: Path) -> dict[str, Any]:
    sync(path)
    return {"name": path.name, "bytes": path.stat().st_size, "blake3": _hash(path)}


def _save_learner(path: Path, state: Mapping[str, Any]) -> None:
    with path.open("wb", buffering=0) as file:
        sink = _Sink(file)
        torch.save(state, sink)  # type: ignore[arg-type]  # it writes and flushes, and asks no more
    # torch.save has returned as if all was written.
    if sink.error is not None:
        raise sink.error


class _Sink:
    """A file for torch.save that keeps the first error of writing in `error`, and drops all later data.

    torch.save would replace such an error by a RuntimeError of its own, and a full disk could not be recognised.
    """

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
        """Do nothing, since `write` holds nothing back."""


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
    """Return the newest complete checkpoint under `root`.

    Raises: NotFound if there is none; ConfigError if a manifest is damaged or has another schema.
    """
    return _all(root)[-1]


def oldest(root: Path) -> Manifest:
    """Return the oldest complete checkpoint under `root`. Raises: as `newest` does."""
    return _all(root)[0]


def restore(manifest: Manifest, model: Any, learner: Stateful) -> None:
    """Verify the hash of every part, then load the weights into `model` and the rest into `learner`.

    Raises: ConfigError if a part is not what the manifest lists, or if the checkpoint is of another model or algorithm.
    """
    for name, expected in manifest.parts.items():
        path = manifest.directory / name
        if not path.is_file() or _hash(path) != expected:
            raise ConfigError(
                f"{path} is not the part that the manifest lists, so this checkpoint is damaged; remove it"
            )
    load_float32(model, read_safetensors(manifest.directory))
    learner.load_state_dict(torch.load(manifest.directory / LEARNER, weights_only=True))


def prune(root: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest `keep` ones.

    The manifest goes first, so that a half-removed directory is not taken for a checkpoint.
    """
    for manifest in _all(root)[:-keep]:
        (manifest.directory / MANIFEST).unlink()
        shutil.rmtree(manifest.directory, ignore_errors=True)


def _all(root: Path) -> list[Manifest]:
    """Return all complete checkpoints, oldest first. Raises: as `newest` does."""
    found = [_read(path) for path in root.glob(f"*/{MANIFEST}")]
    if not found:
        raise NotFound(f"there is no checkpoint under {root}; was the run stopped before its first one?")
    return sorted(found, key=lambda manifest: manifest.policy)


def _read(path: Path) -> Manifest:
    try:
        text = path.read_bytes()
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ConfigError(
                f"{path} has schema {data['schema']!r}, and this build reads {SCHEMA}; use the build that wrote it"
            )
        listed = {part["name"]: part["blake3"] for part in data["parts"]}
        # Without these two parts nothing could be restored.
        if missing := {WEIGHTS, LEARNER} - listed.keys():
            raise ValueError(f"the part {sorted(missing)[0]} is not listed")
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
            # Of the bytes in the file, which is what the next manifest and the audit name.
            digest=blake3(text).digest(),
            directory=path.parent,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a checkpoint manifest ({error!r}); remove its directory") from error


def _hash(path: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()
