"""CODEC_TRAJECTORY_COLUMNS_ZSTD: many trajectories as columns in one zstandard frame, floats bit for bit.

Content, all little-endian; a column is stored as byte planes (see columns.py); counts come first, so that the length of
everything after them is known:

    u8   layout, 1
    u32  trajectories, distinct prompts, prompt ids, completion ids, policy runs, worker names, bytes of worker names
    a prompt          u32 number of ids
    a prompt id       u32
    a trajectory      u64 lease, u64 group, u32 sample, u64 item, u8 purpose, u32 prompt, u32 completion ids, u32 runs,
                      f64 reward, u8 stop reason, u32 worker name, f64 generation_s
    a completion id   u32 id, f32 logprob, u8 mask
    a run             u32 fork, u64 version, u32 tokens
    a worker name     u32 bytes; then the names, UTF-8, end to end

Each line is a group of columns, in this order. A prompt is stored once for all samples that share it. Small numbers
cost nothing for their zero planes, so ids need no narrower type. `decode` proves the layout (lengths, indices, enums);
whether the values make sense is `periplus.trajectory.validate`, which every receiver calls next.
"""

import json
import struct
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from periplus.codec.columns import Columns, column
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame
from periplus.policy import Policy
from periplus.trajectory import PolicyRun, Purpose, StopReason, Trajectory

LEVEL = 3
"""zstandard's default; log-probabilities are mostly noise, so that higher levels gain little."""

_T = TypeVar("_T")
_H = TypeVar("_H", bound=Hashable)

_LAYOUT = 1
_LAYOUT_AND_COUNTS = struct.Struct("<B7I")
_PURPOSES = (Purpose.TRAIN, Purpose.EVAL)
_STOP_REASONS = (StopReason.EOS, StopReason.LENGTH, StopReason.ABANDONED)


class _Row(NamedTuple):
    """What is stored once a trajectory; `_ROW_DTYPES` are the columns' types."""

    lease_id: int
    group: int
    sample: int
    item: int
    purpose: int
    prompt: int
    num_ids: int
    num_runs: int
    reward: float
    stop_reason: int
    worker: int
    generation_s: float


_ROW_DTYPES = ("<u8", "<u8", "<u4", "<u8", "u1", "<u4", "<u4", "<u4", "<f8", "u1", "<u4", "<f8")
_RUN_DTYPES = ("<u4", "<u8", "<u4")


def encode(trajectories: Sequence[Trajectory], level: int = LEVEL) -> bytes:
    """One payload for all of them, in order. Raises: ValueError if a trajectory's lengths disagree."""
    return compress(content(trajectories), level)


def content(trajectories: Sequence[Trajectory]) -> bytes:
    """What encode compresses. Raises: as encode."""
    prompts = _indices(t.prompt_ids for t in trajectories)
    names = _indices(t.worker_id for t in trajectories)
    rows = [_row(t, prompts[t.prompt_ids], names[t.worker_id]) for t in trajectories]
    prompt_ids = [i for prompt in prompts for i in prompt]
    ids = [i for t in trajectories for i in t.completion_ids]
    logprobs = np.concatenate([np.empty(0, np.float32), *(t.logprobs for t in trajectories)], dtype=np.float32)
    masks = [bit for t in trajectories for bit in t.mask]
    runs = [(r.policy.fork, r.policy.version, r.num_tokens) for t in trajectories for r in t.policies]
    texts = [name.encode() for name in names]
    text = b"".join(texts)
    counts = (len(rows), len(prompts), len(prompt_ids), len(ids), len(runs), len(names), len(text))
    return b"".join(
        [
            _LAYOUT_AND_COUNTS.pack(_LAYOUT, *counts),
            column([len(prompt) for prompt in prompts], "<u4"),
            column(prompt_ids, "<u4"),
            *(column([row[i] for row in rows], dtype) for i, dtype in enumerate(_ROW_DTYPES)),
            column(ids, "<u4"),
            column(logprobs, "<f4"),
            column(masks, "u1"),
            *(column([run[i] for run in runs], dtype) for i, dtype in enumerate(_RUN_DTYPES)),
            column([len(name) for name in texts], "<u4"),
            text,
        ]
    )


def decode(payload: bytes, *, max_content_bytes: int) -> tuple[Trajectory, ...]:
    """The inverse of encode. Raises: CorruptFrame."""
    columns = Columns(decompress(payload, max_content_bytes=max_content_bytes))
    layout, num, num_prompts, num_prompt_ids, num_ids, num_runs, num_names, text_bytes = _LAYOUT_AND_COUNTS.unpack(
        columns.take(_LAYOUT_AND_COUNTS.size)
    )
    if layout != _LAYOUT:
        raise CorruptFrame(f"trajectory layout {layout} is unknown; this build reads {_LAYOUT}")

    def read(count: int, *dtypes: str) -> list[list[Any]]:
        return [columns.column(count, dtype).tolist() for dtype in dtypes]

    (prompt_lengths,) = read(num_prompts, "<u4")
    (prompt_ids,) = read(num_prompt_ids, "<u4")
    rows = [_Row(*values) for values in zip(*read(num, *_ROW_DTYPES), strict=True)]
    (ids,) = read(num_ids, "<u4")
    logprobs = columns.column(num_ids, "<f4")
    (masks,) = read(num_ids, "u1")
    runs = [PolicyRun(Policy(fork, version), n) for fork, version, n in zip(*read(num_runs, *_RUN_DTYPES), strict=True)]
    (name_lengths,) = read(num_names, "<u4")
    text = bytes(columns.take(text_bytes))
    columns.end()

    prompts = [tuple(prompt_ids[s]) for s in _slices(prompt_lengths, num_prompt_ids, "prompt ids")]
    names = [_decoded(text[s]) for s in _slices(name_lengths, text_bytes, "bytes of worker names")]
    ids_of = _slices([row.num_ids for row in rows], num_ids, "completion ids")
    runs_of = _slices([row.num_runs for row in rows], num_runs, "policy runs")
    return tuple(
        Trajectory(
            lease_id=row.lease_id,
            group=row.group,
            sample=row.sample,
            item=row.item,
            purpose=_item(_PURPOSES, row.purpose, "purpose"),
            prompt_ids=_item(prompts, row.prompt, "prompt"),
            completion_ids=tuple(ids[ids_slice]),
            logprobs=logprobs[ids_slice].astype(np.float32),
            mask=tuple(masks[ids_slice]),
            policies=tuple(runs[runs_slice]),
            reward=row.reward,
            stop_reason=_item(_STOP_REASONS, row.stop_reason, "stop reason"),
            worker_id=_item(names, row.worker, "worker name"),
            generation_s=row.generation_s,
        )
        for row, ids_slice, runs_slice in zip(rows, ids_of, runs_of, strict=True)
    )


def json_bytes(trajectories: Sequence[Trajectory]) -> int:
    """Size of the same records as JSON lines without spaces, each float32 in its shortest exact form."""
    return sum(len(json.dumps(_json_record(t), separators=(",", ":"))) + 1 for t in trajectories)


def _json_record(t: Trajectory) -> dict[str, Any]:
    runs = [{"fork": r.policy.fork, "version": r.policy.version, "num_tokens": r.num_tokens} for r in t.policies]
    return {
        "lease_id": t.lease_id,
        "group": t.group,
        "sample": t.sample,
        "item": t.item,
        "purpose": t.purpose,
        "prompt_ids": t.prompt_ids,
        "completion_ids": t.completion_ids,
        "logprobs": [float(str(logprob)) for logprob in t.logprobs],
        "mask": t.mask,
        "policies": runs,
        "reward": t.reward,
        "stop_reason": t.stop_reason,
        "worker_id": t.worker_id,
        "generation_s": t.generation_s,
    }


def _row(t: Trajectory, prompt: int, worker: int) -> _Row:
    num_ids = len(t.completion_ids)
    if not num_ids == len(t.logprobs) == len(t.mask) or t.logprobs.dtype != np.float32:
        raise ValueError(
            f"lease {t.lease_id}: {num_ids} ids, {len(t.logprobs)} {t.logprobs.dtype} logprobs, {len(t.mask)} mask bits"
        )
    return _Row(
        lease_id=t.lease_id,
        group=t.group,
        sample=t.sample,
        item=t.item,
        purpose=_PURPOSES.index(t.purpose),
        prompt=prompt,
        num_ids=num_ids,
        num_runs=len(t.policies),
        reward=t.reward,
        stop_reason=_STOP_REASONS.index(t.stop_reason),
        worker=worker,
        generation_s=t.generation_s,
    )


def _indices(values: Iterable[_H]) -> dict[_H, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}


def _slices(lengths: Sequence[int], total: int, what: str) -> list[slice]:
    ends = list(accumulate(lengths, initial=0))
    if ends[-1] != total:
        raise CorruptFrame(f"lengths of {what} sum to {ends[-1]}, but there are {total}")
    return [slice(start, end) for start, end in pairwise(ends)]


def _item(items: Sequence[_T], index: int, what: str) -> _T:
    if index >= len(items):
        raise CorruptFrame(f"{what} {index} does not exist: there are {len(items)}")
    return items[index]


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise CorruptFrame(f"worker name {name[:80]!r} is not UTF-8") from error
