"""Writers of publications: the trainer's signs parts as they are encoded, a gateway's derives them from its copy.

A writer is used in the order of the wire: `opening`, `chunk` for each part, `closing` once. It keeps the hash of each
part, but no part. Writers refuse with ValueError what readers would refuse.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace

from blake3 import blake3

from periplus.codec.frame import CodecId
from periplus.errors import CorruptFrame
from periplus.publication.order import check_closing, check_opening, payload_cap
from periplus.publication.signing import PublisherKey
from periplus.publication.values import (
    BUNDLE_CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_DECLARED_BYTES,
    Attestation,
    Certificate,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
)
from periplus.values.digest import root
from periplus.values.policy import Policy


class _Writer:
    """Counts and hashes the parts so far, within the caps of the opening.

    Raises: ValueError for what readers would refuse.
    """

    def __init__(self, opening: Opening) -> None:
        try:
            check_opening(opening, max_content_bytes=MAX_DECLARED_BYTES)
        except CorruptFrame as error:
            raise ValueError(f"readers would refuse this opening: {error}") from error
        self.opening = opening
        self._hashes: list[bytes] = []
        self._payload_bytes = 0

    def _next(self, data: bytes) -> tuple[int, bytes]:
        index, payload_bytes = len(self._hashes), self._payload_bytes + len(data)
        if not 0 < len(data) <= MAX_CHUNK_BYTES:
            raise ValueError(f"part {index} of {self.opening} has {len(data)} bytes, not 1 to {MAX_CHUNK_BYTES}")
        if index >= self.opening.max_chunks or payload_bytes > self.opening.max_payload_bytes:
            caps = f"{self.opening.max_chunks} parts and {self.opening.max_payload_bytes} bytes"
            raise ValueError(f"part {index} of {self.opening} ends at byte {payload_bytes}, beyond its {caps}")
        content_hash = blake3(data).digest()
        self._hashes.append(content_hash)
        self._payload_bytes = payload_bytes
        return index, content_hash

    def _closing(self, state_digest: bytes, probe: Sequence[float]) -> Closing:
        if not self._hashes:
            raise ValueError(f"{self.opening} has no part")
        closing = Closing(
            num_chunks=len(self._hashes),
            payload_bytes=self._payload_bytes,
            root=root(self._hashes),
            state_digest=state_digest,
            probe_logprobs=tuple(probe),
        )
        # Readers get float32 from the wire: the values are rounded here, so that both sides hold the same ones.
        float32 = struct.unpack(f"<{len(closing.probe_logprobs)}f", closing.probe_bytes)
        closing = replace(closing, probe_logprobs=float32)
        # The readers' own check, so that nothing is signed that they would refuse.
        try:
            check_closing(self.opening, closing)
        except CorruptFrame as error:
            raise ValueError(f"readers would refuse this closing: {error}") from error
        return closing


class PublicationWriter(_Writer):
    """The trainer's writer: each record is signed as it leaves.

    `max_payload_bytes` defaults to the most that the format allows.
    """

    def __init__(
        self,
        key: PublisherKey,
        certificate: Certificate,
        *,
        job_id: str,
        kind: PublicationKind,
        policy: Policy,
        base: Policy | None = None,
        base_digest: bytes = b"",
        codec: CodecId,
        max_payload_bytes: int | None = None,
        max_chunks: int,
        content_bytes: int,
    ) -> None:
        """Raises: ValueError for an opening that readers would refuse."""
        # The payload's size is not known before its parts are encoded: the cap is then the most that a reader allows.
        if max_payload_bytes is None:
            max_payload_bytes = payload_cap(content_bytes, max_chunks)
        opening = Opening(
            job_id=job_id,
            kind=kind,
            policy=policy,
            base=base,
            base_digest=base_digest,
            codec=codec,
            max_payload_bytes=max_payload_bytes,
            max_chunks=max_chunks,
            content_bytes=content_bytes,
        )
        super().__init__(opening)
        self.opening = key.sign_opening(opening, certificate)
        self._key = key

    def chunk(self, data: bytes) -> Chunk:
        """Sign the next part. Raises: ValueError beyond the caps of the opening."""
        index, content_hash = self._next(data)
        return self._key.sign_hashed_chunk(self.opening, index, data, content_hash)

    def closing(self, state_digest: bytes = b"", probe: Sequence[float] = ()) -> Closing:
        """Sign the closing.

        `probe` is rounded to float32, as on the wire. Raises: ValueError for a log-probability that is not finite.
        """
        return self._key.sign_closing(self.opening, self._closing(state_digest, probe))


class DerivedWriter(_Writer):
    """A gateway's writer: unsigned parts that lead to a state which the trainer attested."""

    def __init__(
        self,
        attestation: Attestation,
        *,
        kind: PublicationKind,
        base: Policy | None = None,
        base_digest: bytes = b"",
        max_chunks: int,
    ) -> None:
        """Raises: ValueError for an opening that readers would refuse."""
        target = attestation.opening
        opening = Opening(
            job_id=target.job_id,
            kind=kind,
            policy=target.policy,
            base=base,
            base_digest=base_digest,
            codec=target.codec,
            max_payload_bytes=payload_cap(target.content_bytes, max_chunks),
            max_chunks=max_chunks,
            content_bytes=target.content_bytes,
            attested=attestation,
        )
        super().__init__(opening)
        self._promised = attestation.closing

    def chunk(self, data: bytes) -> Chunk:
        """Return the next part as a chunk. Raises: ValueError beyond the caps of the opening."""
        index, _ = self._next(data)
        return Chunk(index, data)

    def closing(self) -> Closing:
        """Return the closing: the attested state digest and probe, with the root of these parts."""
        return self._closing(self._promised.state_digest, self._promised.probe_logprobs)


def signed_publication(
    key: PublisherKey,
    certificate: Certificate,
    *,
    job_id: str,
    kind: PublicationKind,
    policy: Policy,
    base: Policy | None = None,
    base_digest: bytes = b"",
    codec: CodecId,
    content_bytes: int,
    parts: Iterable[bytes],
    state_digest: bytes = b"",
    probe: Sequence[float] = (),
) -> Publication:
    """Return a complete signed publication whose caps just fit. Raises: ValueError."""
    payload = tuple(parts)
    writer = PublicationWriter(
        key,
        certificate,
        job_id=job_id,
        kind=kind,
        policy=policy,
        base=base,
        base_digest=base_digest,
        codec=codec,
        max_payload_bytes=sum(map(len, payload)),
        max_chunks=len(payload),
        content_bytes=content_bytes,
    )
    chunks = tuple(writer.chunk(part) for part in payload)
    return Publication(opening=writer.opening, chunks=chunks, closing=writer.closing(state_digest, probe))


def derived_publication(
    attestation: Attestation,
    *,
    kind: PublicationKind,
    base: Policy | None = None,
    base_digest: bytes = b"",
    parts: Iterable[bytes],
) -> Publication:
    """Return a complete derived publication. Raises: ValueError."""
    payload = tuple(parts)
    writer = DerivedWriter(attestation, kind=kind, base=base, base_digest=base_digest, max_chunks=len(payload))
    chunks = tuple(writer.chunk(part) for part in payload)
    return Publication(opening=writer.opening, chunks=chunks, closing=writer.closing())


def bundle_parts(payload: bytes, chunk_bytes: int = BUNDLE_CHUNK_BYTES) -> tuple[bytes, ...]:
    """Cut a payload that is not made of parts into chunks of `chunk_bytes`."""
    return tuple(payload[start : start + chunk_bytes] for start in range(0, len(payload), chunk_bytes))
