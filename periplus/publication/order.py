"""Order and sizes of one stream of records, and the order of one job's versions.

Cheap checks come before signatures, and signatures before anything is kept. So a record that is not the publisher's
costs a verification and no memory. Every refusal leaves the state unchanged.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from blake3 import blake3

from periplus.errors import CorruptFrame, Fenced, WrongBase
from periplus.publication.signing import Trust
from periplus.publication.values import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_DECLARED_BYTES,
    MAX_JOB_ID_BYTES,
    MAX_PROBE_LOGPROBS,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
)
from periplus.values.digest import DIGEST_BYTES, root
from periplus.values.policy import Policy

MIN_CONTENT_BYTES_A_CHUNK = 64
"""Fewest bytes of state per chunk that an opening may allow. A chunk costs its holder about 300 bytes of memory, so an
opening that allows very many chunks for a small state is refused."""

SPARE_CHUNKS = 1024
"""Chunks that an opening may allow in any case."""


class Admission(StrEnum):
    """What an opening means to a holder of a version. A repeat is read and checked, and changes nothing."""

    NEW = "new"
    REPEAT = "repeat"


def payload_cap(content_bytes: int, max_chunks: int) -> int:
    """Return the most bytes that a payload may have: plain content, 2 % for the layout, and headers of each part."""
    return content_bytes + content_bytes // 50 + (1 << 20) + 256 * max_chunks


def check_opening(opening: Opening, *, max_content_bytes: int) -> None:
    """Check everything about an opening that needs neither history nor keys. Raises: CorruptFrame."""
    is_delta = opening.kind is PublicationKind.DELTA
    content_cap = min(max_content_bytes, MAX_DECLARED_BYTES)
    _check(len(opening.job_id) <= MAX_JOB_ID_BYTES, "length of the job's id", len(opening.job_id), opening)
    _check(
        0 <= opening.content_bytes <= content_cap, f"content_bytes (0 to {content_cap})", opening.content_bytes, opening
    )
    # Each chunk costs its holder memory, so that their number must suit the size of the state.
    chunks_cap = min(MAX_CHUNKS, SPARE_CHUNKS + opening.content_bytes // MIN_CONTENT_BYTES_A_CHUNK)
    _check(0 < opening.max_chunks <= chunks_cap, f"max_chunks (1 to {chunks_cap})", opening.max_chunks, opening)
    cap_bytes = payload_cap(opening.content_bytes, opening.max_chunks)
    _check(
        0 < opening.max_payload_bytes <= cap_bytes,
        f"max_payload_bytes (1 to {cap_bytes})",
        opening.max_payload_bytes,
        opening,
    )
    _check(is_delta == (opening.base is not None), "base (a delta has one, nothing else does)", opening.base, opening)
    _check(opening.base is None or opening.base < opening.policy, "base (older than the policy)", opening.base, opening)
    num_digest_bytes = DIGEST_BYTES if is_delta else 0
    _check(len(opening.base_digest) == num_digest_bytes, "base digest", opening.base_digest[:64].hex(), opening)
    # One level of attestation only, which also bounds this recursion.
    if opening.attested is not None:
        _check(opening.attested.opening.attested is None, "attestation (by another derived one)", "nested", opening)
        check_opening(opening.attested.opening, max_content_bytes=max_content_bytes)
        check_closing(opening.attested.opening, opening.attested.closing)


def check_closing(opening: Opening, closing: Closing) -> None:
    """Check everything about a closing that needs neither the chunks nor keys. Raises: CorruptFrame."""
    is_bundle = opening.kind is PublicationKind.BUNDLE
    num_chunks, num_probes = closing.num_chunks, len(closing.probe_logprobs)
    _check(0 < num_chunks <= opening.max_chunks, "num_chunks", num_chunks, opening)
    _check(0 < closing.payload_bytes <= opening.max_payload_bytes, "payload_bytes", closing.payload_bytes, opening)
    _check(len(closing.root) == DIGEST_BYTES, "length of the root", len(closing.root), opening)
    digest_is_right = len(closing.state_digest) == (0 if is_bundle else DIGEST_BYTES)
    _check(digest_is_right, "state digest", closing.state_digest[:64].hex(), opening)
    max_probes = 0 if is_bundle else MAX_PROBE_LOGPROBS
    _check(num_probes <= max_probes, f"number of probes (at most {max_probes})", num_probes, opening)
    _check(all(map(math.isfinite, closing.probe_logprobs)), "probe (a log-probability is finite)", "", opening)


def admit(opening: Opening, *, newest: Policy | None, newest_digest: bytes, highest_fork: int) -> Admission:
    """Decide whether `opening` continues the held version `newest`, whose state digest is `newest_digest`.

    Returns REPEAT for the version that is held; at its closing the caller compares state digests with `check_repeat`. A
    bundle is decided by its fork alone. Raises: Fenced for an older version or fork, WrongBase for a delta from another
    state.
    """
    check_fork(opening, highest_fork)
    # A bundle is no state, so that only its fork matters. Without any version yet, every state without a base may come.
    if opening.kind is PublicationKind.BUNDLE or (newest is None and opening.base is None):
        return Admission.NEW
    if newest is not None and opening.policy == newest:
        return Admission.REPEAT
    if newest is not None and opening.policy < newest:
        raise Fenced(f"{opening} would roll back what is at {newest}; stop publishing it")
    # An anchor needs no base. A delta must start from exactly the state that is here, by version and by digest.
    if opening.base is not None and (opening.base, opening.base_digest) != (newest, newest_digest):
        digests = f"{opening.base_digest.hex()[:16]}, held {newest_digest.hex()[:16]}"
        raise WrongBase(
            f"{opening} is from {opening.base} (digest {digests}), here is {newest or 'nothing'}; publish an anchor"
        )
    return Admission.NEW


def check_fork(opening: Opening, highest_fork: int) -> None:
    """Check that an opening is not of a fenced fork. Raises: Fenced."""
    if opening.policy.fork < highest_fork:
        raise Fenced(f"{opening} is of an old fork, fork {highest_fork} has taken over; stop publishing")


def check_repeat(opening: Opening, closing: Closing, held_digest: bytes) -> None:
    """Check that a held version has come again unchanged. Raises: Fenced."""
    if closing.state_digest != held_digest:
        raise Fenced(
            f"{opening} would replace what is held: state digest {closing.state_digest.hex()}, held is "
            f"{held_digest.hex()}; a version has one content, stop publishing"
        )


class StreamChecker:
    """Checks one stream of records: order, sizes, signatures and root. It keeps no chunk.

    After an error the checker is unchanged, but the stream cannot be continued: end it and subscribe again.
    """

    def __init__(self, trust: Trust, *, max_content_bytes: int) -> None:
        self._trust = trust
        self._max_content_bytes = max_content_bytes
        self._opening: Opening | None = None
        self._hashes: list[bytes] = []
        self._payload_bytes = 0

    @property
    def opening(self) -> Opening | None:
        """Opening of the publication that is arriving, or None."""
        return self._opening

    def take(self, record: PublicationRecord) -> Opening | None:
        """Check a record, and return the opening of the publication that it completes. Raises: CorruptFrame, Forged."""
        if isinstance(record, Opening):
            self.check_opening(record)
            self.begin(record)
            return None
        if isinstance(record, Chunk):
            self._take_chunk(self._begun(record), record)
            return None
        opening = self.check_closing(record)
        self.end()
        return opening

    def check_opening(self, opening: Opening) -> None:
        """Check whether `take` would accept the opening; then call `begin`. Raises: CorruptFrame, Forged."""
        check_opening(opening, max_content_bytes=self._max_content_bytes)
        self._trust.check_opening(opening)

    def begin(self, opening: Opening) -> None:
        """Start a publication whose opening was checked. An unfinished publication before it is dropped."""
        self._opening, self._hashes, self._payload_bytes = opening, [], 0

    def check_closing(self, closing: Closing) -> Opening:
        """Check whether `take` would accept the closing, and return the opening; then call `end`.

        Raises: CorruptFrame, Forged.
        """
        opening = self._begun(closing)
        # Counts first, then the root over the chunks' hashes, and the signature last, as it costs the most.
        _check(len(self._hashes) == closing.num_chunks, "closing after so many chunks", len(self._hashes), opening)
        _check(
            self._payload_bytes == closing.payload_bytes, "closing after so many bytes", self._payload_bytes, opening
        )
        check_closing(opening, closing)
        _check(root(self._hashes) == closing.root, "root", closing.root.hex(), opening)
        self._trust.check_closing(opening, closing)
        return opening

    def end(self) -> None:
        """Forget the publication that was arriving."""
        self._opening, self._hashes, self._payload_bytes = None, [], 0

    def _begun(self, record: PublicationRecord) -> Opening:
        if self._opening is None:
            raise CorruptFrame(f"a {type(record).__name__.lower()} came before its opening; subscribe again")
        return self._opening

    def _take_chunk(self, opening: Opening, chunk: Chunk) -> None:
        expected, num_bytes = len(self._hashes), len(chunk.data)
        in_order = chunk.index == expected < opening.max_chunks
        _check(
            in_order, f"chunk index (expected {expected}, at most {opening.max_chunks} chunks)", chunk.index, opening
        )
        _check(0 < num_bytes <= MAX_CHUNK_BYTES, f"chunk length (1 to {MAX_CHUNK_BYTES})", num_bytes, opening)
        payload_bytes = self._payload_bytes + num_bytes
        cap_bytes = opening.max_payload_bytes
        _check(payload_bytes <= cap_bytes, f"payload (at most {cap_bytes} bytes)", payload_bytes, opening)
        # Sizes and order were cheap to check; only now is the chunk hashed and its signature verified.
        content_hash = self._trust.check_chunk(opening, chunk)
        self._hashes.append(content_hash)
        self._payload_bytes = payload_bytes


class Assembler:
    """Turns the records of one stream into publications: a stream checker that keeps the chunks."""

    def __init__(self, trust: Trust, *, max_content_bytes: int) -> None:
        self._intake = StreamChecker(trust, max_content_bytes=max_content_bytes)
        self._chunks: list[Chunk] = []

    def feed(self, record: PublicationRecord) -> Publication | None:
        """Return the publication that this record completes. Raises: CorruptFrame, Forged; then nothing has changed."""
        completed = self._intake.take(record)
        if isinstance(record, Opening):
            self._chunks = []
        elif isinstance(record, Chunk):
            self._chunks.append(record)
        elif completed is not None:
            chunks, self._chunks = tuple(self._chunks), []
            return Publication(opening=completed, chunks=chunks, closing=record)
        return None


def payload_root(parts: Sequence[bytes]) -> bytes:
    """Return the Merkle root of the parts' hashes, of at least one part."""
    return root([blake3(part).digest() for part in parts])


def _check(ok: bool, what: str, value: object, opening: Opening) -> None:
    if not ok:
        raise CorruptFrame(f"bad {what}: {value} ({opening}); subscribe again")
