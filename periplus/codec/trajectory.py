"""CODEC_TRAJECTORY_COLUMNS_ZSTD: many trajectories as columns, each compressed by the method that suits it.

A payload is a head and up to eight sections. Each section is one zstandard frame with its own size and checksum. All
numbers are little-endian. The section `meta` is always present; every other section has no bytes if it has no content.
The sections follow in this order:

    head        u8 layout, 2 or 3; u32 bytes of the compressed meta section
    meta        counts (_COUNTS), then
                  per sample       u64 lease, u64 group, u64 item, u32 sample, u32 completion ids, u32 runs, u32 top_k,
                                   f64 reward, f64 temperature, f64 top_p, f64 generation_s, u32 prompt, u32 worker
                                   name, u32 metadata, u8 purpose, u8 stop reason
                  per policy run   u32 fork, u64 version, u32 tokens
                  per prompt       u32 number of ids
                  per text         u32 bytes; then the UTF-8 texts, end to end (each worker name and metadata once)
                  per completion token   one bit, 1 = sampled; present only if some token is context
                  per policy run   one bit, 1 = kept_kv; present in layout 3, which is written only if some run has it
    id low      u16 bits 0-15 of each id: prompts, then completions
    id high     u8 bits 16-23 of each id; present only if an id needs them
    near, heads, mantissas, near high, near low   log-probabilities of the sampled tokens: see logprobs.py

A *policy run* is a number of consecutive completion tokens that one policy version sampled. A *context* token was not
sampled by the policy (for example a tool's output), so it has no log-probability and its value is 0. Samples that share
a prompt refer to one stored copy. Ids stay 16-bit words, because zstandard then finds phrases that repeat among the
samples of a group. Log-probabilities have no repeats, and are split into sections of bytes.

`decode_columns` proves the layout: the size of each section follows from the counts, and the section's frame must
declare exactly that size before anything is allocated. Lengths must add up and indices must be in range. Whether the
values make sense is checked by `periplus.values.trajectories.validate_all`, which every receiver calls next.
"""

import json
import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from periplus.codec import logprobs as logprob_column
from periplus.codec.zstd import compress, compress_symbols, compress_words, decompress, decompress_exactly
from periplus.errors import CorruptFrame
from periplus.values.trajectories import Rows, Trajectories
from periplus.values.trajectory import PURPOSES, STOP_REASONS, Trajectory, wire_reward

LEVEL = 15
"""zstandard level for token ids (measured in docs/design/0006-trajectories.md). It takes 0.2 us per token, about a
hundredth of the time that sampling a token takes."""

META_LEVEL = -1
"""zstandard level for the meta section: matches only, without an entropy table. In so few bytes an entropy table would
save about 50 bytes and take 2 us to build (docs/design/0006-trajectories.md)."""

MAX_ID = (1 << 24) - 1
"""Largest token id that the format carries, 24 bits. Vocabularies have a few hundred thousand entries."""

BYTES_PER_TOKEN = 9
"""Memory of a decoded completion token in bytes: 4 for the id, 4 for the log-probability, 1 for the mask."""

_H = TypeVar("_H", bound=Hashable)
_TYPES = ["int32", "int32", "float32", "bool"]

_LAYOUT = 2
_LAYOUT_KEPT_KV = 3
"""Numbers of the payload's layouts, its first byte: without and with the runs' `kept_kv`. Others are refused."""
_HEAD = struct.Struct("<BI")
_COUNTS = struct.Struct("<16I")
_FIRST_SIZE = 9  # index in _Counts of the first section size
_ROW = struct.Struct("<QQQIIIIddddIIIBB")
_RUN = struct.Struct("<IQI")


class _Counts(NamedTuple):
    """Counts at the beginning of meta: entries of each kind, then the compressed sizes of the other sections."""

    samples: int
    runs: int
    prompts: int
    prompt_ids: int
    completion_ids: int
    sampled: int  # completion tokens that are not context
    num_near: int  # log-probabilities that are near 0
    texts: int
    text_bytes: int
    id_low: int
    id_high: int
    near: int
    heads: int
    mantissas: int
    near_high: int
    near_low: int

    @property
    def mask_bytes(self) -> int:
        return (self.completion_ids + 7) // 8 if self.sampled < self.completion_ids else 0

    def kept_bytes(self, layout: int) -> int:
        return (self.runs + 7) // 8 if layout == _LAYOUT_KEPT_KV else 0

    def meta_bytes(self, layout: int) -> int:
        numbers = _ROW.size * self.samples + _RUN.size * self.runs + 4 * (self.prompts + self.texts)
        return _COUNTS.size + numbers + self.text_bytes + self.mask_bytes + self.kept_bytes(layout)


def encode(trajectories: Sequence[Trajectory], level: int = LEVEL) -> bytes:
    """Return one payload for all trajectories, in order.

    Raises: ValueError if a trajectory's lengths or dtypes disagree, an id is outside 0 to MAX_ID, or a context token
    has a log-probability.
    """
    counts, rest_of_meta, sections = content(trajectories)
    id_low, id_high, near, heads, mantissas, near_high, near_low = sections
    # Each section gets the method that suits it: `near`, heads and near numbers have skewed bytes without repeats, and
    # mantissas hardly compress, so that the fastest level does.
    stored = [
        compress_words(id_low, level),
        compress(id_high, level),
        compress_symbols(near),
        compress_symbols(heads),
        compress(mantissas, 1),
        compress_symbols(near_high),
        compress_symbols(near_low),
    ]
    # A section without content has no bytes at all, not even an empty frame.
    stored = [frame if section else b"" for frame, section in zip(stored, sections, strict=True)]
    # Meta comes last, since it holds the sizes of the other sections, but is stored before them.
    kept = _kept_bits(trajectories)
    meta = compress(_COUNTS.pack(*counts[:_FIRST_SIZE], *map(len, stored)) + rest_of_meta + kept, META_LEVEL)
    return b"".join([_HEAD.pack(_LAYOUT_KEPT_KV if kept else _LAYOUT, len(meta)), meta, *stored])


def content(trajectories: Sequence[Trajectory]) -> tuple[_Counts, bytes, tuple[bytes, ...]]:
    """Return the counts, the rest of meta, and the other sections, all before compression. Raises: as `encode`.

    The bits of `kept_kv`, which layout 3 has at the end of meta, are left out.
    """
    for trajectory in trajectories:
        _check(trajectory)
    # Each distinct prompt and each distinct text is stored once and referred to by its index.
    prompts = _indices(t.prompt_ids.tobytes() for t in trajectories)
    texts = _indices(text for t in trajectories for text in (t.worker_id, t.metadata))
    # Columns over all trajectories: ids [prompt ids + completion ids], mask and logprobs [completion ids].
    prompt_ids = np.frombuffer(b"".join(prompts), np.int32)
    ids = np.concatenate([prompt_ids, *(t.completion_ids for t in trajectories)], dtype=np.int32)
    mask = np.concatenate([np.empty(0, np.bool_), *(t.mask for t in trajectories)])
    logprobs = np.concatenate([np.empty(0, np.float32), *(t.logprobs for t in trajectories)])
    # Only sampled tokens have a log-probability.
    num_near, of_logprobs = logprob_column.split(logprobs[mask])
    encoded = [text.encode() for text in texts]
    lengths = [*(len(prompt) // 4 for prompt in prompts), *map(len, encoded)]
    rows = [_ROW.pack(*_row(t, prompts[t.prompt_ids.tobytes()], texts)) for t in trajectories]
    runs = [_RUN.pack(r.policy.fork, r.policy.version, r.num_tokens) for t in trajectories for r in t.policies]
    # The section sizes are known only after compression; `encode` packs them in place of these zeros.
    counts = _Counts(
        samples=len(rows),
        runs=len(runs),
        prompts=len(prompts),
        prompt_ids=len(prompt_ids),
        completion_ids=len(mask),
        sampled=int(np.count_nonzero(mask)),
        num_near=num_near,
        texts=len(texts),
        text_bytes=sum(map(len, encoded)),
        id_low=0,
        id_high=0,
        near=0,
        heads=0,
        mantissas=0,
        near_high=0,
        near_low=0,
    )
    meta = [*rows, *runs, np.array(lengths, "<u4").tobytes(), *encoded]
    if counts.mask_bytes:
        meta.append(np.packbits(mask, bitorder="little").tobytes())
    # Vocabularies of up to 2^16 ids need no third byte, so that the section is then empty.
    id_high = (ids >> 16).astype(np.uint8)
    return (
        counts,
        b"".join(meta),
        (ids.astype("<u2").tobytes(), id_high.tobytes() if id_high.any() else b"", *of_logprobs),
    )


def decode(payload: bytes, *, max_content_bytes: int) -> tuple[Trajectory, ...]:
    """Invert `encode`. Raises: CorruptFrame."""
    return decode_columns(payload, max_content_bytes=max_content_bytes).views()


def decode_columns(payload: bytes, *, max_content_bytes: int) -> Trajectories:
    """Invert `encode`, and return columns. `max_content_bytes` bounds their memory. Raises: CorruptFrame."""
    layout, counts, meta, sections = _opened(payload, max_content_bytes)
    # Cut meta into its parts: rows, runs, lengths (of prompts, then of texts), texts, mask bits, and kept_kv bits.
    of_rows, of_runs, of_lengths, of_texts, bits, kept_bits = _parts(
        meta,
        _COUNTS.size,
        (
            _ROW.size * counts.samples,
            _RUN.size * counts.runs,
            4 * (counts.prompts + counts.texts),
            counts.text_bytes,
            counts.mask_bytes,
            counts.kept_bytes(layout),
        ),
    )
    # The sizes of all sections are proven at this point. Now the lengths and indices within meta are checked.
    rows, runs = Rows.of(_ROW.iter_unpack(of_rows)), _runs(of_runs, kept_bits, counts.runs)
    lengths = np.frombuffer(of_lengths, np.uint32).tolist()
    prompt_lengths, text_lengths = lengths[: counts.prompts], lengths[counts.prompts :]
    _check_lengths(counts, rows, prompt_lengths, text_lengths)
    _check_rows(counts, rows, prompt_lengths, max_content_bytes)
    num_ids = counts.prompt_ids + counts.completion_ids
    ids = _ids(counts, num_ids, sections[0], sections[1])
    logprobs = _logprobs(counts, sections[2:])
    # Without mask bits every completion token was sampled. Else the log-probabilities, which are stored for sampled
    # tokens alone, are spread over all completion tokens, with 0 at context.
    mask = np.ones(counts.completion_ids, np.bool_)
    if counts.mask_bytes:
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(mask), bitorder="little").view(np.bool_)
        logprobs = _among_context(logprobs, mask)
    # The samples become views of these arrays, so that nobody may write to them.
    for array in (ids, logprobs, mask):
        array.setflags(write=False)
    return Trajectories(
        rows=rows,
        runs=runs,
        prompt_lengths=prompt_lengths,
        ids=ids,
        logprobs=logprobs,
        mask=mask,
        texts=_texts(bytes(of_texts), text_lengths),
    )


def _kept_bits(trajectories: Sequence[Trajectory]) -> bytes:
    kept = [run.kept_kv for t in trajectories for run in t.policies]
    return np.packbits(kept, bitorder="little").tobytes() if any(kept) else b""


def _runs(of_runs: memoryview, kept_bits: memoryview, num_runs: int) -> list[tuple[int, int, int, bool]]:
    kept = np.zeros(num_runs, np.bool_)
    if len(kept_bits):
        kept = np.unpackbits(np.frombuffer(kept_bits, np.uint8), count=num_runs, bitorder="little").view(np.bool_)
    return [(*run, each) for run, each in zip(_RUN.iter_unpack(of_runs), kept.tolist(), strict=True)]


def _opened(payload: bytes, max_content_bytes: int) -> tuple[int, _Counts, memoryview, list[memoryview]]:
    """Return the layout, the counts, meta including them, and the other sections still compressed.

    Their lengths are checked.
    """
    if len(payload) < _HEAD.size:
        raise CorruptFrame(f"trajectories in {len(payload)} bytes; the head alone has {_HEAD.size}")
    layout, stored_bytes = _HEAD.unpack_from(payload)
    if layout not in (_LAYOUT, _LAYOUT_KEPT_KV):
        raise CorruptFrame(f"trajectory layout {layout} is unknown; this build reads {_LAYOUT} and {_LAYOUT_KEPT_KV}")
    view, meta_end = memoryview(payload), _HEAD.size + stored_bytes
    meta = decompress(view[_HEAD.size : meta_end], max_content_bytes=max_content_bytes)
    if len(meta) < _COUNTS.size:
        raise CorruptFrame(f"meta of {len(meta)} bytes; the counts alone have {_COUNTS.size}")
    # The sizes of all parts follow from the counts: they must add up exactly, before anything else is decompressed.
    counts = _Counts._make(_COUNTS.unpack_from(meta))
    if len(meta) != counts.meta_bytes(layout) or not counts.num_near <= counts.sampled <= counts.completion_ids:
        raise CorruptFrame(f"meta of {len(meta)} bytes does not fit its counts: {counts}")
    sizes = counts[_FIRST_SIZE:]
    if len(payload) != meta_end + sum(sizes):
        raise CorruptFrame(f"a payload of {len(payload)} bytes, but its sections have {meta_end + sum(sizes)}")
    return layout, counts, memoryview(meta), _parts(view, meta_end, sizes)


def _parts(view: memoryview, start: int, sizes: Sequence[int]) -> list[memoryview]:
    return [view[begin:end] for begin, end in pairwise(accumulate(sizes, initial=start))]


def stored_bytes(payload: bytes) -> dict[str, int]:
    """Return the compressed bytes of each section of an encoded payload, by name. Raises: CorruptFrame."""
    _, _, _, sections = _opened(payload, 1 << 30)
    sizes = dict(zip(_Counts._fields[_FIRST_SIZE:], map(len, sections), strict=True))
    return {"meta": len(payload) - sum(sizes.values()), **sizes}


def json_bytes(trajectories: Sequence[Trajectory]) -> int:
    """Return the size in bytes that the trajectories would have as JSON lines without spaces.

    Each float32 is written in its shortest exact form. The call takes about 1 us per token, so it is not meant to run
    for every frame.
    """
    return sum(map(_json_line_bytes, trajectories))


def _json_line_bytes(t: Trajectory) -> int:
    record = {
        "lease_id": t.lease_id,
        "group": t.group,
        "sample": t.sample,
        "item": t.item,
        "purpose": t.purpose,
        "prompt_ids": [],
        "completion_ids": [],
        "logprobs": [],
        "mask": [],
        "policies": [
            {"fork": r.policy.fork, "version": r.policy.version, "num_tokens": r.num_tokens}
            | ({"kept_kv": True} if r.kept_kv else {})
            for r in t.policies
        ],
        "reward": t.reward,
        "stop_reason": t.stop_reason,
        "sampling": asdict(t.sampling),
        "metadata": t.metadata,
        "worker_id": t.worker_id,
        "generation_s": t.generation_s,
    }
    # The numbers in lists are not printed: their decimal digits and the commas between them are counted at once.
    lists = (t.prompt_ids, t.completion_ids, t.logprobs, t.mask.view(np.uint8))
    items = sum(
        int(np.strings.str_len(numbers.astype("U32")).sum()) + len(numbers) - 1 for numbers in lists if len(numbers)
    )
    return len(json.dumps(record, separators=(",", ":"))) + items + 1


def _check_lengths(counts: _Counts, rows: Rows, prompts: Sequence[int], texts: Sequence[int]) -> None:
    for what, lengths, total in (
        ("completion ids", rows.num_ids, counts.completion_ids),
        ("policy runs", rows.num_runs, counts.runs),
        ("prompt ids", prompts, counts.prompt_ids),
        ("bytes of texts", texts, counts.text_bytes),
    ):
        if sum(lengths) != total:
            raise CorruptFrame(f"lengths of {what} sum to {sum(lengths)}, but there are {total}")


def _check_rows(counts: _Counts, rows: Rows, prompt_lengths: Sequence[int], max_content_bytes: int) -> None:
    """Check that all indices exist and that the decoded rows stay within the memory bound.

    A prompt counts once for each sample that refers to it, because a consumer may expand it for every one.
    """
    for what, indices, limit in (
        ("prompt", rows.prompt, counts.prompts),
        ("worker", rows.worker, counts.texts),
        ("metadata", rows.metadata, counts.texts),
        ("purpose", rows.purpose, len(PURPOSES)),
        ("stop reason", rows.stop_reason, len(STOP_REASONS)),
    ):
        if indices and max(indices) >= limit:
            raise CorruptFrame(f"{what} {max(indices)} does not exist: there are {limit}")
    # The same few bytes of a prompt could be referred to by very many rows.
    num_prompt_ids = counts.prompt_ids + sum([prompt_lengths[prompt] for prompt in rows.prompt])
    num_bytes = BYTES_PER_TOKEN * counts.completion_ids + 4 * num_prompt_ids
    if num_bytes > max_content_bytes:
        raise CorruptFrame(f"trajectories of {num_bytes} bytes; at most {max_content_bytes}")


def _ids(counts: _Counts, num_ids: int, low: memoryview, high: memoryview) -> npt.NDArray[np.int32]:
    ids = np.frombuffer(_section(low, 2 * num_ids), np.uint16).astype(np.int32)
    if counts.id_high:
        ids |= np.frombuffer(_section(high, num_ids), np.uint8).astype(np.int32) << 16
    return ids


def _logprobs(counts: _Counts, stored: Sequence[memoryview]) -> npt.NDArray[np.float32]:
    lengths = logprob_column.section_bytes(counts.sampled, counts.num_near)
    sections = logprob_column.Sections._make(map(_section, stored, lengths))
    return logprob_column.join(sections, counts.sampled, counts.num_near)


def _section(stored: memoryview, num_bytes: int) -> bytes:
    """Return the decompressed section, which must have `num_bytes`. An empty section is not stored at all."""
    return decompress_exactly(stored, num_bytes) if num_bytes or len(stored) else b""


def _among_context(sampled: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    if np.count_nonzero(mask) != len(sampled):
        raise CorruptFrame(f"{np.count_nonzero(mask)} tokens are sampled, but {len(sampled)} have a log-probability")
    logprobs = np.zeros(len(mask), np.float32)
    logprobs[np.flatnonzero(mask)] = sampled
    return logprobs


def _texts(text: bytes, lengths: list[int]) -> tuple[str, ...]:
    try:
        return tuple(text[start:end].decode() for start, end in pairwise(accumulate(lengths, initial=0)))
    except UnicodeDecodeError as error:
        raise CorruptFrame(f"a worker name or metadata is not UTF-8: {error}") from error


def _row(t: Trajectory, prompt: int, texts: dict[str, int]) -> tuple[float, ...]:
    """Return the numbers of one sample in the order of `Rows`."""
    return (
        t.lease_id,
        t.group,
        t.item,
        t.sample,
        len(t.completion_ids),
        len(t.policies),
        t.sampling.top_k,
        wire_reward(t.reward),
        t.sampling.temperature,
        t.sampling.top_p,
        t.generation_s,
        prompt,
        texts[t.worker_id],
        texts[t.metadata],
        PURPOSES.index(t.purpose),
        STOP_REASONS.index(t.stop_reason),
    )


def _check(t: Trajectory) -> None:
    num_ids = len(t.completion_ids)
    types = [array.dtype.name for array in (t.prompt_ids, t.completion_ids, t.logprobs, t.mask)]
    if not num_ids == len(t.logprobs) == len(t.mask) or types != _TYPES:
        raise ValueError(
            f"lease {t.lease_id}: {num_ids} ids, {len(t.logprobs)} logprobs, {len(t.mask)} mask bits of types {types}"
        )
    for ids in (t.prompt_ids, t.completion_ids):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= MAX_ID:
            raise ValueError(f"lease {t.lease_id}: ids {ids.min()} to {ids.max()}; 0 to {MAX_ID} are carried")
    # Compared by bits: context values are not stored, and must come back exactly, which -0.0 would not.
    if t.logprobs.view(np.int32)[~t.mask].any():
        raise ValueError(f"lease {t.lease_id}: a token of context has a log-probability; it must be 0.0")


def _indices(values: Iterable[_H]) -> dict[_H, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}
