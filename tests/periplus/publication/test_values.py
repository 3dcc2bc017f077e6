import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId
from periplus.publication import Certificate, Closing, Opening, PublicationKind
from periplus.publication.values import chunk_signed_bytes, closing_signed_bytes
from periplus.values.policy import Policy

CERTIFICATE = Certificate(job_id="job-1", fork=1, public_key=bytes(32), signature=bytes(64))
OPENING = Opening(
    job_id="job-1",
    kind=PublicationKind.DELTA,
    policy=Policy(1, 7),
    base=Policy(1, 6),
    base_digest=b"b" * 32,
    codec=CodecId.WEIGHTS,
    max_payload_bytes=99,
    max_chunks=3,
    content_bytes=300,
    certificate=CERTIFICATE,
)
CLOSING = Closing(num_chunks=2, payload_bytes=9, root=b"r" * 32, state_digest=b"s" * 32, probe_logprobs=(-1.5, -0.25))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
policies = st.builds(Policy, st.integers(0, 2), st.integers(0, 2))
openings = st.builds(
    Opening,
    job_id=texts,
    kind=st.sampled_from(PublicationKind),
    policy=policies,
    base=st.none() | policies,
    base_digest=st.binary(max_size=2),
    codec=st.sampled_from(CodecId),
    max_payload_bytes=st.integers(0, 2),
    max_chunks=st.integers(0, 2),
    content_bytes=st.integers(0, 2),
    certificate=st.none() | st.just(CERTIFICATE),
)
certificates = st.builds(
    Certificate, job_id=texts, fork=st.integers(0, 3), public_key=st.binary(max_size=3), signature=st.just(b"")
)


@given(openings, openings)
def test_two_openings_sign_the_same_bytes_only_if_they_say_the_same(one: Opening, other: Opening) -> None:
    assert (one.signed_bytes == other.signed_bytes) == (one == other)


@given(certificates, certificates)
def test_two_certificates_sign_the_same_bytes_only_if_they_say_the_same(one: Certificate, other: Certificate) -> None:
    assert (one.signed_bytes == other.signed_bytes) == (one == other)


def test_no_kind_of_record_signs_the_bytes_of_another() -> None:
    signed = [
        CERTIFICATE.signed_bytes,
        OPENING.signed_bytes,
        chunk_signed_bytes(OPENING, 0, 1, bytes(32)),
        closing_signed_bytes(OPENING, CLOSING),
    ]
    contexts = [bytes_[: bytes_.index(b"\0") + 1] for bytes_ in signed]
    assert all(a == b or not a.startswith(b) for a in contexts for b in contexts)
    assert len(set(contexts)) == 4


def test_the_signature_does_not_sign_itself() -> None:
    assert replace(OPENING, signature=b"x" * 64).id == OPENING.id
    assert closing_signed_bytes(OPENING, replace(CLOSING, signature=b"x")) == closing_signed_bytes(OPENING, CLOSING)


@pytest.mark.parametrize(
    ("signed", "golden"),
    [
        (
            CERTIFICATE.signed_bytes,
            "7065726970"
            "6c75732e7075626c69636174696f6e2f3120636572746966696361746500"
            "05000000"
            "6a6f622d31"
            "01000000"
            "20000000" + "00" * 32,
        ),
        (
            OPENING.signed_bytes,
            "7065726970"
            "6c75732e7075626c69636174696f6e2f31206f70656e696e6700"
            "05000000"
            "6a6f622d31"
            "03"
            "01000000"
            "0700000000000000"
            "01"
            "01000000"
            "0600000000000000"
            "0500"
            "6300000000000000"
            "03000000"
            "2c01000000000000"
            "20000000" + "62" * 32 + "20000000" + "00" * 32,
        ),
        (
            chunk_signed_bytes(OPENING, 2, 5, b"h" * 32),
            "7065726970"
            "6c75732e7075626c69636174696f6e2f31206368756e6b00" + OPENING.id.hex() + "02000000"
            "0500000000000000" + "68" * 32,
        ),
        (
            closing_signed_bytes(OPENING, CLOSING),
            "7065726970"
            "6c75732e7075626c69636174696f6e2f3120636c6f73696e6700" + OPENING.id.hex() + "02000000"
            "0900000000000000"
            "20000000" + "72" * 32 + "20000000" + "73" * 32 + "08000000"
            "0000c0bf"
            "000080be",
        ),
    ],
    ids=["certificate", "opening", "chunk", "closing"],
)
def test_the_signed_bytes_are_frozen(signed: bytes, golden: str) -> None:
    assert signed.hex() == golden


@given(st.lists(st.floats(width=32), max_size=4), st.lists(st.floats(width=32), max_size=4))
def test_probes_are_told_apart_by_their_bits(one: list[float], other: list[float]) -> None:
    a, b = (closing_signed_bytes(OPENING, replace(CLOSING, probe_logprobs=tuple(each))) for each in (one, other))
    bits, other_bits = (struct.pack(f"<{len(each)}f", *each) for each in (one, other))  # two NaNs may differ, too
    assert (a == b) == (bits == other_bits)


@pytest.mark.parametrize("change", [{"probe_logprobs": (1e39,)}])
def test_a_number_beyond_float32_has_no_signed_bytes(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="float32"):
        closing_signed_bytes(OPENING, replace(CLOSING, **change))
