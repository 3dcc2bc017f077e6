"""Seals of the audit journal: a trainer signs its lines, so that nobody without its key can forge another journal.

    job authority (coordinator) --certificate of (job, fork, key)--> trainer --seal of (certificate, n, prev)--> journal

A seal is a line. It signs its own number and the hash of the line before it and thereby, along the chain, every line
before it. A trainer writes one as soon as its key is certified, and one after each line of the kinds in `SEALED`, in
one piece with that line. So the unsigned end of a journal can hold leases, results, losses and drops, and no batch,
evaluation, publication or checkpoint. The private key ends with the trainer's process, so nobody can seal a fork again.

`Sealer` is the trainer's side, `SealCheck` the auditor's. Each seal must be signed by the key that it names, and a fork
has one key. If the auditor has keys of authorities, one of them must have signed each certificate. Without such keys
anybody could have made key and certificate.

The signed bytes are, little-endian: "periplus.audit/2 seal" 0x00, the bytes that the certificate signs (job, fork, key)
after their length as u32, the certificate's 64 bytes of signature, `n` as u64, and the 16 bytes of `prev`.
"""

import struct
from collections.abc import Sequence

from periplus.audit.findings import Code, Findings
from periplus.audit.history import Fork
from periplus.audit.records import (
    CheckpointEntry,
    ConsumeEntry,
    EndEntry,
    Entry,
    EvalEntry,
    ExportEntry,
    OpenEntry,
    PruneEntry,
    PublishEntry,
    SealEntry,
    kind_of,
)
from periplus.publication.signing import JobAuthority, PublisherKey, is_signed_by
from periplus.publication.values import Certificate

_CONTEXT = b"periplus.audit/2 seal\0"
_MAX_FORK = (1 << 32) - 1

SEALED = (EvalEntry, ConsumeEntry, PublishEntry, CheckpointEntry, PruneEntry, ExportEntry, EndEntry)
"""Entries that a seal must follow, once the trainer's key is certified."""

_CERTIFIED_ONLY = (EvalEntry, ConsumeEntry, PublishEntry, PruneEntry, ExportEntry)
"""Entries that only a trainer with a certified key writes. A trainer without one may still save the checkpoint of its
warm-up, and end."""


class Sealer:
    """Maker of a trainer's seals, with its key and the authority's certificate of it."""

    def __init__(self, key: PublisherKey, certificate: Certificate) -> None:
        """Take the key and its certificate. Raises: ValueError if the certificate is for another key."""
        if certificate.public_key != key.public_key:
            raise ValueError(f"the certificate is of key {certificate.public_key.hex()}, not of this trainer's")
        self._key = key
        self._certificate = certificate

    def seal(self, n: int, prev: bytes) -> SealEntry:
        """Return the seal that becomes line `n`, after a line with the hash `prev`."""
        certificate = self._certificate
        signature = self._key.sign(_signed_bytes(certificate, n, prev))
        return SealEntry(key=certificate.public_key, certificate=certificate.signature, signature=signature)


def _signed_bytes(certificate: Certificate, n: int, prev: bytes) -> bytes:
    subject = certificate.signed_bytes
    return _CONTEXT + struct.pack("<I", len(subject)) + subject + certificate.signature + struct.pack("<Q", n) + prev


class SealCheck:
    """Checker of a journal's seals, called for each entry in order.

    `authorities` are public keys, any of which may have certified a trainer. `num_seals` and `keys` count and collect
    the seals that hold. `num_sealed` is the number of lines that the newest of them covers, itself included.
    """

    def __init__(self, authorities: Sequence[bytes], findings: Findings) -> None:
        self._authorities = authorities
        self._findings = findings
        self._certified: dict[Certificate, str] = {}
        self._key_of: dict[Fork, bytes] = {}
        self._awaited: Entry | None = None
        self._is_left = False  # a trainer died between a line and its seal, and the next fork opens
        self._loose: tuple[int, str] | None = None
        self._num_loose = 0
        self.keys: set[bytes] = set()
        self.num_seals = 0
        self.num_sealed = 0

    def before(self, record: Entry, place: str) -> None:
        """Check, before any next entry, that a line which must be sealed has its seal here."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or isinstance(record, SealEntry | OpenEntry):
            self._is_left = False
            return
        if isinstance(record, CheckpointEntry) and not self._is_left:
            self._is_left = True  # the next trainer writes this line before it opens its own fork
            return
        self._is_left = False
        message = f"a line of kind {kind_of(awaited)} is not followed by a seal"
        self._findings.add(Code.SEAL_MISSING, place, message)

    def line(self, fork: Fork, at: int, record: Entry, place: str) -> None:
        """Note an entry of a fork that a seal must cover. One that comes before any seal of its fork is a finding."""
        if not isinstance(record, SEALED):
            return
        # Lines wait here, as "loose", until a seal that holds covers them.
        if self._loose is None:
            self._loose = (at, place)
        self._num_loose += 1
        # From the fork's first seal on, a line of these kinds must be followed by a seal.
        if fork in self._key_of:
            self._awaited = record
        elif isinstance(record, _CERTIFIED_ONLY):
            message = f"a line of kind {kind_of(record)} comes before any seal of fork {fork.number}"
            self._findings.add(Code.SEAL_MISSING, place, message, fork=fork.number)

    def seal(self, fork: Fork, at: int, prev: bytes, seal: SealEntry, place: str) -> None:
        """Check a seal. `prev` is the hash of the line before it in the file."""
        why = self._why_not(fork, at, prev, seal)
        if why:
            self._findings.add(
                Code.SEAL_WRONG, place, f"the seal of fork {fork.number} does not hold: {why}", key=seal.key.hex()
            )
            self._key_of.setdefault(fork, seal.key)
            return
        self._key_of.setdefault(fork, seal.key)
        self.keys.add(seal.key)
        self.num_seals += 1
        # The hash chain makes the seal cover all lines before it, those of other forks as well.
        self.num_sealed = at + 1
        self._loose, self._num_loose = None, 0

    def end(self, place: str, *, is_torn: bool) -> None:
        """Check the end of the journal. With `is_torn` a trainer may have died between a line and its seal."""
        if self._awaited is not None and not is_torn:
            message = f"the last line, of kind {kind_of(self._awaited)}, is not followed by a seal"
            self._findings.add(Code.SEAL_MISSING, place, message)
        elif self._authorities and self._loose is not None:
            message = f"{self._num_loose} lines that must be signed are not covered by any seal that holds"
            self._findings.add(Code.SEAL_MISSING, self._loose[1], message, lines=self._num_loose)
        elif self._authorities and not self.num_seals:
            self._findings.add(Code.SEAL_MISSING, place, "the journal has no seal that holds")

    def _why_not(self, fork: Fork, at: int, prev: bytes, seal: SealEntry) -> str:
        """Return why a seal does not hold, or an empty text."""
        if fork.number > _MAX_FORK:
            return f"there is no fork {fork.number}"
        if self._key_of.get(fork, seal.key) != seal.key:
            return "the fork's earlier seals are of another key"
        job_id = fork.opened.job_id
        # A seal carries only the certificate's signature. Job and fork come from the `open` line, so that a certificate
        # of another job or fork does not verify.
        certificate = Certificate(job_id=job_id, fork=fork.number, public_key=seal.key, signature=seal.certificate)
        if not is_signed_by(seal.key, seal.signature, _signed_bytes(certificate, at, prev)):
            return "its key did not sign the journal up to this line"
        return self._why_not_certified(certificate) if self._authorities else ""

    def _why_not_certified(self, certificate: Certificate) -> str:
        """Return why no authority signed the certificate, or an empty text. The answer is remembered."""
        why = self._certified.get(certificate)
        if why is None:
            why = self._certified[certificate] = _why_not_certified(certificate, self._authorities)
        return why


def _why_not_certified(certificate: Certificate, authorities: Sequence[bytes]) -> str:
    signature, signed = certificate.signature, certificate.signed_bytes
    if any(is_signed_by(key, signature, signed) for key in authorities):
        return ""
    why = f"its key is not certified for job {certificate.job_id!r}, fork {certificate.fork} by the given authority"
    # Both keys are 64 digits, so only the signature tells that the private one was given. This is a hint and never a
    # pass: whoever knows the public key could sign with it as if it were a private one.
    private = (JobAuthority.from_private_bytes(key).public_key for key in authorities)
    if any(is_signed_by(key, signature, signed) for key in private):
        why += ", whose private key seems to be given; give what `periplus coordinator authority` prints"
    return why
