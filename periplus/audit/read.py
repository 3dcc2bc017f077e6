"""From a run directory to an audit's evidence. The only part of an audit that reads files, and it changes none.

A run that is still going can be audited: lines, frames and checkpoints are read up to where the journal ended when the
audit began, and what the trainer pruned meanwhile is not held against it.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from periplus.audit.evidence import Evidence, KeptCheckpoint, KeptSpool, Manifest, Witness, witness
from periplus.audit.journal import read_lines
from periplus.audit.records import FrameId, Prune, from_line
from periplus.codec.frame import Frame, unpack
from periplus.codec.registry import trajectory_decoder
from periplus.digest import state_digest
from periplus.errors import CorruptSpool, NotFound, PeriplusError, StorageError, WireError
from periplus.policy import Policy
from periplus.record import RecordKind
from periplus.run_directory import RunDirectory
from periplus.spool.reader import SpoolReader
from periplus.state import State, Tensor, read_safetensors_file
from periplus.trajectory import Trajectory
from periplus.transport import unpack_keyed
from periplus.yaml_text import parse

MANIFEST = "manifest.json"
MAX_FRAME_BYTES = 1 << 30
MAX_CONTENT_BYTES = 1 << 30
"""Of one frame, far above what a trainer takes in: these have been accepted once."""

MAX_WEIGHTS_BYTES = 8 << 30
"""Checkpoints larger than this are hashed part by part, but not rounded and compared with what was published."""

READ_ATTEMPTS = 3
"""Of a store that loses files while it is read: a trainer prunes at checkpoints, which come more slowly than this."""

_ROUNDED_PART = "model.safetensors"
_PRUNE = b'"kind":"prune"'

_Decode = Callable[[bytes], tuple[Trajectory, ...]]
Progress = Callable[[str, int, int], None]
"""What is being read, how much of it is done, and how much there is; bytes or records."""


def read_run(root: Path, spools: Sequence[Path], progress: Progress) -> Evidence:
    """Everything that an audit of the run directory compares.

    Raises: NotFound if there is no audit.jsonl, or no spool where one was named.
    """
    run = RunDirectory(root)
    if not run.audit.is_file():
        raise NotFound(f"{root} holds no {run.audit.name}; is it the directory of a run that has begun?")
    num_bytes = run.audit.stat().st_size
    steps = _steps(run)
    store = _store(run.trajectories, run.trajectories.name, frame_trajectories, progress)
    checkpoints = [_checkpoint(folder, progress) for folder in sorted(run.checkpoints.glob("*")) if folder.is_dir()]
    later = list(_lines(run.audit, num_bytes, None))
    return Evidence(
        lines=_counted(_lines(run.audit, 0, num_bytes), num_bytes, progress),
        frames=store.frames,
        damaged=store.damaged,
        store_damaged=store.is_damaged,
        checkpoints=[checkpoint for checkpoint in checkpoints if checkpoint is not None],
        steps=steps,
        settings=_settings(run.config),
        spools=[_spool(folder, progress) for folder in spools],
        pruned_before=_pruned_before(later),
        num_later_lines=len(later),
    )


# ---- the journal and its neighbours ----------------------------------------------------------------------------------


def _lines(path: Path, start: int, end: int | None) -> Iterator[bytes]:
    offset = 0
    for line in read_lines(path):
        if offset >= start and (end is None or offset < end):
            yield line if end is None else line[: end - offset]
        offset += len(line)


def _counted(lines: Iterator[bytes], num_bytes: int, progress: Progress) -> Iterator[bytes]:
    done = 0
    for line in lines:
        done += len(line)
        progress("journal", done, num_bytes)
        yield line


def _pruned_before(lines: Sequence[bytes]) -> FrameId | None:
    found = []
    for line in lines:
        if _PRUNE in line and line.endswith(b"\n"):
            try:
                record = from_line(line[:-1], "audit.jsonl").record
            except WireError:
                continue  # the next audit will say so
            if isinstance(record, Prune):
                found.append(record.kept_from)
    return max(found, default=None)


def _steps(run: RunDirectory) -> tuple[Policy, ...]:
    try:
        return tuple(record.policy for record in run.records() if record.kind is RecordKind.STEP)
    except PeriplusError:  # a run without metrics, or with damaged ones, has one witness less
        return ()


def _settings(config: Path) -> Mapping[str, object]:
    """Those of the job that an `open` line repeats, by its names."""
    try:
        job = parse(config.read_text(encoding="utf-8"), str(config))
    except (OSError, ValueError, PeriplusError):
        return {}
    places = {
        "bound": ("staleness",),
        "group_size": ("algorithm", "group_size"),
        "groups_per_step": ("train", "groups_per_step"),
        "seed": ("seed",),
        "algorithm": ("algorithm", "name"),
    }
    found = {name: _at(job, path) for name, path in places.items()}
    return {name: value for name, value in found.items() if value is not None}


def _at(tree: Any, path: tuple[str, ...]) -> object:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


# ---- frames ----------------------------------------------------------------------------------------------------------


def frame_trajectories(data: bytes) -> tuple[Trajectory, ...]:
    """The trajectories of one record of a trainer's store, a codec frame. Raises: CorruptFrame, UnknownCodec."""
    return _decoded(unpack(data, max_payload_bytes=MAX_FRAME_BYTES))


def keyed_trajectories(data: bytes) -> tuple[Trajectory, ...]:
    """The same of a gateway's spool, which keeps the transport key too. Raises: CorruptFrame, UnknownCodec."""
    return _decoded(unpack_keyed(data, max_payload_bytes=MAX_FRAME_BYTES)[1])


def _decoded(frame: Frame) -> tuple[Trajectory, ...]:
    return trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=MAX_CONTENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    frames: Mapping[FrameId, tuple[Witness, ...]]
    damaged: Mapping[str, str]
    is_damaged: bool = False


def _store(folder: Path, name: str, decode: _Decode, progress: Progress) -> _Store:
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return _read_store(folder, name, decode, progress)
        except CorruptSpool as error:
            return _Store(frames={}, damaged={name: str(error)}, is_damaged=True)
        except StorageError:
            continue  # a file went away: a trainer is at work, and prunes
    try:
        return _read_store(folder, name, decode, progress)
    except StorageError as error:
        return _Store(frames={}, damaged={name: str(error)}, is_damaged=True)


def _read_store(folder: Path, name: str, decode: _Decode, progress: Progress) -> _Store:
    frames: dict[FrameId, tuple[Witness, ...]] = {}
    damaged: dict[str, str] = {}
    try:
        reader = SpoolReader.open(folder)
    except NotFound:
        return _Store(frames={}, damaged={})
    for record in reader.records():
        position = FrameId(record.position.epoch, record.position.sequence)
        progress(name, len(frames) + 1, reader.num_records)
        try:
            frames[position] = tuple(witness(t) for t in decode(bytes(record.data)))
        except WireError as error:
            frames[position] = ()
            damaged[f"frame {position}"] = str(error)
    return _Store(frames=frames, damaged=damaged)


def _spool(folder: Path, progress: Progress) -> KeptSpool:
    if not folder.is_dir():
        raise NotFound(f"{folder} is no spool; give the folder that a gateway spools in")
    store = _store(folder, str(folder), keyed_trajectories, progress)
    witnesses = [w for frame in store.frames.values() for w in frame]
    return KeptSpool(name=str(folder), witnesses=witnesses, damaged=store.damaged)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoint(folder: Path, progress: Progress) -> KeptCheckpoint | None:
    """None for a directory without a manifest: its trainer died while writing it, and it is no checkpoint."""
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError:
        return None
    digest = blake3(raw).digest()
    try:
        data = json.loads(raw)
        manifest = _manifest(data)
        listed = {str(part["name"]): str(part["blake3"]) for part in data["parts"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return KeptCheckpoint(name=folder.name, digest=digest, manifest=None, problem=f"no manifest: {error!r}")
    bad = {name: problem for name, hash_ in listed.items() if (problem := _part_problem(folder, name, hash_, progress))}
    rounded = None if bad or _ROUNDED_PART not in listed else _rounded(folder / _ROUNDED_PART)
    return KeptCheckpoint(name=folder.name, digest=digest, manifest=manifest, bad_parts=bad, rounded=rounded)


def _manifest(data: Any) -> Manifest:
    audit, parent, parent_manifest = data["audit"], data["parent"], data.get("parent_manifest")
    return Manifest(
        job_id=str(data["job_id"]),
        policy=Policy(int(data["fork"]), int(data["version"])),
        covers=int(audit["n"]),
        prev=bytes.fromhex(audit["prev"]),
        weights=bytes.fromhex(data["weights"]),
        parent=None if parent is None else Policy(*map(int, parent)),
        parent_manifest=None if parent_manifest is None else bytes.fromhex(parent_manifest),
        next_group=int(data["next_group"]),
        open_groups=frozenset(map(int, data["open_groups"])),
        batches_root=bytes.fromhex(data["batches_root"]),
    )


def _part_problem(folder: Path, name: str, expected: str, progress: Progress) -> str:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        return "the manifest lists this part, and it is not there"
    size = path.stat().st_size
    progress(f"{folder.name}/{name}", 0, size)
    hasher = blake3()
    hasher.update_mmap(path)
    progress(f"{folder.name}/{name}", size, size)
    found = hasher.hexdigest()
    return "" if found == expected else f"its hash is {found}, the manifest says {expected}"


def _rounded(path: Path) -> bytes | None:
    """The digest of the part's weights rounded to bfloat16, as they are published."""
    if os.path.getsize(path) > MAX_WEIGHTS_BYTES:
        return None
    try:
        return state_digest(round_to_bf16(read_safetensors_file(path)))
    except PeriplusError:
        return None


def round_to_bf16(state: State) -> State:
    """Float32 tensors rounded to the nearest bfloat16, ties to even, as torch does; others as they are."""
    return {name: _round(tensor) if tensor.dtype == "F32" else tensor for name, tensor in state.items()}


def _round(tensor: Tensor) -> Tensor:
    bits = tensor.data.view(np.dtype("<u4"))
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    rounded[(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)] = 0x7FC0
    return Tensor("BF16", tensor.shape, rounded)
