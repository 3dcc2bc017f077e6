"""Publication records as bytes on disk: each is one protobuf message `PublicationRecord` of gateway.proto.

This is the only module of the weight cache's files that knows protobuf. The others store the bytes in blocks with
checksums, and work with the values of `periplus.publication`. A record that was read is not verified here: its
signature is checked where the record is admitted.
"""

from google.protobuf.message import DecodeError

from periplus.errors import CorruptSpool, PeriplusError
from periplus.net.convert import publication_record_from_pb, publication_record_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.publication import PublicationRecord


def record_to_bytes(record: PublicationRecord) -> bytes:
    """Return the bytes of a record."""
    return publication_record_to_pb(record).SerializeToString()


def record_from_bytes(data: bytes) -> PublicationRecord:
    """Return the record of these bytes. Raises: CorruptSpool if they are not the bytes of a record."""
    try:
        return publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(data))
    except (PeriplusError, DecodeError) as error:
        raise CorruptSpool(f"{len(data)} bytes on disk are no publication record: {error}; fetch it again") from error
