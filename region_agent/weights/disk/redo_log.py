"""The redo log: everything that one version changes in the copy, written to disk before the copy is touched.

    HEAD    what the copy is, and what it will be (the next manifest): two JSON values
    SPAN    start of the span in the file u64, width of an element u8; per change:
                kind u8 (0 positions, 1 range), start u32, count u32, positions u32[count] (kind 0), values
    DONE    number of SPAN blocks u64

Values are absolute, so applying the log twice, or again after half of it was applied, ends with the same bytes.
Positions count elements from the span's start. Applying a log never begins before its DONE is on disk.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.layout import Span, StateLayout
from periplus.errors import CorruptFrame
from periplus.spool.format import Buffer
from region_agent.weights.disk.blocks import Read, StoredBlock, block, blocks
from region_agent.weights.disk.placement import offset_in

HEAD, SPAN, DONE = b"HEAD", b"SPAN", b"DONE"
_SPAN = struct.Struct("<QB")
_CHANGE = struct.Struct("<BII")
_DONE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class SpanChange:
    """New elements of one span: at `positions`, or consecutive from `start` on if `positions` is None."""

    start: int
    positions: npt.NDArray[np.uint32] | None
    values: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SpanChanges:
    """Changes of one span, which begins at byte `start` of the file."""

    start: int
    changes: tuple[SpanChange, ...]

    def write_into(self, span: npt.NDArray[np.uint8]) -> None:
        """Write the changes into the span's bytes."""
        for change in self.changes:
            elements = span.view(change.values.dtype)
            if change.positions is None:
                elements[change.start : change.start + len(change.values)] = change.values
            else:
                elements[change.positions] = change.values

    @property
    def end(self) -> int:
        """End of the last change, in bytes from the span's start."""
        return max(_end(change) for change in self.changes)


def head_block(before: dict[str, Any], after: dict[str, Any]) -> tuple[Buffer, ...]:
    """Return the HEAD block with the manifests of the copy before and after the version."""
    return block(HEAD, json.dumps([before, after]).encode())


def done_block(num_spans: int) -> tuple[Buffer, ...]:
    """Return the DONE block of a log with this number of SPAN blocks."""
    return block(DONE, _DONE.pack(num_spans))


def span_block(changed: SpanChanges) -> tuple[Buffer, ...]:
    """Return the SPAN block with the changes of one span. All values of a span have the same width."""
    width = changed.changes[0].values.dtype.itemsize
    parts: list[Buffer] = [_SPAN.pack(changed.start, width)]
    for change in changed.changes:
        is_range = change.positions is None
        parts.append(_CHANGE.pack(is_range, change.start, len(change.values)))
        if change.positions is not None:
            parts.append(change.positions.astype("<u4", copy=False).tobytes())
        parts.append(change.values.tobytes())
    return block(SPAN, *parts)


def span_changes(start: int, layout: StateLayout, span: Span, updates: Iterable[Any]) -> SpanChanges | None:
    """Convert a staged span's updates, or return None if it changes nothing.

    Raises: CorruptFrame if they leave the span.
    """
    index_of = {layout.lines[piece.line].name: piece.line for piece in span.pieces}
    changes = []
    for update in updates:
        if not len(update.values):
            continue
        if update.name not in index_of:
            raise CorruptFrame(f"a span changes {update.name!r}, which is not in it; fetch an anchor")
        piece, before = offset_in(span, index_of[update.name])
        # Positions in the tensor become positions in the span.
        shift = before - piece.start
        if update.positions is None:
            changes.append(SpanChange(update.start + shift, None, update.values))
        else:
            changes.append(SpanChange(0, (update.positions + shift).astype(np.uint32), update.values))
    return SpanChanges(start, tuple(changes)) if changes else None


@dataclass(frozen=True, slots=True)
class RedoHead:
    """Manifests of the copy before and after the version, as JSON values."""

    before: dict[str, Any]
    after: dict[str, Any]


def read_head(read: Read) -> RedoHead | None:
    """Return the head of a log that is whole from its head to its DONE, or None for any other."""
    head, num_spans = None, 0
    for each in blocks(read):
        # One HEAD, then SPANs, then a DONE that counts them: any other order is a log that was not finished.
        if each.kind == HEAD and head is None:
            head = RedoHead(*json.loads(each.data))
        elif each.kind == SPAN and head is not None:
            num_spans += 1
        elif each.kind == DONE and head is not None:
            return head if each.data == _DONE.pack(num_spans) else None
        else:
            return None
    return None


def read_spans(read: Read) -> Iterator[SpanChanges]:
    """Yield the changes of a log whose head could be read."""
    for each in blocks(read):
        if each.kind == SPAN:
            yield _parse(each)


def apply(read: Read, read_at: Callable[[int, int], bytes], write_at: Callable[[int, Buffer], None]) -> None:
    """Write all changes into the state's file, one span at a time."""
    for changed in read_spans(read):
        # Read the span up to its last change, overwrite the changed elements, and write it back.
        data = np.frombuffer(bytearray(read_at(changed.start, changed.end)), np.uint8)
        changed.write_into(data)
        write_at(changed.start, data.data)


def _parse(span: StoredBlock) -> SpanChanges:
    start, width = _SPAN.unpack_from(span.data)
    at, changes, dtype = _SPAN.size, [], np.dtype(f"<u{width}")
    while at < len(span.data):
        # Header of one change, then its positions unless it is a range, then its values.
        is_range, first, count = _CHANGE.unpack_from(span.data, at)
        at += _CHANGE.size
        positions = None
        if not is_range:
            positions = np.frombuffer(span.data, "<u4", count, at)
            at += 4 * count
        changes.append(SpanChange(first, positions, np.frombuffer(span.data, dtype, count, at)))
        at += width * count
    return SpanChanges(start, tuple(changes))


def _end(change: SpanChange) -> int:
    last = change.start + len(change.values) if change.positions is None else int(change.positions.max()) + 1
    return last * change.values.dtype.itemsize
