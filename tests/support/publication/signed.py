"""Signed publications with payloads that mean nothing, for tests of what never decodes them."""

from dataclasses import dataclass
from functools import cache

from blake3 import blake3

from periplus.codec.frame import CodecId
from periplus.publication import (
    Chunk,
    Opening,
    Publication,
    PublicationKind,
    PublisherKey,
    Trust,
    bundle_parts,
    derived_publication,
    signed_publication,
)
from periplus.values.policy import Policy
from tests.support.keys import AUTHORITY

JOB = "job-1"
CONTENT_BYTES = 64


@dataclass(frozen=True)
class Signer:
    """The certified publisher of one fork. The state digest of a policy is a function of the policy."""

    fork: int = 0
    job_id: str = JOB

    @property
    def key(self) -> PublisherKey:
        return PublisherKey.from_private_bytes(blake3(f"{self.job_id} {self.fork}".encode()).digest())

    def bundle(self, version: int = 0, payload: bytes = b"tokenizer") -> Publication:
        return self._signed(PublicationKind.BUNDLE, version, None, payload)

    def anchor(self, version: int, num_bytes: int = 10) -> Publication:
        return self._signed(PublicationKind.ANCHOR, version, None, b"a" * num_bytes)

    def delta(self, base: int, version: int, num_bytes: int = 6) -> Publication:
        return self._signed(PublicationKind.DELTA, version, Policy(self.fork, base), b"d" * num_bytes)

    def _signed(self, kind: PublicationKind, version: int, base: Policy | None, payload: bytes) -> Publication:
        return _signed(self, kind, Policy(self.fork, version), base, payload)


@cache
def _signed(signer: Signer, kind: PublicationKind, policy: Policy, base: Policy | None, payload: bytes) -> Publication:
    is_bundle = kind is PublicationKind.BUNDLE
    certificate = AUTHORITY.certify(signer.job_id, signer.fork, signer.key.public_key)
    return signed_publication(
        signer.key,
        certificate,
        job_id=signer.job_id,
        kind=kind,
        policy=policy,
        base=base,
        base_digest=b"" if base is None else digest_of(base),
        content_bytes=CONTENT_BYTES,
        codec=CodecId.FILES_ZSTD if is_bundle else CodecId.WEIGHTS,
        parts=bundle_parts(payload, 4),
        state_digest=b"" if is_bundle else digest_of(policy),
        probe=() if is_bundle else (-1.5, -policy.version),
    )


def derived(target: Publication, base: Policy | None = None, payload: bytes = b"derived") -> Publication:
    """Return what a gateway derives from its copy: a full state, or a fold from `base`."""
    kind = PublicationKind.ANCHOR if base is None else PublicationKind.DELTA
    base_digest = b"" if base is None else digest_of(base)
    return derived_publication(
        target.attestation, kind=kind, base=base, base_digest=base_digest, parts=bundle_parts(payload, 4)
    )


def digest_of(policy: Policy) -> bytes:
    """Return the digest of the state that is published as this policy."""
    return blake3(str(policy).encode()).digest()


def trust(job_id: str = JOB) -> Trust:
    return Trust(AUTHORITY.public_key, job_id)


def payload_parts(publication: Publication) -> tuple[bytes, ...]:
    """Return parts in the order in which a decoder takes them."""
    return tuple(chunk.data for chunk in publication.chunks)


def sign_chunk(key: PublisherKey, opening: Opening, index: int, data: bytes) -> Chunk:
    """Return one signed part of the publication that the signed `opening` announced."""
    return key.sign_hashed_chunk(opening, index, data, blake3(data).digest())
