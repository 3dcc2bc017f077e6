"""The in-memory state of a segment file, and the survey of all segment files in a spool's folder.

`survey` reads every segment once and checks it. In the newest epoch, records that were never promised may be torn by a
crash. Such a tail is reported as `torn`, together with the segments behind it, and left in place; the spool's owner
cuts it. Any other difference from what was written raises CorruptSpool: damage below a promise, a segment of an older
epoch without its seal, or a segment that ends before the next one begins. The survey cannot detect a whole segment file
that was removed from outside, because the spool itself removes files whose records are all retired.
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
    """One record: its position and its data."""

    position: Position
    data: bytes


@dataclass(frozen=True, slots=True)
class TornTail:
    """Data that a crash tore and that was never promised: everything in `path` from byte `offset` on.

    `num_bytes` counts that data, including the segments behind `path`.
    """

    path: Path
    offset: int
    num_bytes: int


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file of a spool.

    `offsets` holds the start of each record in the file, and `num_bytes` is the file's size. The first `num_synced`
    records survive a power cut, and so does the seal if `is_settled`. `retired` holds the sequences of retired records.
    `file` is open for appending, or None.
    """

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
        """The number of records that are not retired."""
        return len(self.offsets) - len(self.retired)

    @property
    def end_sequence(self) -> int:
        """The sequence after the last record of this segment."""
        return self.first.sequence + len(self.offsets)

    def holds(self, position: Position) -> bool:
        """Return whether a record with this position was written to this segment."""
        return position.epoch == self.first.epoch and self.first.sequence <= position.sequence < self.end_sequence

    def position(self, index: int) -> Position:
        """Return the position of the record with this index in the segment."""
        return Position(self.first.epoch, self.first.sequence + index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The segments of a spool's folder.

    `segments` are in order; a torn one counts up to its last whole record. `behind_tear` names the segment files that
    lie behind the torn tail.
    """

    segments: list[Segment]
    torn: TornTail | None
    behind_tear: tuple[str, ...]
    newest_epoch: int


def survey(layer: FileLayer, folder: Path, max_segment_bytes: int = MAX_SEGMENT_BYTES) -> Survey:
    """Read and check all segment files of a folder.

    The caller checks that the folder exists.
    Raises: StorageError; CorruptSpool, also for a file of more than `max_segment_bytes`, because each file is read into
    memory.
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
        # An earlier epoch was sealed when the next one began, so that it cannot be torn: any gap is damage.
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
    # Everything from the break on was never promised. A file whose own header is torn holds no record at all.
    torn, behind = segments[torn_index], segments[torn_index + 1 :]
    kept = segments[: torn_index + 1] if torn.num_bytes else segments[:torn_index]
    return Survey(
        segments=kept,
        torn=TornTail(folder / torn.name, torn.num_bytes, sum(sizes[torn_index:]) - torn.num_bytes),
        behind_tear=tuple(segment.name for segment in behind),
        newest_epoch=newest_epoch,
    )


def read_segment(layer: FileLayer, folder: Path, segment: Segment, start: int = 0) -> Iterator[SpoolRecord]:
    """Yield the records from index `start` on that are not retired. Raises: CorruptSpool, StorageError."""
    path = folder / segment.name
    num_records = segment.num_records  # records that are appended later may be missing from the data read below
    if start >= num_records:
        return
    with explained(path):
        data = layer.read(path)
    for index in range(start, num_records):
        if segment.first.sequence + index not in segment.retired:
            yield _record(path, data, segment.offsets[index], segment.position(index))


def read_record(layer: FileLayer, folder: Path, segment: Segment, position: Position) -> bytes:
    """Return the data of one record that the segment holds. Raises: CorruptSpool, StorageError."""
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
    """Return the index of the first segment of the newest epoch that ends early, or None.

    Raises: CorruptSpool if a promised record is missing.
    """
    newest = [index for index, segment in enumerate(segments) if segment.first.epoch == epoch]
    # A promise may stand in any later record of the epoch, even behind the break.
    promised = max((scans[index].promised for index in newest), default=0)
    for index in newest:
        segment, is_last = segments[index], index == newest[-1]
        is_whole_file = segment.num_bytes == sizes[index] and segment.num_bytes > 0
        # Only the last segment of the epoch may lack its seal: it was open for appends.
        if is_whole_file and (segment.is_sealed or is_last):
            continue
        # The record after the last whole one was reported durable, so that this is damage and not a torn tail.
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
