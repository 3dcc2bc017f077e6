"""Order, sizes and versions: what is refused, with which error, and that a refusal changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId
from periplus.errors import CorruptFrame, Fenced, Forged, WrongBase
from periplus.publication import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    Admission,
    Assembler,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
    PublicationWriter,
    StreamChecker,
    admit,
    check_closing,
    check_opening,
    check_repeat,
    payload_cap,
    payload_root,
    signed_publication,
)
from periplus.values.policy import Policy
from tests.support.keys import AUTHORITY
from tests.support.publication.signed import JOB, Signer, derived, digest_of, payload_parts, sign_chunk, trust

SIGNER = Signer()
ANCHOR = SIGNER.anchor(1)
DELTA = SIGNER.delta(2, 3)


def new_assembler(max_content_bytes: int = 1000) -> Assembler:
    return Assembler(trust(), max_content_bytes=max_content_bytes)


def written(parts: list[bytes], **caps: Any) -> tuple[Opening, list[Chunk], Closing]:
    """Signed with any caps, by a publisher that keeps none of them."""
    key, signer = SIGNER.key, Signer()
    opening = key.sign_opening(replace(signer.anchor(1).opening, **caps), AUTHORITY.certify(JOB, 0, key.public_key))
    chunks = [sign_chunk(key, opening, index, part) for index, part in enumerate(parts)]
    closing = Closing(
        num_chunks=len(parts), payload_bytes=sum(map(len, parts)), root=payload_root(parts), state_digest=bytes(32)
    )
    return opening, chunks, key.sign_closing(opening, closing)


# ---- openings and closings by themselves -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": "j" * 257},
        {"content_bytes": 201},
        {"content_bytes": -1},
        {"max_payload_bytes": 0},
        {"max_payload_bytes": payload_cap(64, 2) + 1},
        {"max_chunks": 0},
        {"max_chunks": 1026},
        {"max_chunks": MAX_CHUNKS + 1, "content_bytes": 200},
        {"base": None},
        {"base": Policy(0, 3)},
        {"base": Policy(0, 4)},
        {"base_digest": b""},
        {"base_digest": b"x" * 31},
        {"kind": PublicationKind.ANCHOR},
        {"kind": PublicationKind.ANCHOR, "base": None},
        {"kind": PublicationKind.BUNDLE},
    ],
    ids=str,
)
def test_an_opening_beyond_the_caps_or_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    check_opening(DELTA.opening, max_content_bytes=200)
    with pytest.raises(CorruptFrame):
        check_opening(replace(DELTA.opening, **wrong), max_content_bytes=200)


def test_chunks_are_no_more_than_the_content_can_need() -> None:
    big = replace(DELTA.opening, content_bytes=1 << 40, max_chunks=MAX_CHUNKS)
    check_opening(big, max_content_bytes=1 << 50)
    with pytest.raises(CorruptFrame, match="max_chunks"):
        check_opening(replace(big, max_chunks=MAX_CHUNKS + 1), max_content_bytes=1 << 50)
    with pytest.raises(CorruptFrame, match="max_chunks"):
        check_opening(replace(big, content_bytes=1 << 20), max_content_bytes=1 << 50)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_chunks": 0},
        {"num_chunks": 3},
        {"payload_bytes": 0},
        {"payload_bytes": 7},
        {"root": b""},
        {"state_digest": b""},
        {"state_digest": b"x" * 33},
        {"probe_logprobs": (0.0,) * 4097},
        {"probe_logprobs": (float("nan"),)},
        {"probe_logprobs": (-1.0, float("-inf"))},
        {"probe_logprobs": (float("inf"),)},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_closing_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    check_closing(DELTA.opening, DELTA.closing)
    with pytest.raises(CorruptFrame):
        check_closing(DELTA.opening, replace(DELTA.closing, **wrong))


def test_a_bundle_has_neither_state_nor_probe() -> None:
    bundle = SIGNER.bundle()
    for wrong in ({"state_digest": bytes(32)}, {"probe_logprobs": (-1.0,)}):
        changed: dict[str, Any] = wrong
        with pytest.raises(CorruptFrame):
            check_closing(bundle.opening, replace(bundle.closing, **changed))


def test_caps_of_what_is_attested_are_checked_too() -> None:
    made = derived(SIGNER.anchor(3))
    assert made.opening.attested is not None
    for opening, closing in (
        (replace(made.opening.attested.opening, content_bytes=1001), made.opening.attested.closing),
        (made.opening.attested.opening, replace(made.opening.attested.closing, probe_logprobs=(0.0,) * 5000)),
    ):
        attested = replace(made.opening.attested, opening=opening, closing=closing)
        with pytest.raises(CorruptFrame):
            check_opening(replace(made.opening, attested=attested), max_content_bytes=1000)


def test_a_signed_nan_is_refused_all_the_same() -> None:
    opening, chunks, closing = written([b"a"])
    signed = SIGNER.key.sign_closing(opening, replace(closing, probe_logprobs=(float("nan"),)))
    trust().check_closing(opening, signed)
    assembler = new_assembler()
    assembler.feed(opening)
    for chunk in chunks:
        assembler.feed(chunk)
    with pytest.raises(CorruptFrame, match="finite"):
        assembler.feed(signed)


# ---- one stream ------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12))
def test_what_was_signed_is_assembled(parts: list[bytes]) -> None:
    sent = signed_publication(
        SIGNER.key,
        AUTHORITY.certify(JOB, 0, SIGNER.key.public_key),
        job_id=JOB,
        kind=PublicationKind.ANCHOR,
        policy=Policy(0, 1),
        codec=CodecId.WEIGHTS,
        content_bytes=100,
        parts=parts,
        state_digest=bytes(32),
    )
    assembler = new_assembler()
    *earlier, last = [assembler.feed(record) for record in sent.records()]
    assert earlier == [None] * len(earlier)
    assert last == sent
    assert list(payload_parts(sent)) == parts
    assert sent.payload_bytes == sum(map(len, parts))


def _departures() -> Iterator[tuple[str, list[PublicationRecord]]]:
    opening, (first, second, third), closing = ANCHOR.opening, ANCHOR.chunks, ANCHOR.closing
    yield "chunk first", [first]
    yield "closing first", [closing]
    yield "chunk twice", [opening, first, first]
    yield "chunk left out", [opening, first, third]
    yield "closing early", [opening, first, second, closing]
    yield "chunk too many", [opening, first, second, third, Chunk(3, b"x", third.signature)]
    yield "chunk empty", [opening, replace(first, data=b"")]
    yield "closing twice", [opening, first, second, third, closing, closing]
    wide, chunks, end = written([b"x" * 12], max_payload_bytes=11)
    yield "payload beyond its cap", [wide, *chunks]
    many, chunks, end = written([b"x"] * 3, max_chunks=2)
    yield "chunks beyond their cap", [many, *chunks]
    large, chunks, end = written(
        [bytes(MAX_CHUNK_BYTES + 1)], max_payload_bytes=payload_cap(1 << 24, 3), content_bytes=1 << 24
    )
    yield "chunk too large", [large, *chunks]
    some, chunks, end = written([b"x", b"y"])
    yield "fewer chunks than closed with", [some, chunks[0], end]
    other = SIGNER.key.sign_closing(some, replace(end, payload_bytes=3))
    yield "other bytes than closed with", [some, *chunks, other]
    other = SIGNER.key.sign_closing(some, replace(end, root=bytes(32)))
    yield "other root", [some, *chunks, other]
    other = SIGNER.key.sign_closing(some, replace(end, state_digest=b""))
    yield "no state digest", [some, *chunks, other]
    yield "content beyond the reader's cap", [written([b"x"], content_bytes=(1 << 24) + 1)[0]]


@pytest.mark.parametrize("sent", [sent for _, sent in _departures()], ids=[what for what, _ in _departures()])
def test_a_departure_from_the_order_is_refused_and_changes_nothing(sent: list[PublicationRecord]) -> None:
    assembler = new_assembler(1 << 24)
    for record in sent[:-1]:
        assembler.feed(record)
    for _ in range(2):
        with pytest.raises(CorruptFrame):
            assembler.feed(sent[-1])


def test_after_any_refusal_the_right_record_still_completes() -> None:
    wrong: list[PublicationRecord] = [
        ANCHOR.closing,
        replace(ANCHOR.chunks[0], data=b"evil"),
        replace(ANCHOR.chunks[2], index=7),
        replace(ANCHOR.opening, content_bytes=63),
        replace(ANCHOR.opening, job_id="job-2"),
        replace(ANCHOR.closing, root=bytes(32)),
        Signer(fork=1).anchor(1).chunks[0],
    ]
    assembler = new_assembler()
    for record in list(ANCHOR.records())[:-1]:
        assembler.feed(record)
        for bad in wrong[1 if record is ANCHOR.chunks[2] else 0 :]:
            with pytest.raises((CorruptFrame, Forged)):
                assembler.feed(bad)
    assert assembler.feed(ANCHOR.closing) == ANCHOR


def test_an_opening_drops_an_unfinished_publication() -> None:
    assembler = new_assembler()
    for record in list(ANCHOR.records())[:3]:
        assembler.feed(record)
    assert [assembler.feed(record) for record in DELTA.records()][-1] == DELTA


def test_an_intake_says_what_is_coming() -> None:
    intake = StreamChecker(trust(), max_content_bytes=1000)
    assert intake.opening is None
    *head, closing = ANCHOR.records()
    for record in head:
        assert intake.take(record) is None
        assert intake.opening == ANCHOR.opening
    assert intake.take(closing) == ANCHOR.opening
    assert intake.opening is None


# ---- one job's versions ----------------------------------------------------------------------------------------------


def admitted(publication: Publication, newest: Policy | None, highest_fork: int | None = None) -> Admission:
    fork = highest_fork if highest_fork is not None else (newest.fork if newest else 0)
    newest_digest = b"" if newest is None else digest_of(newest)
    return admit(publication.opening, newest=newest, newest_digest=newest_digest, highest_fork=fork)


def test_what_continues_is_new_and_what_is_held_is_a_repeat() -> None:
    assert admitted(SIGNER.anchor(0), None) is Admission.NEW
    assert admitted(SIGNER.delta(2, 3), Policy(0, 2)) is Admission.NEW
    assert admitted(SIGNER.anchor(5), Policy(0, 2)) is Admission.NEW
    assert admitted(Signer(fork=1).anchor(1), Policy(0, 2)) is Admission.NEW
    for again in (SIGNER.delta(2, 3), SIGNER.anchor(3), derived(SIGNER.anchor(3))):
        assert admitted(again, Policy(0, 3)) is Admission.REPEAT


def test_older_versions_and_older_forks_are_fenced() -> None:
    for old in (SIGNER.delta(1, 2), SIGNER.anchor(2), SIGNER.anchor(0), derived(SIGNER.anchor(2))):
        with pytest.raises(Fenced, match="roll back"):
            admitted(old, Policy(0, 3))
    for old in (SIGNER.anchor(9), SIGNER.delta(3, 4), SIGNER.bundle(9), derived(SIGNER.anchor(9))):
        with pytest.raises(Fenced, match="fork 1 has taken over"):
            admitted(old, Policy(0, 3), highest_fork=1)
        with pytest.raises(Fenced, match="fork 2 has taken over"):
            admitted(old, None, highest_fork=2)


def test_a_delta_from_something_else_is_of_the_wrong_base() -> None:
    for newest in (None, Policy(0, 1)):
        with pytest.raises(WrongBase, match="publish an anchor"):
            admitted(DELTA, newest)
    with pytest.raises(WrongBase, match="digest"):
        admit(DELTA.opening, newest=Policy(0, 2), newest_digest=b"x" * 32, highest_fork=0)


def test_a_bundle_is_admitted_by_its_fork_alone() -> None:
    assert admitted(SIGNER.bundle(), Policy(0, 3)) is Admission.NEW
    assert admitted(Signer(fork=1).bundle(), Policy(0, 3)) is Admission.NEW


def test_a_version_has_one_content() -> None:
    check_repeat(DELTA.opening, DELTA.closing, digest_of(Policy(0, 3)))
    with pytest.raises(Fenced, match="one content"):
        check_repeat(DELTA.opening, DELTA.closing, digest_of(Policy(0, 4)))


# ---- writers ---------------------------------------------------------------------------------------------------------


def writer(**fields: Any) -> PublicationWriter:
    given_: dict[str, Any] = {
        "job_id": JOB,
        "kind": PublicationKind.ANCHOR,
        "policy": Policy(0, 1),
        "codec": CodecId.WEIGHTS,
        "max_payload_bytes": 10,
        "max_chunks": 2,
        "content_bytes": 100,
    }
    return PublicationWriter(SIGNER.key, AUTHORITY.certify(JOB, 0, SIGNER.key.public_key), **given_ | fields)


def test_a_writer_signs_each_part_as_it_comes() -> None:
    made, assembler = writer(), new_assembler()
    assert assembler.feed(made.opening) is None
    for part in (b"abc", b"defg"):
        assert assembler.feed(made.chunk(part)) is None
    done = assembler.feed(made.closing(bytes(32), probe=(-0.1,)))
    assert done is not None
    assert payload_parts(done) == (b"abc", b"defg")
    assert done.closing.probe_logprobs == (-0.10000000149011612,), "rounded as the wire does"


def test_a_writer_makes_nothing_that_readers_would_refuse() -> None:
    for wrong in ({"max_chunks": 0}, {"base": Policy(0, 0)}, {"max_payload_bytes": 1 << 30}, {"content_bytes": -1}):
        with pytest.raises(ValueError, match="refuse this opening"):
            writer(**wrong)
    for parts in ([b""], [b"x" * 11], [b"x"] * 3, [b"x" * 6] * 2):
        made = writer()
        *fitting, last = parts
        for part in fitting:
            made.chunk(part)
        with pytest.raises(ValueError, match="part"):
            made.chunk(last)
    with pytest.raises(ValueError, match="no part"):
        writer().closing(bytes(32))
    made = writer()
    made.chunk(b"x")
    for state_digest, probe in (
        (b"", ()),
        (bytes(32), (float("nan"),)),
        (bytes(32), (1e39,)),
        (bytes(32), (0.0,) * 9999),
    ):
        with pytest.raises(ValueError):
            made.closing(state_digest, probe)
    assert made.closing(bytes(32)).num_chunks == 1


def test_without_a_cap_of_its_own_a_writer_takes_what_the_format_allows() -> None:
    assert writer(max_payload_bytes=None).opening.max_payload_bytes == payload_cap(100, 2)
