"""A spool read by someone who does not own it: nothing is written, cut, locked or made.

For an auditor, with everything stopped. A torn tail is told as `torn` and left where it is. What was retired and is
still on disk is read like everything else: it is evidence.
"""

from collections.abc import Iterator
from pathlib import Path

from periplus.errors import NotFound
from periplus.spool.files import FileLayer, OsFiles
from periplus.spool.format import MAX_SEGMENT_BYTES, Position
from periplus.spool.segment import SpoolRecord, Survey, TornTail, read_record, read_segment, survey


class SpoolReader:
    """What lay in the folder when it was opened."""

    def __init__(self, folder: Path, layer: FileLayer, found: Survey) -> None:
        self._folder = folder
        self._layer = layer
        self._segments = found.segments
        self.torn: TornTail | None = found.torn

    @classmethod
    def open(
        cls, folder: Path, layer: FileLayer | None = None, *, max_segment_bytes: int = MAX_SEGMENT_BYTES
    ) -> "SpoolReader":
        """Raises: NotFound if there is no such folder, CorruptSpool, also for a segment's file of more than
        `max_segment_bytes`, which would have to be read into memory; StorageError."""
        layer = layer or OsFiles()
        try:
            layer.names(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{folder} is no spool; check the run directory's path") from error
        except OSError:
            pass  # the survey says it better
        return cls(folder, layer, survey(layer, folder, max_segment_bytes))

    @property
    def num_records(self) -> int:
        return sum(segment.num_records for segment in self._segments)

    def records(self) -> Iterator[SpoolRecord]:
        """Every record in order of position. Raises: CorruptSpool, StorageError."""
        for segment in self._segments:
            yield from read_segment(self._layer, self._folder, segment)

    def read(self, position: Position) -> bytes:
        """One record's data. Raises: NotFound, CorruptSpool, StorageError."""
        for segment in self._segments:
            if segment.holds(position):
                return read_record(self._layer, self._folder, segment, position)
        raise NotFound(f"{self._folder} has no record {position}")
