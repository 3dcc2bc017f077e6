"""Reader of a run directory: it turns the files into the `Evidence` that an audit checks.

It is the only part of an audit that reads files, and it changes none. Files are hostile input: sizes are capped, pipes
and devices are not read, and whatever cannot be parsed becomes a problem in the evidence instead of an exception.

A run that is still going can be audited. Journal lines count up to the end that the file had when the audit began;
frames that the trainer pruned later are not held against it.
"""

import contextlib
import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from periplus.audit import quoted
from periplus.audit.auditor import Report, audit
from periplus.audit.evidence import AuditedManifest, Evidence, KeptCheckpoint, KeptSpool, Witness, witness
from periplus.audit.journal import read_lines
from periplus.audit.records import FrameId, PruneEntry, from_line
from periplus.codec.frame import Frame, unpack
from periplus.codec.registry import trajectory_decoder
from periplus.config.yaml_text import parse
from periplus.errors import CorruptSpool, NotFound, PeriplusError, StorageError, WireError
from periplus.job.job_file import recorded_job
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.correctness import Correctness, correctness_of
from periplus.process.disk import open_regular
from periplus.spool.reader import SpoolReader
from periplus.values.digest import BLOCK_BYTES, TensorHasher, digest_of
from periplus.values.low_rank import rounded_bits
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.row_parts import PartedTensor, PartReader, num_rows, parted_tensors
from periplus.values.trajectory import Trajectory
from periplus.values.transport_keys import unpack_keyed
from periplus.values.weight_state import (
    INDEX_FILE,
    SINGLE_FILE,
    Tensor,
    WeightState,
    checkpoint_files,
    content_bytes,
    read_safetensors,
)

MANIFEST = "manifest.json"
"""Name of the manifest in a checkpoint's directory."""
LEARNER = "learner.json"
"""Name of the learner's state in a checkpoint's directory, which is no file of the model."""
CONFIG = "config.json"
"""Name of the model's configuration. In final/ it has another dtype than in a checkpoint, and is the same otherwise."""
MAX_FRAME_BYTES = 64 << 20
"""Largest packed frame that is read: the cap of a trainer's intake, which every kept frame has passed."""
MAX_SPOOLED_BYTES = MAX_FRAME_BYTES + (1 << 20)
"""Largest record of a spool that is read: a frame, and in a gateway's spool its key."""
MAX_CONTENT_BYTES = 64 << 20
"""Largest decoded frame: the cap of a trainer's intake, which every kept frame has passed."""

MAX_MANIFEST_BYTES = 64 << 20
"""Most bytes of a manifest that are read: far above what a trainer writes, and still small enough to parse."""
MAX_CONFIG_BYTES = 16 << 20
"""Most bytes of config.yaml that are read: far above what a trainer writes, and still small enough to parse."""

MAX_METRICS_BYTES = 1 << 30
"""Largest metrics.jsonl that is read, enough for a million steps. A larger one is not used, and a note says so."""

MAX_MODEL_FILE_BYTES = 256 << 20
"""Largest file without weights in final/ that is compared, far above the tokenizer of any model."""

READ_ATTEMPTS = 3
"""Attempts to read a store that a running trainer has for itself for a moment. Chosen by hand."""

_BLOCK_VALUES = BLOCK_BYTES // 2
"""Number of bfloat16 values in one block of a tensor's digest."""

_ROUNDED_TENSORS = "actor"  # the collection of a manifest's tensors that is published
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions that parsing an arbitrary file may raise: JSON allows numbers and depths that no field takes."""

_COMPARED = (RecordKind.STEP, RecordKind.EVAL, RecordKind.EVAL_SET)
_FLOAT32, _BFLOAT16 = b'\n  "dtype": "float32"', b'\n  "dtype": "bfloat16"'
_PRUNE = b'"kind":"prune"'

_Decode = Callable[[bytes], tuple[Trajectory, ...]]
Progress = Callable[[str, int, int], None]
"""Callback with the name of what is being read, the amount that is done, and the total, in bytes or records."""


def audit_run(root: Path, spools: Sequence[Path], progress: Progress, authorities: Sequence[bytes] = ()) -> Report:
    """Read a run directory, check it and return the report. Raises: as `read_run`.

    Python's cycle collector is paused meanwhile. An audit makes millions of objects without cycles, so collections find
    nothing; they took a third of the time of a million lines.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return audit(read_run(root, spools, progress, authorities))
    finally:
        if was_enabled:
            gc.enable()


def read_run(root: Path, spools: Sequence[Path], progress: Progress, authorities: Sequence[bytes] = ()) -> Evidence:
    """Read everything that an audit of a run directory compares.

    `authorities` are the public keys of those who may have certified the run's trainers. Without any, certificates are
    not verified.

    Raises: NotFound if there is no audit.jsonl, or if a folder in `spools` does not exist.
    """
    run = RunDirectory(root)
    if not run.audit.is_file():
        raise NotFound(f"{root} holds no {run.audit.name}; is it the directory of a run that has begun?")
    # The order matters while a trainer writes. The journal's size is taken first, so that every other file is at least
    # as new as the audited lines; lines that came meanwhile are read last, since they tell what was pruned under the
    # reader.
    num_bytes = run.audit.stat().st_size
    metrics = _metrics(run)
    final, final_problem = _final(run.final, progress)
    final_files = _final_files(run.final) if final is not None else {}
    config = _config_text(run.config)
    correct = _correctness(run.config) if config is not None else None
    store = _store(run.trajectories, run.trajectories.name, frame_trajectories, progress, correct)
    checkpoints = [_checkpoint(folder, progress) for folder in sorted(run.checkpoints.glob("*")) if folder.is_dir()]
    later = list(_lines(run.audit, num_bytes, None))
    return Evidence(
        lines=_counted(_lines(run.audit, 0, num_bytes), num_bytes, progress),
        frames=store.frames,
        damaged=store.damaged,
        store_damaged=store.is_damaged,
        checkpoints=[checkpoint for checkpoint in checkpoints if checkpoint is not None],
        records=metrics.records,
        newest_started=metrics.newest_started,
        metrics_problem=metrics.problem,
        config=None if config is None else blake3(config).digest(),
        knows_right=None if correct is None else correct.at_least is not None,
        settings=_settings(config, str(run.config)),
        final=final,
        final_problem=final_problem,
        final_files=final_files,
        authorities=authorities,
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
                continue  # this line is not audited; the next audit will report it
            if isinstance(record, PruneEntry):
                found.append(record.kept_from)
    return max(found, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    records: Sequence[Record] | None = None
    newest_started: int = -1
    problem: str = ""


def _metrics(run: RunDirectory) -> _Metrics:
    try:
        _read_start(run.metrics, 0)  # raises for a pipe or a device, which the read below would never finish
        if (num_bytes := run.metrics.stat().st_size) > MAX_METRICS_BYTES:
            return _Metrics(problem=f"it has {num_bytes} bytes, and at most {MAX_METRICS_BYTES} are read")
        found = run.records()
        return _Metrics(
            records=[_compared(record) for record in found if record.kind in _COMPARED],
            newest_started=max((record.policy.fork for record in found), default=-1),
        )
    except (NotFound, FileNotFoundError):
        return _Metrics(problem="it does not exist")
    except (PeriplusError, *_UNREADABLE) as error:
        return _Metrics(problem=str(error)[:200])


def _compared(record: Record) -> Record:
    """Return a record with the values that an audit compares alone, and NaN for what is no number."""
    found = {name: value for name, value in record.values.items() if name in quoted.QUOTED}
    numbers = {name: float(value) if _is_number(value) else math.nan for name, value in found.items()}
    return replace(record, values=numbers, staleness_tokens={})


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 64)


def _correctness(config: Path) -> Correctness | None:
    try:
        return correctness_of(recorded_job(config))
    except (PeriplusError, *_UNREADABLE):
        return None


def _config_text(config: Path) -> bytes | None:
    try:
        return _read_start(config, MAX_CONFIG_BYTES)
    except OSError:
        return None


def _read_start(path: Path, num_bytes: int) -> bytes:
    """Return the first bytes of a regular file, at most `num_bytes`. Raises: OSError, also if it is not regular."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read(num_bytes)


def _settings(text: bytes | None, source: str) -> Mapping[str, object]:
    """Return the settings of a job file that an `open` line repeats, by the names of that line; empty if unreadable."""
    try:
        job = parse((text or b"").decode("utf-8"), source)
    # A config.yaml that cannot be parsed is reported by its hash (kept_files.py).
    except (PeriplusError, *_UNREADABLE):
        return {}
    places = {
        "bound": ("staleness",),
        "group_size": ("algorithm", "group_size"),
        "groups_per_step": ("train", "groups_per_step"),
        "seed": ("seed",),
        "algorithm": ("algorithm", "name"),
    }
    found = {name: _at(job, path) for name, path in places.items()}
    # Values of another type cannot be compared with a line's.
    return {name: value for name, value in found.items() if type(value) in (int, str)}


def _final(folder: Path, progress: Progress) -> tuple[bytes | None, str]:
    """Return the digest of the exported model as it would be published (or None), and a problem (or an empty text)."""
    try:
        has_shards = any(file.is_file() for file in folder.glob("*.safetensors"))
        if not has_shards and not (folder / INDEX_FILE).is_file():
            return None, ""
        state = read_safetensors(folder)  # memory-mapped, not yet read; other files are ignored
        progress("final", 0, content_bytes(state))
        return published_digest(state), ""
    except (PeriplusError, *_UNREADABLE) as error:
        return None, f"the exported model cannot be read: {str(error)[:200]}"


def _final_files(folder: Path) -> Mapping[str, bytes]:
    """Return the digests of the exported model's files, but for those of the weights."""
    try:
        weights = {file.path.name for file in checkpoint_files(folder)}
        if SINGLE_FILE not in weights:
            weights.add(INDEX_FILE)
        names = {path.name for path in folder.iterdir()} - weights
    except (PeriplusError, *_UNREADABLE):
        return {}
    return {name: _file_digest(folder / name) for name in sorted(names)}


def _file_digest(path: Path) -> bytes:
    """Return the digest of a file, or nothing for what cannot be read or is larger than any file but weights."""
    try:
        fits = path.is_file() and path.stat().st_size <= MAX_MODEL_FILE_BYTES
        return blake3().update_mmap(path).digest() if fits else b""
    except OSError:
        return b""


def _model_files(folder: Path, parts: Sequence[Mapping[str, object]]) -> Mapping[str, bytes]:
    """Return the digests that a checkpoint's files without tensors have in final/, where the weights are bfloat16."""
    named = {str(part["name"]): str(part["blake3"]) for part in parts if "holds" not in part}
    files = {name: bytes.fromhex(digest) for name, digest in named.items() if name != LEARNER}
    if CONFIG in files:
        files[CONFIG] = blake3((_config_text(folder / CONFIG) or b"").replace(_FLOAT32, _BFLOAT16)).digest()
    return files


def _at(tree: Any, path: tuple[str, ...]) -> object:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


# ---- frames ----------------------------------------------------------------------------------------------------------


def frame_trajectories(data: bytes) -> tuple[Trajectory, ...]:
    """Decode one record of a trainer's store, which is a codec frame. Raises: CorruptFrame, UnknownCodec."""
    return _decoded(unpack(data, max_payload_bytes=MAX_FRAME_BYTES))


def keyed_trajectories(data: bytes) -> tuple[Trajectory, ...]:
    """Decode one record of a gateway's spool: a frame with its transport key. Raises: CorruptFrame, UnknownCodec."""
    return _decoded(unpack_keyed(data, max_payload_bytes=MAX_FRAME_BYTES)[1])


def _decoded(frame: Frame) -> tuple[Trajectory, ...]:
    return trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=MAX_CONTENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    frames: Mapping[FrameId, tuple[Witness, ...]]
    damaged: Mapping[str, str]
    is_damaged: bool = False


def _store(folder: Path, name: str, decode: _Decode, progress: Progress, correct: Correctness | None = None) -> _Store:
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return _read_store(folder, name, decode, progress, correct)
        except CorruptSpool as error:
            return _Store(frames={}, damaged={name: str(error)}, is_damaged=True)
        except StorageError:
            continue  # a trainer that begins or ends has the database for itself for a moment
    try:
        return _read_store(folder, name, decode, progress, correct)
    except StorageError as error:
        return _Store(frames={}, damaged={name: str(error)}, is_damaged=True)


def _read_store(folder: Path, name: str, decode: _Decode, progress: Progress, correct: Correctness | None) -> _Store:
    is_right = correct.is_right if correct is not None else lambda _: None
    frames: dict[FrameId, tuple[Witness, ...]] = {}
    damaged: dict[str, str] = {}
    try:
        reader = SpoolReader.open(folder, max_record_bytes=MAX_SPOOLED_BYTES)
    except NotFound:
        return _Store(frames={}, damaged={})
    with contextlib.closing(reader):
        num_bytes, num_read = reader.num_bytes, 0
        for record in reader.records():
            position = FrameId(record.position.epoch, record.position.sequence)
            num_read += len(record.data)
            progress(name, num_read, num_bytes)
            try:
                frames[position] = tuple(witness(t, is_right) for t in decode(record.data))
            except WireError as error:
                # No trajectories: a line that points here then knows that the frame exists and is damaged.
                frames[position] = ()
                damaged[f"frame {position}"] = str(error)
        progress(name, num_bytes, num_bytes)
    return _Store(frames=frames, damaged=damaged)


def _spool(folder: Path, progress: Progress) -> KeptSpool:
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a directory; give a gateway's spool")
    store = _store(folder, str(folder), keyed_trajectories, progress)
    witnesses = [w for frame in store.frames.values() for w in frame]
    return KeptSpool(name=str(folder), witnesses=witnesses, damaged=store.damaged)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoint(folder: Path, progress: Progress) -> KeptCheckpoint | None:
    """Read a checkpoint. Without a manifest it is none (its trainer died while writing it), and the result is None."""
    try:
        raw = _read_start(folder / MANIFEST, MAX_MANIFEST_BYTES)
    except OSError:
        return None
    # The hash is of the very bytes that are parsed, as the journal's line has it.
    digest = blake3(raw).digest()
    try:
        data = json.loads(raw)
        manifest = _manifest(data)
        files = _model_files(folder, data["parts"])
        listed = {str(part["name"]): str(part["blake3"]) for part in data["parts"]}
        tensors = parted_tensors(data)
        frozen = [
            (str(name), str(dtype), tuple(map(_count, shape)), bytes.fromhex(tensor))
            for name, (dtype, shape, tensor) in data.get("frozen", {}).items()
        ]
    except _UNREADABLE as error:
        problem = f"it is not a manifest: {error!r:.200}"
        return KeptCheckpoint(name=folder.name, digest=digest, manifest=None, problem=problem)
    bad = {name: problem for name, hash_ in listed.items() if (problem := _part_problem(folder, name, hash_, progress))}
    # The weights are read only if their hash is right, since they are the bulk of the work.
    rounded = None if bad else _rounded(folder, tensors, frozen)
    return KeptCheckpoint(
        name=folder.name, digest=digest, manifest=manifest, bad_parts=bad, rounded=rounded, files=files
    )


def _manifest(data: Any) -> AuditedManifest:
    audit, parent, parent_manifest = data["audit"], data["parent"], data.get("parent_manifest")
    return AuditedManifest(
        job_id=str(data["job_id"]),
        policy=Policy(_count(data["fork"]), _count(data["version"])),
        covers=_count(audit["n"]),
        prev=bytes.fromhex(audit["prev"]),
        weights=bytes.fromhex(data["weights"]),
        parent=None if parent is None else Policy(*map(_count, parent)),
        parent_manifest=None if parent_manifest is None else bytes.fromhex(parent_manifest),
        next_group=_count(data["next_group"]),
        open_groups=frozenset(map(_count, data["open_groups"])),
        batches_root=bytes.fromhex(data["batches_root"]),
        parents=tuple(Policy(*map(_count, policy)) for policy in data.get("parents", ())),
        progress=dict(data.get("progress", {})),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"an integer of 0 to 2^64 - 1 expected, not {value!r:.60}")
    return value


def _part_problem(folder: Path, name: str, expected: str, progress: Progress) -> str:
    path = folder / name
    try:
        # A manifest must not lead the reader out of the checkpoint's folder.
        if Path(name).name != name or not path.is_file():
            return "the manifest lists this part, and it does not exist"
        size = path.stat().st_size
        progress(f"{folder.name}/{name}", 0, size)
        hasher = blake3()
        hasher.update_mmap(path)
    except (OSError, ValueError) as error:
        return f"the manifest lists this part, and it cannot be read: {str(error)[:200]}"
    progress(f"{folder.name}/{name}", size, size)
    found = hasher.hexdigest()
    return "" if found == expected else f"its hash is {found}, the manifest says {expected}"


def _rounded(
    folder: Path,
    tensors: Mapping[str, Mapping[str, PartedTensor]],
    frozen: Sequence[tuple[str, str, tuple[int, ...], bytes]],
) -> bytes | None:
    """Return the digest of the actor's weights rounded to bfloat16, as they are published; None if it is not readable.

    The rows of a tensor may lie in several parts. `frozen` are the weights that no part holds, with their digests.
    """
    try:
        reader = PartReader(folder, tensors.get(_ROUNDED_TENSORS, {}))
    except (PeriplusError, OSError):
        return None
    trained = (
        _published_tensor(name, tensor.dtype, tensor.shape, reader.rows(name, 0, num_rows(tensor.shape)))
        for name, tensor in reader.tensors.items()
    )
    return digest_of([*frozen, *trained])


def published_digest(state: WeightState) -> bytes:
    """Return the digest of `round_to_bf16(state)`, rounding block by block: a large model needs little memory."""
    return digest_of(
        _published_tensor(name, tensor.dtype, tensor.shape, [tensor.data]) for name, tensor in state.items()
    )


def _published_tensor(
    name: str, dtype: str, shape: tuple[int, ...], pieces: Iterable[NDArray[np.uint8]]
) -> tuple[str, str, tuple[int, ...], bytes]:
    hasher = TensorHasher()
    for data in pieces:
        if dtype != "F32":
            hasher.update(data)
            continue
        bits = data.view(np.dtype("<u4"))
        for start in range(0, len(bits), _BLOCK_VALUES):
            hasher.update(rounded_bits(bits[start : start + _BLOCK_VALUES]))
    return name, "BF16" if dtype == "F32" else dtype, shape, hasher.digest()


def round_to_bf16(state: WeightState) -> WeightState:
    """Return the state with float32 tensors rounded to bfloat16 (to nearest, ties to even, as torch does)."""
    return {name: _round(tensor) if tensor.dtype == "F32" else tensor for name, tensor in state.items()}


def _round(tensor: Tensor) -> Tensor:
    return Tensor("BF16", tensor.shape, rounded_bits(tensor.data.view(np.dtype("<u4"))))
