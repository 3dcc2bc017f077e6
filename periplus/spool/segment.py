"""One segment's file as a process knows it, and the survey of a folder of them.

`survey` reads every segment once and judges it. In the newest epoch a tail that was never promised may be torn: it is
reported as `torn`, with the segments behind it, and left alone; whoever owns the spool cuts it. Anything else that is
not as it was written is CorruptSpool: damage below a promise, a segment of an older epoch without its seal, a segment
that ends before the next one begins. What it cannot see is a whole segment's file removed from outside: so are retired
ones, and only the owner's own records know which those were.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from periplus.errors import CorruptSpool
from periplus.spool.files import AppendFile, FileLayer, explained
from periplus.spool.format import (
    MAX_SEGMENT_BYTES,
    RECORD_HEADER_BYTES,
    Position,
    Scan,
    first_position,
    is_whole,
    read_header,
    scan,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """What was appended, and where it lies."""

    position: Position
    data: bytes


@dataclass(frozen=True, slots=True)
class TornTail:
    """What was written last and never promised: in `path` everything from byte `offset` on."""

    path: Path
    offset: int
    num_bytes: int


@dataclass(slots=True, eq=False)
class Segment:
    """`num_synced` records and, with `is_settled`, the seal survive a power cut. `file`: open for appending."""

    first: Position
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    num_bytes: int = 0
    is_sealed: bool = False
    is_settled: bool = False
    num_synced: int = 0
    retired: set[int] = field(default_factory=set)
    file: AppendFile | None = None

    @property
    def name(self) -> str:
        return segment_name(self.first)

    @property
    def num_records(self) -> int:
        return len(self.offsets)

    @property
    def num_live(self) -> int:
        return len(self.offsets) - len(self.retired)

    @property
    def end_sequence(self) -> int:
        return self.first.sequence + len(self.offsets)

    def holds(self, position: Position) -> bool:
        return position.epoch == self.first.epoch and self.first.sequence <= position.sequence < self.end_sequence

    def position(self, index: int) -> Position:
        return Position(self.first.epoch, self.first.sequence + index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`segments` in order, torn ones up to their last whole record; `behind_tear`: files that lie behind `torn`."""

    segments: list[Segment]
    torn: TornTail | None
    behind_tear: tuple[str, ...]
    newest_epoch: int


def survey(layer: FileLayer, folder: Path, max_segment_bytes: int = MAX_SEGMENT_BYTES) -> Survey:
    """What the folder holds.

    Raises: CorruptSpool, also for a file of more than `max_segment_bytes`, which would have to be read into memory;
    StorageError; NotFound is for the caller to say.
    """
    firsts = _firsts(layer, folder)
    newest_epoch = firsts[-1].epoch if firsts else 0
    segments: list[Segment] = []
    scans: list[Scan] = []
    sizes: list[int] = []
    for first in firsts:
        path = folder / segment_name(first)
        with explained(path):
            if (num_bytes := layer.num_bytes(path)) > max_segment_bytes:
                raise _too_large(path, num_bytes, max_segment_bytes)
            data = layer.read(path)
        found = scan(data, first)
        if first.epoch < newest_epoch and (not found.sealed or found.end != len(data)):
            raise _corrupt(path, found.end, Position(first.epoch, first.sequence + len(found.offsets)))
        segments.append(
            Segment(
                first,
                offsets=found.offsets,
                num_bytes=found.end,
                is_sealed=found.sealed,
                is_settled=True,
                num_synced=len(found.offsets),
            )
        )
        scans.append(found)
        sizes.append(len(data))
    torn_index = _first_break(folder, segments, scans, sizes, newest_epoch)
    if torn_index is None:
        return Survey(segments=segments, torn=None, behind_tear=(), newest_epoch=newest_epoch)
    torn, behind = segments[torn_index], segments[torn_index + 1 :]
    kept = segments[: torn_index + 1] if torn.num_bytes else segments[:torn_index]
    return Survey(
        segments=kept,
        torn=TornTail(folder / torn.name, torn.num_bytes, sum(sizes[torn_index:]) - torn.num_bytes),
        behind_tear=tuple(segment.name for segment in behind),
        newest_epoch=newest_epoch,
    )


def read_segment(layer: FileLayer, folder: Path, segment: Segment, start: int = 0) -> Iterator[SpoolRecord]:
    """The records from index `start` on that are not retired. Raises: CorruptSpool, StorageError."""
    path = folder / segment.name
    num_records = segment.num_records  # later ones may not be in what is read now
    if start >= num_records:
        return
    with explained(path):
        data = layer.read(path)
    for index in range(start, num_records):
        if segment.first.sequence + index not in segment.retired:
            yield _record(path, data, segment.offsets[index], segment.position(index))


def read_record(layer: FileLayer, folder: Path, segment: Segment, position: Position) -> bytes:
    """One record's data. Raises: CorruptSpool, StorageError."""
    index = position.sequence - segment.first.sequence
    start = segment.offsets[index]
    end = segment.offsets[index + 1] if index + 1 < segment.num_records else segment.num_bytes
    path = folder / segment.name
    with explained(path):
        data = layer.read(path, start, end - start)
    return _record(path, data, 0, position, start).data


def _record(path: Path, data: bytes, offset: int, position: Position, file_offset: int = 0) -> SpoolRecord:
    header = read_header(data, offset, position.epoch)
    start = offset + RECORD_HEADER_BYTES
    if header is not None and header.sequence == position.sequence and not header.is_seal:
        found = data[start : start + header.length]
        if is_whole(found, header):
            return SpoolRecord(position, found)
    raise _corrupt(path, file_offset + offset, position)


def _firsts(layer: FileLayer, folder: Path) -> list[Position]:
    with explained(folder):
        names = layer.names(folder)
    return sorted(first for name in names if (first := first_position(name)) is not None)


def _first_break(folder: Path, segments: list[Segment], scans: list[Scan], sizes: list[int], epoch: int) -> int | None:
    """Index of the first segment of the newest epoch that ends early. Raises: CorruptSpool if a promise is broken."""
    newest = [index for index, segment in enumerate(segments) if segment.first.epoch == epoch]
    promised = max((scans[index].promised for index in newest), default=0)
    for index in newest:
        segment, is_last = segments[index], index == newest[-1]
        is_whole_file = segment.num_bytes == sizes[index] and segment.num_bytes > 0
        if is_whole_file and (segment.is_sealed or is_last):
            continue
        if segment.end_sequence < promised:
            raise _corrupt(folder / segment.name, segment.num_bytes, Position(epoch, segment.end_sequence))
        return index
    return None


def _too_large(path: Path, num_bytes: int, max_bytes: int) -> CorruptSpool:
    return CorruptSpool(
        f"{path} has {num_bytes} bytes, more than the {max_bytes} of the largest segment that is written; restore the "
        "file, or move the spool's folder aside and lose what it held"
    )


def _corrupt(path: Path, offset: int, position: Position) -> CorruptSpool:
    return CorruptSpool(
        f"{path} is damaged at byte {offset}: record {position}, or the segment's end, is not as it was written, "
        "though it was durable; restore the file, or move the spool's folder aside and lose what it held"
    )
