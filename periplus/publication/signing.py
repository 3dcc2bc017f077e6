"""Keys that sign publications, and their verification: Ed25519 with raw 32-byte keys.

    job authority (coordinator) --certificate of (job, fork, key)--> publisher (trainer) --records--> readers (Trust)

`Trust` is all that a reader needs: the authority's public key and the job, both from its own task and never from the
wire. It keeps no state but the certificates that it has verified. It does not check order: old versions are refused in
`order`.
"""

from dataclasses import replace
from typing import Self

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from periplus.errors import Forged
from periplus.publication.values import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Attestation,
    Certificate,
    Chunk,
    Closing,
    Opening,
    PublicationKind,
    chunk_signed_bytes,
    closing_signed_bytes,
)

MAX_CERTIFICATES = 64
"""Verified certificates that a reader remembers. There is one per fork, and only the newest are needed. Chosen by
hand.
"""

_Y_BITS = (1 << 255) - 1
"""Mask of the y coordinate in an encoded public key; the remaining bit is the sign of x."""
SMALL_ORDER = frozenset(
    int.from_bytes(bytes.fromhex(y), "little")
    for y in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)
"""The y coordinates of points whose order divides 8. Anybody can forge signatures for such keys, so none is
certified.
"""


class _SigningKey:
    """An Ed25519 key pair."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """Create a key from the system's randomness. Call it in an app, not in code that decides."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private_bytes: bytes) -> Self:
        """Load a key. Raises: ValueError unless there are 32 bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(private_bytes))

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()


class JobAuthority(_SigningKey):
    """Certifies the keys of a fleet's trainers. The coordinator owns it."""

    @property
    def private_bytes(self) -> bytes:
        """Raw private key, for the file in which it is kept."""
        return self._key.private_bytes_raw()

    def certify(self, job_id: str, fork: int, public_key: bytes) -> Certificate:
        """Certify a public key for one fork of a job.

        Raises: ValueError for what is no key, or a key for which anybody can forge signatures.
        """
        if len(public_key) != PUBLIC_KEY_BYTES:
            raise ValueError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
        if _is_of_small_order(public_key):
            raise ValueError(f"{public_key.hex()} is a point of small order, for which anybody can sign")
        unsigned = Certificate(job_id=job_id, fork=fork, public_key=public_key, signature=b"")
        return replace(unsigned, signature=self._key.sign(unsigned.signed_bytes))

    def secret_of(self, job_id: str) -> str:
        """Return the secret that the processes and gateways of a job show each other, in hexadecimal.

        It follows from the private key, so that nobody has to store it (periplus/net/tokens.py).
        """
        key = blake3(self.private_bytes, derive_key_context="periplus secrets of jobs/1").digest()
        return blake3(job_id.encode(), key=key).hexdigest()


class PublisherKey(_SigningKey):
    """Signing key of one trainer of one fork; it never leaves its process."""

    def sign_opening(self, opening: Opening, certificate: Certificate) -> Opening:
        """Return the opening with its certificate and signature.

        Raises: ValueError if the certificate is for another key.
        """
        if certificate.public_key != self.public_key:
            raise ValueError(f"the certificate is of key {certificate.public_key.hex()}, not of this publisher's")
        unsigned = replace(opening, certificate=certificate, signature=b"", attested=None)
        return replace(unsigned, signature=self._key.sign(unsigned.signed_bytes))

    def sign_hashed_chunk(self, opening: Opening, index: int, data: bytes, content_hash: bytes) -> Chunk:
        """Return one signed part of the publication that the signed `opening` announced, with the BLAKE3 of `data`."""
        signed = chunk_signed_bytes(opening, index, len(data), content_hash)
        return Chunk(index, data, self._key.sign(signed))

    def sign_closing(self, opening: Opening, closing: Closing) -> Closing:
        """Return the signed closing. Raises: ValueError for a probe beyond float32."""
        return replace(closing, signature=self._key.sign(closing_signed_bytes(opening, closing)))

    def sign(self, signed_bytes: bytes) -> bytes:
        """Sign bytes, which must begin with a context string of their own so that they pass as no other record."""
        return self._key.sign(signed_bytes)


class Trust:
    """Verifies the publications of one job. Every check raises Forged, and then nothing was learned from the record."""

    def __init__(self, authority_key: bytes, job_id: str) -> None:
        """Trust certificates of one authority for one job. Raises: ValueError unless `authority_key` has 32 bytes."""
        self._authority = Ed25519PublicKey.from_public_bytes(authority_key)
        self._job_id = job_id
        self._publishers: dict[Certificate, Ed25519PublicKey] = {}

    @property
    def job_id(self) -> str:
        return self._job_id

    def check_opening(self, opening: Opening) -> None:
        """Check that the certified publisher of this job and fork signed the opening.

        A derived opening is checked by the signed opening and closing that attest it.
        """
        if opening.attested is not None:
            self._check_derived(opening, opening.attested)
            return
        publisher = self._publisher(opening)
        _verify(publisher, opening.signature, opening.signed_bytes, f"the signature of {opening}")

    def check_chunk(self, opening: Opening, chunk: Chunk) -> bytes:
        """Check a chunk, and return the BLAKE3 of its content, which the caller needs too.

        The opening must have been checked.
        """
        content_hash = blake3(chunk.data).digest()
        what = f"the signature of chunk {chunk.index} of {opening}"
        if opening.is_derived:
            _require(not chunk.signature, what, "it should have none")
            return content_hash
        signed = chunk_signed_bytes(opening, chunk.index, len(chunk.data), content_hash)
        _verify(self._publisher(opening), chunk.signature, signed, what)
        return content_hash

    def check_closing(self, opening: Opening, closing: Closing) -> None:
        """Check a closing of an opening that was checked. A derived one must lead to exactly the attested state."""
        what = f"the closing of {opening}"
        if opening.attested is None:
            try:
                signed = closing_signed_bytes(opening, closing)
            except ValueError as error:
                raise Forged(f"{what} cannot have been signed: {error}; subscribe again") from error
            _verify(self._publisher(opening), closing.signature, signed, what)
            return
        # A derived publication is proved by its result: the state that the trainer itself has signed.
        promised = opening.attested.closing
        _require(not closing.signature, what, "it is signed, though derived")
        _require(closing.state_digest == promised.state_digest, what, "its state digest is not the attested one")
        same_probe = _probe_bytes(closing) == _probe_bytes(promised)
        _require(same_probe, what, "its probe is not the attested one")

    def _check_derived(self, opening: Opening, attested: Attestation) -> None:
        what, target = f"{opening}", attested.opening
        _require(target.attested is None, what, "it is attested by another derived one")
        _require(not opening.signature and opening.certificate is None, what, "it is signed, though derived")
        _require(opening.job_id == target.job_id, what, f"it is attested by one of job {target.job_id[:80]!r}")
        _require(opening.policy == target.policy, what, f"it is attested by {target.policy}")
        # A bundle has no state digest that could prove it.
        is_state = PublicationKind.BUNDLE not in (opening.kind, target.kind)
        _require(is_state, what, "only states are derived from states")
        _require(opening.codec == target.codec, what, f"its codec is {opening.codec!r}, attested is {target.codec!r}")
        is_within = opening.content_bytes <= target.content_bytes
        _require(is_within, what, f"content_bytes is {opening.content_bytes}, attested are {target.content_bytes}")
        # The attested opening and closing carry the trainer's signatures, from which all else follows.
        self.check_opening(target)
        self.check_closing(target, attested.closing)

    def _publisher(self, opening: Opening) -> Ed25519PublicKey:
        """Return the verified public key of the opening's publisher. Raises: Forged."""
        what, certificate = f"the certificate of {opening}", opening.certificate
        _require(opening.job_id == self._job_id, f"{opening}", f"the job here is {self._job_id[:80]!r}")
        if certificate is None:
            raise Forged(f"{opening} has no certificate; only the certified trainer of its fork may publish")
        # The authority signs for every job and fork: a certificate of another one proves nothing here.
        _require(certificate.job_id == opening.job_id, what, f"it is of job {certificate.job_id[:80]!r}")
        _require(certificate.fork == opening.policy.fork, what, f"it is of fork {certificate.fork}")
        # A certificate comes with each opening; its signature is verified once.
        known = self._publishers.get(certificate)
        if known is not None:
            return known
        _require(len(certificate.public_key) == PUBLIC_KEY_BYTES, what, f"its key is {certificate.public_key[:64]!r}")
        _verify(self._authority, certificate.signature, certificate.signed_bytes, what)
        publisher = Ed25519PublicKey.from_public_bytes(certificate.public_key)
        # Forget the one that was verified first.
        if len(self._publishers) >= MAX_CERTIFICATES:
            del self._publishers[next(iter(self._publishers))]
        self._publishers[certificate] = publisher
        return publisher


def is_signed_by(public_key: bytes, signature: bytes, signed_bytes: bytes) -> bool:
    """Return whether the holder of a raw public key signed the bytes; False if anybody can sign for the key."""
    if len(public_key) != PUBLIC_KEY_BYTES or _is_of_small_order(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed_bytes)
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_of_small_order(public_key: bytes) -> bool:
    return int.from_bytes(public_key, "little") & _Y_BITS in SMALL_ORDER


def _probe_bytes(closing: Closing) -> bytes | None:
    try:
        return closing.probe_bytes
    except ValueError:
        return None


def _verify(key: Ed25519PublicKey, signature: bytes, signed: bytes, what: str) -> None:
    _require(len(signature) == SIGNATURE_BYTES, what, f"it has {len(signature)} bytes, a signature {SIGNATURE_BYTES}")
    try:
        key.verify(signature, signed)
    except InvalidSignature as error:
        raise Forged(f"{what} does not verify: made or changed by somebody else; subscribe again") from error


def _require(ok: bool, what: str, why: str) -> None:
    if not ok:
        raise Forged(f"{what} is not acceptable: {why}; subscribe again")
