"""The records of a publication, and the bytes of each that are signed; the package's docstring says what they mean.

Signed bytes are packed by hand, little-endian, each variable field after its length, and each kind of record after a
context string of its own. Protobuf does not promise one encoding per message, and no record can be passed off as
another kind.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3

from periplus.codec.frame import CodecId
from periplus.values.policy import Policy

MAX_CHUNK_BYTES = 10 << 20
"""Largest chunk. A part of the weight codec covers 8 MiB of state, and is at worst slightly larger than that."""

BUNDLE_CHUNK_BYTES = 1 << 20
"""Chunk size of a bundle. Tokenizers have megabytes, so a bundle takes a few messages."""

MAX_CHUNKS = 1 << 20
"""Most chunks of a publication: 8 TiB in parts of 8 MiB. It bounds the memory for tiny chunks to about 300 MB."""

MAX_DECLARED_BYTES = 1 << 62
"""Largest state, in bytes, that an opening may declare to anyone. It keeps sums of sizes within 64 bits; gateways and
workers have smaller limits of their own."""

MAX_JOB_ID_BYTES = 256
"""Longest job id."""
MAX_PROBE_LOGPROBS = 4096
"""Most log-probabilities of a probe. The current probe has 60; each is a float that is kept with its version."""

SIGNATURE_BYTES = 64
"""Bytes of an Ed25519 signature."""
PUBLIC_KEY_BYTES = 32
"""Bytes of a raw Ed25519 public key."""

_CERTIFICATE = b"periplus.publication/1 certificate\0"
_OPENING = b"periplus.publication/1 opening\0"
_CHUNK = b"periplus.publication/1 chunk\0"
_CLOSING = b"periplus.publication/1 closing\0"


class PublicationKind(StrEnum):
    """Kind of a publication.

    A bundle holds the files that a worker needs besides weights, an anchor is a full state, and a delta continues from
    its base.
    """

    BUNDLE = "bundle"
    ANCHOR = "anchor"
    DELTA = "delta"


_KIND_BYTE = {PublicationKind.BUNDLE: 1, PublicationKind.ANCHOR: 2, PublicationKind.DELTA: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The job authority's statement that the trainer of this fork of this job signs with this key (Ed25519, raw)."""

    job_id: str
    fork: int
    public_key: bytes
    signature: bytes

    @property
    def signed_bytes(self) -> bytes:
        """Bytes that the authority signs."""
        return _CERTIFICATE + _text(self.job_id) + struct.pack("<I", self.fork) + _blob(self.public_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Announcement of a publication, with caps on what it will need. `content_bytes` counts bytes after decoding.

    It is signed by the trainer (`certificate`, `signature`), or derived by a gateway from its own copy (`attested`).
    """

    job_id: str
    kind: PublicationKind
    policy: Policy
    base: Policy | None = None  # of a delta
    base_digest: bytes = b""  # of a delta: the state digest of its base
    codec: CodecId
    max_payload_bytes: int
    max_chunks: int
    content_bytes: int
    certificate: Certificate | None = None
    signature: bytes = b""
    attested: "Attestation | None" = None

    @property
    def is_derived(self) -> bool:
        """Whether a gateway made it. Then only the state that it leads to is signed."""
        return self.attested is not None

    @property
    def signed_bytes(self) -> bytes:
        """Bytes that the publisher signs: all fields but the signature, with the key that verifies it."""
        # Without a base its fields are zeros, and the flag before them says that there is none.
        base = self.base or Policy(0, 0)
        key = b"" if self.certificate is None else self.certificate.public_key
        numbers = struct.pack(
            "<BIQBIQHQIQ",
            _KIND_BYTE[self.kind],
            self.policy.fork,
            self.policy.version,
            self.base is not None,
            base.fork,
            base.version,
            self.codec,
            self.max_payload_bytes,
            self.max_chunks,
            self.content_bytes,
        )
        return _OPENING + _text(self.job_id) + numbers + _blob(self.base_digest) + _blob(key)

    @property
    def id(self) -> bytes:
        """BLAKE3 of the signed bytes, to which the signatures of the chunks and the closing are bound."""
        return blake3(self.signed_bytes).digest()

    def __str__(self) -> str:
        made = "derived " if self.is_derived else ""
        return f"{made}{self.kind} {self.policy} of job {self.job_id[:80]!r}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of the payload."""

    index: int
    data: bytes
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Counts and digests of a publication. `root` is the Merkle root of the chunks' hashes.

    `state_digest` is that of the state after applying, and empty for a bundle. `probe_logprobs` are float32 nats of the
    fixed prompts under this version, and empty if it was not probed.
    """

    num_chunks: int
    payload_bytes: int
    root: bytes
    state_digest: bytes = b""
    probe_logprobs: tuple[float, ...] = ()
    signature: bytes = b""

    @property
    def probe_bytes(self) -> bytes:
        """The log-probabilities as bytes.

        They are compared bit for bit, because NaN equals nothing and -0.0 equals 0.0.

        Raises: ValueError for a number beyond float32.
        """
        try:
            return struct.pack(f"<{len(self.probe_logprobs)}f", *self.probe_logprobs)
        except OverflowError as error:
            raise ValueError("a probe's log-probability is beyond float32") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """The trainer's signed opening and closing of a version, without its payload."""

    opening: Opening
    closing: Closing


PublicationRecord = Opening | Chunk | Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A complete publication."""

    opening: Opening
    chunks: tuple[Chunk, ...]
    closing: Closing

    @property
    def payload_bytes(self) -> int:
        return self.closing.payload_bytes

    @property
    def attestation(self) -> Attestation:
        """The signed opening and closing that a derived publication of the same version carries."""
        return self.opening.attested or Attestation(opening=self.opening, closing=self.closing)

    def records(self) -> Iterator[PublicationRecord]:
        """Yield the records in the order of the wire."""
        yield self.opening
        yield from self.chunks
        yield self.closing


def chunk_signed_bytes(opening: Opening, index: int, num_bytes: int, content_hash: bytes) -> bytes:
    """Return the bytes of a chunk that the publisher signs. The content enters by its BLAKE3, so it is hashed once."""
    return _CHUNK + opening.id + struct.pack("<IQ", index, num_bytes) + content_hash


def closing_signed_bytes(opening: Opening, closing: Closing) -> bytes:
    """Return the bytes of a closing that the publisher signs. Raises: ValueError for a probe beyond float32."""
    counts = struct.pack("<IQ", closing.num_chunks, closing.payload_bytes)
    digests = _blob(closing.root) + _blob(closing.state_digest)
    return _CLOSING + opening.id + counts + digests + _blob(closing.probe_bytes)


def _text(text: str) -> bytes:
    return _blob(text.encode(errors="surrogatepass"))


def _blob(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data
