"""Complete publications on disk: one file each, read part by part.

    OPEN    the opening, as protobuf (gateway.proto, PublicationRecord)
    PART    one chunk each, in order
    CLOS    the closing, which makes the file whole

A file that is not whole counts as absent. What is read is verified again, by checksum here and by signature where it is
admitted: a disk is trusted as little as a peer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from periplus.errors import CorruptSpool, PeriplusError
from periplus.net.convert import publication_record_from_pb, publication_record_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.publication import Assembler, Attestation, Chunk, Closing, Opening, Publication, PublicationRecord
from periplus.spool.files import explained
from periplus.values.policy import Policy
from region_agent.weights.disk.blocks import HEADER_BYTES, block, blocks, whole_data
from region_agent.weights.disk.files import WeightFiles, new_file

OPEN, PART, CLOSE = b"OPEN", b"PART", b"CLOS"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPublication:
    """One publication in one file. `offsets` are the offsets of the chunks' data in the file, in bytes."""

    path: Path
    opening: Opening
    closing: Closing
    offsets: tuple[int, ...]

    @property
    def policy(self) -> Policy:
        """Version to which the publication leads."""
        return self.opening.policy

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload."""
        return self.closing.payload_bytes

    @property
    def attestation(self) -> Attestation:
        """Opening and closing of the publication."""
        return Attestation(opening=self.opening, closing=self.closing)


def keep(layer: WeightFiles, path: Path, publication: Publication) -> StoredPublication:
    """Write a publication to a new file. Nothing is left of it after an error.

    Raises: StorageError, DiskFull if the disk is full.
    """
    offsets, at = [], 0
    with new_file(layer, path) as append:
        for record in publication.records():
            kind = OPEN if isinstance(record, Opening) else PART if isinstance(record, Chunk) else CLOSE
            data = publication_record_to_pb(record).SerializeToString()
            if kind == PART:
                offsets.append(at + HEADER_BYTES)
            append(block(kind, data))
            at += HEADER_BYTES + len(data)
    return StoredPublication(
        path=path, opening=publication.opening, closing=publication.closing, offsets=tuple(offsets)
    )


def part(layer: WeightFiles, stored: StoredPublication, index: int) -> Chunk:
    """Return one chunk. Raises: CorruptSpool if it is not what was written, StorageError."""
    with explained(stored.path):
        data = whole_data(lambda offset, size: layer.read(stored.path, offset, size), stored.offsets[index])
    record = None if data is None else _record(data)
    if not isinstance(record, Chunk):
        raise CorruptSpool(f"chunk {index} of {stored.opening} in {stored.path} is damaged; it is fetched again")
    return record


def records(layer: WeightFiles, stored: StoredPublication) -> Iterator[PublicationRecord]:
    """Yield all records, reading a chunk at a time. Raises: CorruptSpool, StorageError."""
    yield stored.opening
    for index in range(len(stored.offsets)):
        yield part(layer, stored, index)
    yield stored.closing


def find(layer: WeightFiles, path: Path, assembler: Assembler) -> StoredPublication | None:
    """Return the publication in a file if the file is whole and `assembler` admits it, else None.

    Raises: StorageError.
    """
    offsets, opening = [], None
    with explained(path):
        for each in blocks(lambda offset, size: layer.read(path, offset, size)):
            record = _record(each.data)
            try:
                done = None if record is None else assembler.feed(record)
            except PeriplusError:
                return None
            if isinstance(record, Chunk):
                offsets.append(each.offset)
            opening = record if isinstance(record, Opening) else opening
            if done is not None and isinstance(record, Closing) and opening is not None:
                return StoredPublication(path=path, opening=opening, closing=record, offsets=tuple(offsets))
    return None


def _record(data: bytes) -> PublicationRecord | None:
    try:
        return publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(data))
    except (PeriplusError, DecodeError):
        return None
