"""One subscription's records, against the host copy: each is verified and decoded as it comes, and a closing proves.

Synchronous and without I/O: records in, outcomes out. `take` runs in a thread of the shell, one call at a time; only a
closing writes into the host copy. What is refused (Forged, CorruptFrame, WrongBase, Fenced, UnknownCodec) is refused
before anything of it is kept: after an error the subscription is of no use, the host copy is what it was.

A repeat of the version that the copy holds is verified and changes nothing; one whose closing says that it led to other
weights is not a repeat but a rollback, and Fenced.
"""

from dataclasses import dataclass

from periplus.codec.weights.decoder import Decoder
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
    """What a worker needs beside weights; `parts` are its payload."""

    opening: Opening
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMismatch:
    """Everything was as it was sent, and yet the weights are not those that the trainer signed."""

    policy: Policy
    digest: bytes
    why: str


Outcome = ReceivedBundle | Version | WeightMismatch | None


class Incoming:
    """From one subscription's first record to its last. `distrust`: it was asked for after a mismatch."""

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

    @property
    def is_derived(self) -> bool:
        """Whether what is coming was made by a gateway from its copy."""
        return self._opening is not None and self._opening.is_derived

    def take(self, record: PublicationRecord) -> Outcome:
        """What this record completed. Raises: Forged, CorruptFrame, WrongBase, Fenced, UnknownCodec."""
        completed = self._intake.take(record)
        match record:
            case Opening():
                self._begin(record)
            case Chunk() if self._decoder is not None:
                self._decoder.feed(record.data)
            case Chunk() if self._opening is not None and self._opening.kind is PublicationKind.BUNDLE:
                self._parts.append(record.data)
            case Chunk():
                pass  # of a repeat
            case Closing():
                assert completed is not None
                return self._complete(completed, record)
        return None

    def _begin(self, opening: Opening) -> None:
        self._opening, self._parts, self._decoder = opening, [], None
        is_bundle = opening.kind is PublicationKind.BUNDLE
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
        moved = before is None or before.fork != opening.policy.fork
        fallback = opening.is_derived or self._distrust
        return Version(signed=signed, staged=staged, recovers=moved or fallback, fallback=fallback)
