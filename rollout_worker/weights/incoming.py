"""Verifies, decodes and proves the records of one subscription, in the order in which they come.

It is synchronous and does no I/O: records in, outcomes out. The reader calls `take` in a thread, one call at a time.
Only a closing writes into the host copy. A record is refused (Forged, CorruptFrame, WrongBase, Fenced, UnknownCodec)
before anything of it is kept. After an error the subscription is of no use any more, and the host copy is what it was.

A publication that repeats the version of the host copy is verified and changes nothing. If its closing names other
weights, it is Fenced.
"""

from dataclasses import dataclass

from periplus.codec.weights.decoder import Decoder
from periplus.errors import WireError
from periplus.publication import (
    Admission,
    Chunk,
    Closing,
    Opening,
    PublicationKind,
    PublicationRecord,
    StreamChecker,
    Trust,
    admit,
    check_repeat,
)
from periplus.values.policy import Policy
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.pending_versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedBundle:
    """A complete bundle: the files that a worker needs besides weights. `parts` are its payload."""

    opening: Opening
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMismatch:
    """The weights that a publication led to do not have the signed digest, although every record was as it was sent."""

    policy: Policy
    digest: bytes
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """A record that this version cannot read, with the error that says why.

    `kind` is opening, chunk or closing, or None if not even that is known. `is_derived`: it is the opening of a
    publication that a gateway made.
    """

    kind: str | None
    is_derived: bool
    why: WireError


ReceivedRecord = PublicationRecord | UnreadableRecord
"""A record as it came off the stream."""

Outcome = ReceivedBundle | Version | WeightMismatch | None
"""What a record completed: a bundle, a proven version, a mismatch, or nothing (None)."""


class Incoming:
    """State of one subscription. With `distrust`, a failure has made it ask for signed publications only.

    `highest_fork` is the highest fork seen, here or in earlier subscriptions.
    """

    def __init__(
        self, trust: Trust, host: HostCopy, *, highest_fork: int, distrust: bool, max_content_bytes: int
    ) -> None:
        self._intake = StreamChecker(trust, max_content_bytes=max_content_bytes)
        self._host = host
        self._distrust = distrust
        self._opening: Opening | None = None
        self._parts: list[bytes] = []
        self._decoder: Decoder | None = None
        self.highest_fork = highest_fork

    def is_of_derived(self, record: ReceivedRecord) -> bool:
        """Return whether a record belongs to a publication that a gateway made from its copy.

        An opening says so itself; any other record belongs to the publication that was opened last.
        """
        match record:
            case Opening() | UnreadableRecord(kind="opening"):
                return record.is_derived
            case _:
                return self._opening is not None and self._opening.is_derived

    def take(self, record: ReceivedRecord) -> Outcome:
        """Take one record, and return what it completed.

        Raises: Forged, CorruptFrame, WrongBase, Fenced, UnknownCodec; the error of a record that cannot be read.
        """
        if isinstance(record, UnreadableRecord):
            raise record.why
        # This checks the order and size of each record, the signatures of opening and closing, and at the closing that
        # the chunks are those that were signed. Until then chunks are only decoded beside the copy.
        completed = self._intake.take(record)
        match record:
            case Opening():
                self._begin(record)
            case Chunk() if self._decoder is not None:
                self._decoder.feed(record.data)
            case Chunk() if self._opening is not None and self._opening.kind is PublicationKind.BUNDLE:
                self._parts.append(record.data)
            case Chunk():
                pass  # a chunk of a repeated version
            case Closing():
                assert completed is not None
                return self._complete(completed, record)
        return None

    def _begin(self, opening: Opening) -> None:
        self._opening, self._parts, self._decoder = opening, [], None
        is_bundle = opening.kind is PublicationKind.BUNDLE
        # `admit` raises for an older publication and for a delta from another state. A repeated version gets no
        # decoder: its chunks are checked and dropped.
        admission = admit(
            opening, newest=self._host.policy, newest_digest=self._host.state_digest, highest_fork=self.highest_fork
        )
        self.highest_fork = opening.policy.fork
        if admission is Admission.NEW and not is_bundle:
            self._decoder = self._host.decoder(opening)

    def _complete(self, opening: Opening, closing: Closing) -> Outcome:
        parts, decoder = tuple(self._parts), self._decoder
        self._parts, self._decoder = [], None
        if opening.kind is PublicationKind.BUNDLE:
            return ReceivedBundle(opening=opening, parts=parts)
        if decoder is None:
            check_repeat(opening, closing, self._host.state_digest)
            return None
        return self._prove(opening, closing, decoder)

    def _prove(self, opening: Opening, closing: Closing, decoder: Decoder) -> Outcome:
        before, staged = self._host.policy, decoder.staged()
        digest = self._host.take(opening, closing, staged)
        signed = self._host.version
        if signed is None:
            why = f"the weights have digest {digest.hex()}, the published version has {closing.state_digest.hex()}"
            return WeightMismatch(policy=opening.policy, digest=digest, why=why)
        # The first version, and the first of a fork, need a check of the engine like any other recovery.
        moved = before is None or before.fork != opening.policy.fork
        fallback = opening.is_derived or self._distrust
        return Version(signed=signed, staged=staged, recovers=moved or fallback, fallback=fallback)


def kind_of(record: ReceivedRecord) -> str | None:
    """Return the kind of a record for the log: opening, chunk or closing, or None if it is unknown."""
    return record.kind if isinstance(record, UnreadableRecord) else type(record).__name__.lower()
