"""Complete publications on disk: one file each, read part by part.

    OPEN    the opening, as bytes of convert.py
    PART    one chunk each, in order
    CLOS    the closing, which makes the file whole

A file that is not whole counts as absent. What is read is verified again, by checksum here and by signature where it is
admitted: a disk is trusted as little as a peer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from periplus.errors import CorruptSpool, PeriplusError
from periplus.publication import Assembler, Chunk, Closing, Opening, Publication, PublicationRecord
from periplus.spool.files import explained
from region_agent.weights.disk.blocks import HEADER_BYTES, block, blocks, whole_data
from region_agent.weights.disk.convert import record_from_bytes, record_to_bytes
from region_agent.weights.disk.files import WeightFiles, new_file

OPEN, PART, CLOSE = b"OPEN", b"PART", b"CLOS"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPublication:
    """One publication in one file, which may be a link of the chain (`chain.ChainLink`).

    `offsets` are the offsets of the chunks' data in the file, in bytes.
    """

    layer: WeightFiles
    path: Path
    opening: Opening
    closing: Closing
    offsets: tuple[int, ...]

    def part(self, index: int) -> bytes:
        """Return one part of the payload. Raises: CorruptSpool if it is not what was written, StorageError."""
        return self._chunk(index).data

    def records(self) -> Iterator[PublicationRecord]:
        """Yield all records, reading a chunk at a time. Raises: CorruptSpool, StorageError."""
        yield self.opening
        for index in range(len(self.offsets)):
            yield self._chunk(index)
        yield self.closing

    def _chunk(self, index: int) -> Chunk:
        with explained(self.path):
            data = whole_data(lambda offset, size: self.layer.read(self.path, offset, size), self.offsets[index])
        record = None if data is None else record_from_bytes(data)
        if not isinstance(record, Chunk):
            raise CorruptSpool(f"chunk {index} of {self.opening} in {self.path} is damaged; it is fetched again")
        return record


def keep(layer: WeightFiles, path: Path, publication: Publication) -> StoredPublication:
    """Write a publication to a new file. Nothing is left of it after an error.

    Raises: StorageError, DiskFull if the disk is full.
    """
    offsets, at = [], 0
    with new_file(layer, path) as append:
        for record in publication.records():
            kind = OPEN if isinstance(record, Opening) else PART if isinstance(record, Chunk) else CLOSE
            data = record_to_bytes(record)
            if kind == PART:
                # The parts are read one by one later, so remember where the data of each begins.
                offsets.append(at + HEADER_BYTES)
            append(block(kind, data))
            at += HEADER_BYTES + len(data)
    return StoredPublication(
        layer=layer, path=path, opening=publication.opening, closing=publication.closing, offsets=tuple(offsets)
    )


def find(layer: WeightFiles, path: Path, assembler: Assembler) -> StoredPublication | None:
    """Return the publication in a file if the file is whole and `assembler` admits it, else None.

    Raises: StorageError.
    """
    offsets, opening = [], None
    with explained(path):
        for each in blocks(lambda offset, size: layer.read(path, offset, size)):
            try:
                # The assembler checks order and signatures as for a publication from the network.
                record = record_from_bytes(each.data)
                done = assembler.feed(record)
            except PeriplusError:
                return None
            if isinstance(record, Chunk):
                offsets.append(each.offset)
            opening = record if isinstance(record, Opening) else opening
            # Only the closing makes the publication whole.
            if done is not None and isinstance(record, Closing) and opening is not None:
                return StoredPublication(
                    layer=layer, path=path, opening=opening, closing=record, offsets=tuple(offsets)
                )
    return None
