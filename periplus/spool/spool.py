"""A bounded log of records on disk: append, make durable, read again, retire.

    append(parts) -> position       hand a record to the operating system: it survives kill -9 of this process
    sync()                          return when everything appended before is durable, as `durability` defines
    records(start), read(position)  read the records that are not retired, in order
    retire(position), trim(upto)    mark records as no longer needed; a segment file whose records are all retired goes

Invariants: positions rise and are never used twice. The next opening finds every record that was reported durable, in
order, and no record that was not appended. A full spool raises SpoolFull and a full disk DiskFull; both leave the spool
unchanged, and the append may be tried again. A retired record is not read again by this process. After a crash, some
retired records may come back if their segment file still exists, because a note of them (`note.py`) is written only
after every `NOTE_EVERY` retirements and by `close`; so a reader must tolerate repeats. The newest segment is never
removed, so that epochs always rise.

Durability: With `process`, a record is promised (reported durable) at once by `append`. With `machine`, it is promised
by the next `sync`. One sync serves all callers that wait for it (group commit); it does not hold the lock, and may run
in a thread while others append. After a failed sync the content of the disk is unknown, so every call fails until the
spool is opened again. With `process`, a power cut may leave damage, which the next opening reports as CorruptSpool.

Opening takes a lock, so that a second process gets Conflict, and cuts off a torn tail (defined in `segment.py`). It
changes no other record. The first append seals the previous epoch and begins a new one. A record's data may come in
several pieces and is not copied; `append` costs one hash and one system call.
"""

import bisect
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from periplus.errors import DiskFull, NotFound, SpoolFull, StorageError
from periplus.spool.files import FileLayer, OsFiles, explained, refusal
from periplus.spool.format import (
    MAX_RECORD_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Buffer,
    Durability,
    Position,
    data_checksum,
    record_header,
    seal,
    segment_header,
)
from periplus.spool.note import Run, note_name, pack_note, read_notes, runs_of
from periplus.spool.segment import Segment, SpoolRecord, TornTail, read_record, read_segment, survey

SEGMENT_BYTES = 64 << 20
"""Size in bytes from which a new segment file is begun. Chosen by hand: large enough that creating and removing files
costs little, and small enough that retired records free space soon."""

NOTE_EVERY = 64
"""Retirements between two notes; at most this number of retired records come back after a kill. Chosen by hand."""

LOCK_FILE = "lock"
"""Name of the file in the spool's folder that its owner locks."""

_OVERHEAD_BYTES = SEGMENT_HEADER_BYTES + 2 * RECORD_HEADER_BYTES
"""Bytes that an append may write beside its data: a seal, the header of a new segment, and its own header."""


class Spool:
    """A spool that this process owns. `append`, `retire` and `sync` may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        layer: FileLayer,
        durability: Durability,
        max_bytes: int,
        segment_bytes: int,
        segments: list[Segment],
        epoch: int,
        torn: TornTail | None,
        notes: list[int],
        lock: contextlib.ExitStack,
    ) -> None:
        self.folder = folder
        self.epoch = epoch
        self.torn = torn
        self.max_bytes = max_bytes
        self._layer = layer
        self._durability = durability
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._notes = notes
        self._num_unnoted = 0
        self._held = lock
        self._next = 0
        self._promised = 0
        self._failed = ""
        self._lock = threading.Lock()
        self._syncing = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        durability: Durability,
        max_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
        layer: FileLayer | None = None,
    ) -> Self:
        """Open the spool in `folder`, which is made if it does not exist. Records found there count as durable.

        Raises: CorruptSpool; Conflict if another process has the spool open; StorageError.
        """
        layer = layer or OsFiles()
        if not 0 < segment_bytes <= MAX_RECORD_BYTES or max_bytes < 1:
            raise ValueError(f"segments of {segment_bytes} and a spool of {max_bytes} bytes; expected positive sizes")
        # The stack gives the lock back if anything below fails; on success the spool takes it over.
        with contextlib.ExitStack() as held:
            with explained(folder):
                layer.make_folder(folder)
                held.enter_context(layer.lock(folder / LOCK_FILE))
            found = survey(layer, folder)
            runs, notes = read_notes(layer, folder)
            with explained(folder):
                if found.torn is not None:
                    _cut(layer, folder, found.torn, found.behind_tear)
                if durability is Durability.MACHINE:  # data of a killed process may still be in the page cache only
                    _sync_all(layer, folder, found.segments)
            # The notes come after the cut, since they may name records that were cut off.
            _apply(runs, found.segments)
            # An epoch is never used twice, even if its files are gone and only a note names it.
            newest_epoch = max([found.newest_epoch, *(epoch for epoch, _, _ in runs)])
            return cls(
                folder,
                layer,
                durability,
                max_bytes,
                segment_bytes,
                found.segments,
                newest_epoch + 1,
                found.torn,
                notes,
                held.pop_all(),
            )

    # ---- what is there --------------------------------------------------------------------------------------------

    @property
    def num_records(self) -> int:
        """The number of records that are not retired."""
        with self._lock:
            return sum(segment.num_live for segment in self._segments)

    @property
    def num_bytes(self) -> int:
        """The bytes on disk, including retired records whose segment file still exists."""
        with self._lock:
            return self._num_bytes()

    def records(self, start: Position | None = None) -> Iterator[SpoolRecord]:
        """Yield every record from `start` on that is not retired, in order of position.

        Records that are appended meanwhile may be included. Raises: CorruptSpool, StorageError.
        """
        with self._lock:
            segments = list(self._segments)
        # The files are read without the lock, so that appends go on; a copy of the list keeps its order.
        for segment in segments:
            if start is not None and start.epoch > segment.first.epoch:
                continue
            same = start is not None and start.epoch == segment.first.epoch
            first = max(0, start.sequence - segment.first.sequence) if same and start is not None else 0
            if segment.num_live:
                yield from read_segment(self._layer, self.folder, segment, first)

    def read(self, position: Position) -> bytes:
        """Return the data of one record. Raises: NotFound if it is retired or unknown, CorruptSpool, StorageError."""
        with self._lock:
            segment = self._find(position)
            if segment is None or position.sequence in segment.retired:
                raise NotFound(f"{self.folder} has no record {position}; it was retired or never written")
        return read_record(self._layer, self.folder, segment, position)

    def offset(self, position: Position) -> int | None:
        """Return the byte of its file at which a record begins, or None if it is unknown (see lookup.py)."""
        with self._lock:
            segment = self._find(position)
            return None if segment is None else segment.offsets[position.sequence - segment.first.sequence]

    # ---- writing --------------------------------------------------------------------------------------------------

    def append(self, *parts: Buffer) -> Position:
        """Append one record, given in pieces, and return its position. The data is handed to the operating system.

        Raises: SpoolFull or DiskFull, after which nothing is changed and the call may be repeated once records were
        retired or disk space was freed; another StorageError; ValueError for a record above MAX_RECORD_BYTES.
        """
        length = sum(len(part) for part in parts)
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"a record of {length} bytes; at most {MAX_RECORD_BYTES}")
        # Hashing takes the longest, and needs no lock.
        checksum = data_checksum(parts)
        with self._lock:
            self._check()
            self._reserve(length + _OVERHEAD_BYTES)
            segment = self._writable()
            position = Position(self.epoch, self._next)
            header = record_header(position, length, self._promised, checksum)
            # A failed write raises here, before anything in memory has changed.
            self._write(segment, (header, *parts))
            segment.offsets.append(segment.num_bytes)
            segment.num_bytes += RECORD_HEADER_BYTES + length
            self._next += 1
            # For a killed process the page cache is enough: what was written is promised.
            if self._durability is Durability.PROCESS:
                self._promised, segment.num_synced = self._next, segment.num_records
            return position

    def sync(self) -> None:
        """Return when everything appended before this call is durable. Raises: StorageError."""
        # One caller syncs at a time. Those who waited find their records synced by it, and return without a system
        # call.
        with self._syncing:
            with self._lock:
                self._check()
                if self._durability is Durability.PROCESS:
                    return
                # What is appended from here on belongs to the next sync.
                end = self._next
                due = [
                    (segment, segment.num_records, segment.is_sealed)
                    for segment in self._segments
                    if segment.file is not None
                    and (segment.num_synced < segment.num_records or segment.is_sealed > segment.is_settled)
                ]
            # The slow system calls run without the lock, so that appends go on.
            for segment, _, _ in due:
                self._sync_file(segment)
            with self._lock:
                for segment, num_records, is_sealed in due:
                    segment.num_synced, segment.is_settled = num_records, is_sealed
                    if is_sealed:
                        self._close_file(segment)
                # Only now may a header carry this promise: a power cut must not lose what a later record promises.
                self._promised = max(self._promised, end)
                self._reap()

    def retire(self, position: Position) -> None:
        """Mark a record as no longer needed. Repeating it is harmless. Raises: StorageError."""
        with self._lock:
            segment = self._find(position)
            if segment is not None and position.sequence not in segment.retired:
                segment.retired.add(position.sequence)
                if not segment.num_live:
                    self._reap()
                self._note(1)

    def trim(self, upto: Position) -> None:
        """Retire every record before `upto`. Raises: StorageError."""
        with self._lock:
            before = self._num_retired()
            for segment in self._segments:
                # Positions are ordered by epoch first: an earlier epoch is retired whole, the same one up to the
                # sequence.
                if segment.first.epoch < upto.epoch:
                    end = segment.end_sequence
                elif segment.first.epoch == upto.epoch:
                    end = min(segment.end_sequence, upto.sequence)
                else:
                    continue
                segment.retired.update(range(segment.first.sequence, end))
            num_retired = self._num_retired() - before
            # Files go before the note, which then has to name only what is left.
            self._reap()
            self._note(num_retired)

    def close(self) -> None:
        """Make everything durable and release the folder's lock. Repeating it is harmless. Raises: StorageError."""
        try:
            if not self._failed:
                # The seal promises all records, so that they are durable before it is written.
                self.sync()
                with self._lock, contextlib.suppress(DiskFull):  # with a seal, damage to the last record is detected
                    if self._next and not self._segments[-1].is_sealed:
                        self._seal(self._segments[-1])
                self.sync()
                with self._lock:
                    self._note(NOTE_EVERY if self._num_unnoted else 0)
        finally:
            with self._lock:
                # Files and lock are released even if the disk has failed.
                for segment in self._segments:
                    self._close_file(segment)
                self._failed = self._failed or f"{self.folder} was closed"
                self._held.close()

    def remove(self) -> None:
        """Close the spool, and remove its files and its folder. Raises: StorageError."""
        self.close()
        with explained(self.folder):
            for name in [segment.name for segment in self._segments] + [note_name(number) for number in self._notes]:
                self._layer.unlink(self.folder / name)
            self._layer.unlink(self.folder / LOCK_FILE)
            self._layer.remove_folder(self.folder)

    # ---- inside, with the lock held -------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failed:
            raise StorageError(f"{self._failed}; open the spool again")

    def _num_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self._segments)

    def _num_retired(self) -> int:
        return sum(len(segment.retired) for segment in self._segments)

    def _note(self, num_retired: int) -> None:
        """Count retirements, and write a note of the retired records still on disk after every NOTE_EVERY of them."""
        self._num_unnoted += num_retired
        if self._num_unnoted < NOTE_EVERY:
            return
        runs = [run for segment in self._segments for run in runs_of(segment.first.epoch, segment.retired)]
        if not runs:
            return
        number = max(self._notes, default=0) + 1
        with contextlib.suppress(OSError):  # a note is advisory
            file = self._layer.create(self.folder / note_name(number))
            try:
                file.append((pack_note(runs),))
            except OSError:
                # On a full disk each retirement comes here again, and would leave one more file that is no note.
                self._layer.unlink(self.folder / note_name(number))
                raise
            finally:
                file.close()
            self._notes.append(number)
            # The old notes go after the new one is written: at each moment one of them is whole.
            for old in self._notes[:-1]:
                self._layer.unlink(self.folder / note_name(old))
            del self._notes[:-1]
            self._num_unnoted = 0

    def _find(self, position: Position) -> Segment | None:
        index = bisect.bisect_right(self._segments, position, key=lambda segment: segment.first) - 1
        return self._segments[index] if index >= 0 and self._segments[index].holds(position) else None

    def _reserve(self, num_bytes: int) -> None:
        if self._num_bytes() + num_bytes <= self.max_bytes:
            return
        if self._segments and self._segments[-1].num_records and not self._segments[-1].num_live:
            self._begin_segment()  # the newest segment is never removed; make room by replacing one that is all retired
            self._reap()
        held = self._num_bytes()
        if held + num_bytes > self.max_bytes:
            raise SpoolFull(
                f"{self.folder} holds {held} bytes of at most {self.max_bytes} and cannot take {num_bytes} more; "
                "wait until records are retired, or raise its limit"
            )

    def _writable(self) -> Segment:
        newest = self._segments[-1] if self._segments else None
        if newest is None or newest.is_sealed or newest.first.epoch < self.epoch:
            return self._begin_segment()
        is_full = newest.num_bytes >= self._segment_bytes and newest.num_records
        return self._begin_segment() if is_full else newest

    def _begin_segment(self) -> Segment:
        # A survey requires that only the newest segment lacks a seal.
        if self._segments and not self._segments[-1].is_sealed:
            self._seal(self._segments[-1])
        segment = Segment(Position(self.epoch, self._next), num_synced=0)
        path = self.folder / segment.name
        with explained(path):
            segment.file = self._layer.create(path)
        try:
            with explained(path):
                segment.file.append((segment_header(segment.first),))
                if self._durability is Durability.MACHINE:  # a power cut must not let the epoch be used again
                    segment.file.sync()
                    self._layer.sync_folder(self.folder)
        # A file with a torn header would be cut at the next opening, but an append that is tried again would find its
        # name taken.
        except BaseException as error:
            self._close_file(segment)
            try:
                self._layer.unlink(path)
            except OSError:
                self._failed = f"{path} could neither be begun nor removed ({error})"
            raise
        # From here on the segment exists for readers and for the removal of old ones.
        segment.num_bytes = SEGMENT_HEADER_BYTES
        self._segments.append(segment)
        self._reap()
        return segment

    def _seal(self, segment: Segment) -> None:
        """Seal a segment. The seal of an earlier epoch is synced at once, because a survey requires it from now on."""
        earlier = segment.first.epoch < self.epoch
        if segment.file is None:
            with explained(self.folder / segment.name):
                segment.file = self._layer.reopen(self.folder / segment.name)
        # All records of an earlier epoch count as durable since this process opened it.
        end = Position(segment.first.epoch, segment.end_sequence)
        self._write(segment, (seal(end, end.sequence if earlier else self._promised),))
        if earlier and self._durability is Durability.MACHINE:
            self._sync_file(segment)
        segment.num_bytes += RECORD_HEADER_BYTES
        segment.is_sealed = True
        segment.is_settled = earlier or self._durability is Durability.PROCESS
        if segment.is_settled:
            self._close_file(segment)

    def _write(self, segment: Segment, parts: tuple[Buffer, ...]) -> None:
        path = self.folder / segment.name
        assert segment.file is not None
        try:
            segment.file.append(parts)
        except OSError as error:
            try:
                # Cut off what was written in part: the next append then begins where this one did.
                segment.file.truncate(segment.num_bytes)
            except OSError:
                self._failed = f"{path} holds a half-written record that cannot be cut ({error})"
            raise refusal(path, error, sum(len(part) for part in parts)) from error

    def _sync_file(self, segment: Segment) -> None:
        path = self.folder / segment.name
        assert segment.file is not None
        try:
            segment.file.sync()
        except OSError as error:
            self._failed = (
                f"{path} could not be synced ({error.strerror or error}): it is not known what is on the disk"
            )
            raise StorageError(f"{self._failed}; open the spool again") from error

    def _close_file(self, segment: Segment) -> None:
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def _reap(self) -> None:
        """Remove the files of segments whose records are all retired and whose seal is durable, but not the newest."""
        kept: list[Segment] = []
        for index, segment in enumerate(self._segments):
            is_newest = index == len(self._segments) - 1
            if is_newest or segment.num_live or not segment.is_settled:
                kept.append(segment)
                continue
            try:
                self._layer.unlink(self.folder / segment.name)
            # Those that were removed are forgotten; this one and the rest are kept for the next call.
            except OSError as error:
                self._segments = kept + self._segments[index:]
                raise refusal(self.folder / segment.name, error) from error
        self._segments = kept


def _apply(runs: list[Run], segments: list[Segment]) -> None:
    for epoch, first, end in runs:
        for segment in segments:
            if segment.first.epoch == epoch:
                segment.retired.update(range(max(first, segment.first.sequence), min(end, segment.end_sequence)))


def _cut(layer: FileLayer, folder: Path, torn: TornTail, behind: tuple[str, ...]) -> None:
    # The newest file goes first: after a crash between two removals, the rest is still one torn tail.
    for name in reversed(behind):
        layer.unlink(folder / name)
    if torn.offset == 0:
        layer.unlink(torn.path)
    else:
        file = layer.reopen(torn.path)
        try:
            file.truncate(torn.offset)
            file.sync()
        finally:
            file.close()
    layer.sync_folder(folder)


def _sync_all(layer: FileLayer, folder: Path, segments: list[Segment]) -> None:
    for segment in segments:
        file = layer.reopen(folder / segment.name)
        try:
            file.sync()
        finally:
            file.close()
    layer.sync_folder(folder)
