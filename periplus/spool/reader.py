"""Reads a spool without owning it: nothing is written, cut, locked or created.

The audit uses it while the spool's owner is stopped. A torn tail is reported in `torn` and left in place. Retired
records that are still on disk are read like all others, because they are evidence for the audit.
"""

from collections.abc import Iterator
from pathlib import Path

from periplus.errors import NotFound
from periplus.spool.files import FileLayer, OsFiles
from periplus.spool.format import MAX_SEGMENT_BYTES, Position
from periplus.spool.segment import SpoolRecord, Survey, TornTail, read_record, read_segment, survey


class SpoolReader:
    """The records that a spool's folder held when the reader was opened."""

    def __init__(self, folder: Path, layer: FileLayer, found: Survey) -> None:
        self._folder = folder
        self._layer = layer
        self._segments = found.segments
        self.torn: TornTail | None = found.torn

    @classmethod
    def open(
        cls, folder: Path, layer: FileLayer | None = None, *, max_segment_bytes: int = MAX_SEGMENT_BYTES
    ) -> "SpoolReader":
        """Survey the spool in a folder.

        Raises: NotFound if the folder does not exist; StorageError; CorruptSpool, also for a segment file of more than
        `max_segment_bytes`, because each file is read into memory.
        """
        layer = layer or OsFiles()
        try:
            layer.names(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{folder} is not a spool; check the run directory's path") from error
        except OSError:
            pass  # the survey below raises a better error for this
        return cls(folder, layer, survey(layer, folder, max_segment_bytes))

    @property
    def num_records(self) -> int:
        """The number of records on disk, including retired ones."""
        return sum(segment.num_records for segment in self._segments)

    def records(self) -> Iterator[SpoolRecord]:
        """Yield every record in order of position. Raises: CorruptSpool, StorageError."""
        for segment in self._segments:
            yield from read_segment(self._layer, self._folder, segment)

    def read(self, position: Position) -> bytes:
        """Return the data of one record. Raises: NotFound, CorruptSpool, StorageError."""
        for segment in self._segments:
            if segment.holds(position):
                return read_record(self._layer, self._folder, segment, position)
        raise NotFound(f"{self._folder} has no record {position}")
