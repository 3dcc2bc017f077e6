"""Neither a relay nor the trainer of another job or of an old fork can pass off a publication as this trainer's."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.frame import CodecId
from periplus.errors import CorruptFrame, Forged
from periplus.publication import (
    Assembler,
    Attestation,
    Certificate,
    Chunk,
    Closing,
    JobAuthority,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
    PublisherKey,
    StreamChecker,
    Trust,
)
from periplus.publication.signing import MAX_CERTIFICATES, SMALL_ORDER
from periplus.publication.values import chunk_signed_bytes
from periplus.values.policy import Policy
from tests.support.cases.examples import examples
from tests.support.keys import AUTHORITY
from tests.support.publication.signed import JOB, Signer, derived, sign_chunk, trust

SIGNER = Signer()
DELTA = SIGNER.delta(1, 2, num_bytes=10)
OPENING, CLOSING = DELTA.opening, DELTA.closing
OTHERS = [
    SIGNER.delta(1, 2, num_bytes=9),
    SIGNER.delta(2, 3, num_bytes=10),
    SIGNER.anchor(2),
    Signer(fork=1).delta(1, 2, num_bytes=10),
    Signer(job_id="job-2").delta(1, 2, num_bytes=10),
]


def assembled(records: Iterator[PublicationRecord] | list[PublicationRecord]) -> Publication | None:
    assembler = Assembler(trust(), max_content_bytes=1000)
    return [assembler.feed(record) for record in records][-1]


def other_values(value: Any) -> list[Any]:
    """Return values of the same type that are near."""
    match value:
        case bool():
            return [not value]
        case CodecId():
            return [codec for codec in CodecId if codec is not value]
        case PublicationKind():
            return [kind for kind in PublicationKind if kind is not value]
        case int():
            return [value + 1, max(value - 1, 0), value ^ 1 << 20]
        case str():
            return [value + "x", value[:-1], ""]
        case bytes():
            flipped = [value[:i] + bytes([value[i] ^ 1 << i % 8]) + value[i + 1 :] for i in range(len(value))]
            return [*flipped, b"", value + b"\0", value[:-1]]
        case Policy():
            return [replace(value, fork=value.fork + 1), replace(value, version=value.version + 1), Policy(0, 0)]
        case tuple():
            return [(), value[:-1], value[::-1], (*value, 0.0), (float("nan"), *value[1:]), (-0.0, *value[1:])]
        case None:
            return []
        case _:
            return [None]


def variants(record: Any) -> Iterator[Any]:
    for each in fields(record):
        for value in other_values(getattr(record, each.name)):
            if value != getattr(record, each.name):
                yield replace(record, **{each.name: value})


# ---- every field -----------------------------------------------------------------------------------------------------


def test_a_whole_publication_is_assembled_from_its_records() -> None:
    assert assembled(DELTA.records()) == DELTA


def test_no_field_of_an_opening_can_be_changed() -> None:
    changed = list(variants(OPENING))
    assert len(changed) > 100
    for opening in changed:
        with pytest.raises((Forged, CorruptFrame)):
            StreamChecker(trust(), max_content_bytes=1000).take(opening)
        if opening.attested is None:
            with pytest.raises(Forged):
                trust().check_opening(opening)


def test_no_field_of_its_certificate_can_be_changed() -> None:
    assert OPENING.certificate is not None
    for certificate in variants(OPENING.certificate):
        with pytest.raises(Forged):
            trust().check_opening(replace(OPENING, certificate=certificate))


def test_no_field_of_a_chunk_can_be_changed() -> None:
    for chunk in variants(DELTA.chunks[1]):
        with pytest.raises(Forged):
            trust().check_chunk(OPENING, chunk)


def test_no_field_of_a_closing_can_be_changed() -> None:
    for closing in variants(CLOSING):
        with pytest.raises(Forged):
            trust().check_closing(OPENING, closing)
        with pytest.raises((Forged, CorruptFrame)):
            assembled([OPENING, *DELTA.chunks, closing])


# ---- what a relay holds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_no_record_fits_into_another_publication(other: Publication) -> None:
    for chunk in other.chunks:
        with pytest.raises(Forged):
            trust().check_chunk(OPENING, chunk)
    with pytest.raises(Forged):
        trust().check_closing(OPENING, other.closing)


def test_a_chunk_has_one_place() -> None:
    same = SIGNER.anchor(1, num_bytes=8)
    first, second = same.chunks
    assert first.data == second.data
    for moved in (replace(first, index=1), replace(second, index=0)):
        with pytest.raises(Forged):
            trust().check_chunk(same.opening, moved)


@pytest.mark.parametrize(
    "chunks",
    [[], [0], [0, 1], [0, 2], [1, 0, 2], [0, 1, 1, 2], [0, 1, 2, 2], [2, 1, 0]],
    ids=lambda order: "-".join(map(str, order)) or "none",
)
def test_chunks_left_out_repeated_or_in_another_order_do_not_complete(chunks: list[int]) -> None:
    with pytest.raises(CorruptFrame):
        assembled([OPENING, *(DELTA.chunks[i] for i in chunks), CLOSING])


def test_a_root_that_the_trainer_did_not_close_with_does_not_complete() -> None:
    key, certificate = SIGNER.key, OPENING.certificate
    assert certificate is not None
    twin = [sign_chunk(key, OPENING, i, b"evil"[: len(c.data)]) for i, c in enumerate(DELTA.chunks)]
    for spliced in ([twin[0], *DELTA.chunks[1:]], [*DELTA.chunks[:2], twin[2]]):  # the same opening, published twice
        with pytest.raises(CorruptFrame, match="root"):
            assembled([OPENING, *spliced, CLOSING])


def test_a_signature_in_another_encoding_is_refused() -> None:
    order = (1 << 252) + 27742317777372353535851937790883648493
    r, s = OPENING.signature[:32], int.from_bytes(OPENING.signature[32:], "little")
    malleated = r + (s + order).to_bytes(32, "little")
    with pytest.raises(Forged):
        trust().check_opening(replace(OPENING, signature=malleated))


# ---- who signs -------------------------------------------------------------------------------------------------------


def _signed_by(key: PublisherKey, certificate: Certificate, opening: Opening = OPENING) -> Opening:
    return key.sign_opening(opening, certificate)


def test_certificates_of_others_are_refused() -> None:
    key, public_key = SIGNER.key, SIGNER.key.public_key
    foreign, believer = JobAuthority.from_private_bytes(bytes(32)), trust()
    believer.check_opening(_signed_by(key, _own()))  # what it remembers of this one vouches for no other
    for certificate in (
        AUTHORITY.certify("job-2", 0, public_key),
        AUTHORITY.certify(JOB, 1, public_key),
        foreign.certify(JOB, 0, public_key),
        Certificate(job_id=JOB, fork=0, public_key=public_key, signature=key.sign_opening(OPENING, _own()).signature),
        replace(_own(), signature=b""),
    ):
        for reader in (believer, trust()):
            with pytest.raises(Forged):
                reader.check_opening(_signed_by(key, certificate))


def _own() -> Certificate:
    return AUTHORITY.certify(JOB, 0, SIGNER.key.public_key)


def test_a_certified_publisher_of_another_job_or_fork_cannot_sign_for_this_one() -> None:
    for signer in (Signer(job_id="job-2"), Signer(fork=1)):
        certificate = AUTHORITY.certify(signer.job_id, signer.fork, signer.key.public_key)
        with pytest.raises(Forged):
            trust().check_opening(_signed_by(signer.key, certificate))


def test_a_publication_of_another_job_is_refused_though_its_authority_is_the_same() -> None:
    opening = Signer(job_id="job-2").anchor(1).opening
    trust("job-2").check_opening(opening)
    with pytest.raises(Forged, match="job-1"):
        trust().check_opening(opening)


def test_two_keys_of_one_fork_do_not_mix() -> None:
    other = PublisherKey.from_private_bytes(b"o" * 32)
    opening = _signed_by(other, AUTHORITY.certify(JOB, 0, other.public_key))
    trust().check_opening(opening)
    assert opening.id != OPENING.id
    for chunk in DELTA.chunks:
        with pytest.raises(Forged):
            trust().check_chunk(opening, chunk)


def test_an_opening_without_a_certificate_is_refused() -> None:
    for opening in (replace(OPENING, certificate=None), replace(OPENING, certificate=None, signature=b"")):
        with pytest.raises(Forged, match="no certificate"):
            trust().check_opening(opening)


def test_a_key_that_anybody_can_sign_for_is_not_certified() -> None:
    neutral, zero = (1).to_bytes(32, "little"), bytes(32)
    for y in SMALL_ORDER:
        for sign in (0, 1 << 255):
            weak = (y | sign).to_bytes(32, "little")
            with pytest.raises(ValueError, match="small order"):
                AUTHORITY.certify(JOB, 0, weak)
    weak = neutral
    Ed25519PublicKey.from_public_bytes(weak).verify(neutral + zero, b"whatever")  # the danger is real


def test_the_small_order_keys_are_those_that_verify_what_nobody_signed() -> None:
    fooled = 0
    for y in SMALL_ORDER:
        key = Ed25519PublicKey.from_public_bytes(y.to_bytes(32, "little"))
        fooled += any(_verifies(key, number) for number in range(64))
    assert fooled >= 4, "OpenSSL refuses those that are not encoded canonically, and takes the others"


def _verifies(key: Ed25519PublicKey, number: int) -> bool:
    try:
        key.verify((1).to_bytes(32, "little") + bytes(32), bytes([number]))
    except InvalidSignature:
        return False
    return True


def test_keys_of_a_wrong_length_are_a_callers_error() -> None:
    for length in (0, 31, 33):
        for make in (
            lambda n=length: AUTHORITY.certify(JOB, 0, bytes(n)),
            lambda n=length: JobAuthority.from_private_bytes(bytes(n)),
            lambda n=length: PublisherKey.from_private_bytes(bytes(n)),
            lambda n=length: Trust(bytes(n), JOB),
        ):
            with pytest.raises(ValueError):
                make()
    with pytest.raises(ValueError, match="not of this publisher"):
        SIGNER.key.sign_opening(OPENING, AUTHORITY.certify(JOB, 0, b"k" * 32))


def test_an_authority_is_the_same_again_from_its_private_bytes() -> None:
    again = JobAuthority.from_private_bytes(AUTHORITY.private_bytes)
    assert again.public_key == AUTHORITY.public_key
    assert JobAuthority.generate().public_key != JobAuthority.generate().public_key
    assert PublisherKey.generate().public_key != PublisherKey.generate().public_key
    assert AUTHORITY.private_bytes.hex() not in repr(AUTHORITY)


def test_verified_certificates_are_remembered_in_bounds_and_forged_ones_not_at_all() -> None:
    believer = trust()
    for fork in range(MAX_CERTIFICATES + 5):
        believer.check_opening(Signer(fork=fork).anchor(1).opening)
        with pytest.raises(Forged):
            believer.check_opening(replace(OPENING, certificate=replace(_own(), signature=bytes([fork]) * 64)))
    assert len(believer._publishers) == MAX_CERTIFICATES
    believer.check_opening(OPENING)


# ---- derived ---------------------------------------------------------------------------------------------------------

TARGET = SIGNER.delta(2, 3)
FULL, FOLD = derived(TARGET), derived(TARGET, Policy(0, 1))


@pytest.mark.parametrize("made", [FULL, FOLD], ids=["full", "fold"])
def test_what_a_gateway_derives_passes_with_the_trainers_word_on_where_it_leads(made: Publication) -> None:
    assert made.opening.is_derived
    assert assembled(made.records()) == made
    assert made.closing.state_digest == TARGET.closing.state_digest
    assert made.closing.probe_logprobs == TARGET.closing.probe_logprobs
    assert made.attestation == TARGET.attestation


def _attested(**changes: Any) -> Opening:
    assert FULL.opening.attested is not None
    return replace(FULL.opening, attested=replace(FULL.opening.attested, **changes))


def test_no_field_of_what_is_attested_can_be_changed() -> None:
    attestation = TARGET.attestation
    assert attestation.opening.certificate is not None
    changed = [
        *(_attested(opening=opening) for opening in variants(attestation.opening)),
        *(_attested(closing=closing) for closing in variants(attestation.closing)),
        *(
            _attested(opening=replace(attestation.opening, certificate=certificate))
            for certificate in variants(attestation.opening.certificate)
        ),
    ]
    for opening in changed:
        with pytest.raises((Forged, CorruptFrame)):
            StreamChecker(trust(), max_content_bytes=1000).take(opening)


@pytest.mark.parametrize(
    "lie",
    [
        {"policy": Policy(0, 4)},
        {"policy": Policy(1, 3)},
        {"job_id": "job-2"},
        {"kind": PublicationKind.BUNDLE},
        {"codec": CodecId.FILES_ZSTD},
        {"content_bytes": TARGET.opening.content_bytes + 1},
        {"certificate": TARGET.opening.certificate},
        {"signature": TARGET.opening.signature},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_derived_opening_says_nothing_that_is_not_attested(lie: dict[str, Any]) -> None:
    with pytest.raises(Forged):
        trust().check_opening(replace(FULL.opening, **lie))


def test_attestations_of_other_versions_jobs_and_forks_are_refused() -> None:
    for other in (SIGNER.delta(1, 2), Signer(job_id="job-2").delta(2, 3), Signer(fork=1).delta(2, 3), SIGNER.bundle(3)):
        with pytest.raises(Forged):
            trust().check_opening(replace(FULL.opening, attested=other.attestation))
    mixed = Attestation(opening=TARGET.opening, closing=SIGNER.anchor(3).closing)
    with pytest.raises(Forged):
        trust().check_opening(replace(FULL.opening, attested=mixed))
    of_other_job = derived(Signer(job_id="job-2").anchor(3))
    with pytest.raises(Forged):
        trust().check_opening(of_other_job.opening)


def test_what_is_derived_attests_nothing() -> None:
    nested = Attestation(opening=FULL.opening, closing=FULL.closing)
    opening = replace(FULL.opening, attested=nested)
    with pytest.raises(Forged, match="another derived"):
        trust().check_opening(opening)
    with pytest.raises(CorruptFrame, match="another derived"):
        StreamChecker(trust(), max_content_bytes=1000).take(opening)


def test_a_derived_closing_that_leads_elsewhere_is_refused() -> None:
    assert FULL.closing.probe_logprobs[0] == -1.5
    for lie in (
        {"state_digest": SIGNER.anchor(2).closing.state_digest},
        {"probe_logprobs": ()},
        {"probe_logprobs": (-1.5, -3.5)},
        {"probe_logprobs": (1e39, -3.0)},
        {"signature": TARGET.closing.signature},
    ):
        changed: dict[str, Any] = lie
        with pytest.raises(Forged):
            trust().check_closing(FULL.opening, replace(FULL.closing, **changed))


def test_a_derived_chunk_carries_no_signature() -> None:
    with pytest.raises(Forged):
        trust().check_chunk(FULL.opening, replace(FULL.chunks[0], signature=bytes(64)))


def test_a_derived_payload_cannot_be_passed_off_as_signed() -> None:
    records: list[PublicationRecord] = [TARGET.opening, *FULL.chunks, TARGET.closing]
    with pytest.raises(Forged):
        assembled(records)


# ---- anything --------------------------------------------------------------------------------------------------------

ANY = [
    *(
        record
        for publication in [DELTA, *OTHERS, TARGET, FULL, FOLD, SIGNER.bundle()]
        for record in publication.records()
    )
]
GENUINE = {DELTA, *OTHERS[:4], TARGET, FULL, FOLD, SIGNER.bundle()}


def _scrambled(draw: st.DrawFn) -> PublicationRecord:
    record = draw(st.sampled_from(ANY))
    if draw(st.integers(0, 3)) == 0:
        candidates = list(variants(record))
        record = candidates[draw(st.integers(0, len(candidates) - 1))]
    return record


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.composite(_scrambled)(), max_size=30))
def test_whatever_order_and_change_only_what_was_published_comes_out(sent: list[PublicationRecord]) -> None:
    assembler = Assembler(trust(), max_content_bytes=1000)
    for record in sent:
        try:
            done = assembler.feed(record)
        except (CorruptFrame, Forged):
            continue
        if done is not None:
            same = [p for p in GENUINE if (p.chunks, p.closing) == (done.chunks, done.closing)]
            assert any(p.opening.signed_bytes == done.opening.signed_bytes or p.opening.is_derived for p in same)


def test_the_content_hash_of_a_checked_chunk_is_handed_back() -> None:
    chunk = DELTA.chunks[0]
    content_hash = trust().check_chunk(OPENING, chunk)
    assert SIGNER.key.sign_hashed_chunk(OPENING, 0, chunk.data, content_hash) == chunk
    assert content_hash in chunk_signed_bytes(OPENING, 0, len(chunk.data), content_hash)
    assert isinstance(chunk, Chunk)
    assert isinstance(CLOSING, Closing)
