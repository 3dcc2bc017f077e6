"""One subscription's records against the host copy: what is proven, what is refused, and what a loss leaves behind."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from periplus.errors import CorruptFrame, Fenced, Forged, PeriplusError, UnknownCodec, WireError, WrongBase
from periplus.publication import Chunk, Publication, PublicationRecord
from periplus.values.policy import Policy
from periplus.values.weight_state import content_bytes
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.incoming import Incoming, Outcome, ReceivedBundle, UnreadableRecord, WeightMismatch, kind_of
from rollout_worker.weights.pending_versions import Version
from tests.support.versions import Versions, flipped, small_states

V = Versions(small_states(4))
NEXT_FORK = Versions(small_states(3, seed=1), fork=1, first=2)


def incoming(host: HostCopy, *, highest_fork: int = 0, distrust: bool = False) -> Incoming:
    return Incoming(V.trust, host, highest_fork=highest_fork, distrust=distrust, max_content_bytes=1 << 24)


def records(publications: Iterable[Publication]) -> list[PublicationRecord]:
    return [record for each in publications for record in each.records()]


def at(index: int) -> HostCopy:
    """A host copy that has proven this version."""
    host = HostCopy()
    reading = incoming(host)
    for record in V.anchor(index).records():
        reading.take(record)
    assert host.policy == V.policy(index)
    return host


def take_all(reading: Incoming, some: Iterable[PublicationRecord]) -> list[Outcome]:
    """What the records completed."""
    return [found for record in some if (found := reading.take(record)) is not None]


def outcomes(host: HostCopy, *publications: Publication, distrust: bool = False) -> list[Outcome]:
    return take_all(incoming(host, distrust=distrust), records(publications))


def test_an_anchor_and_a_chain_are_proven_one_by_one() -> None:
    host = HostCopy()
    found = outcomes(host, V.bundle(), V.anchor(0), *V.chain(0, 3))
    assert isinstance(found[0], ReceivedBundle)
    assert b"".join(found[0].parts) == b"bundle"
    versions = [each for each in found if isinstance(each, Version)]
    assert [version.signed.policy for version in versions] == [V.policy(index) for index in range(4)]
    assert [version.signed.state_digest for version in versions] == [V.digest(index) for index in range(4)]
    assert [version.recovers for version in versions] == [True, False, False, False]
    assert host.state == V.states[3]


@pytest.mark.parametrize("kept", [True, False])
def test_a_reader_that_is_dropped_at_any_record_ends_with_the_digest(kept: bool) -> None:
    """`kept`: its connection broke; else the process died, and begins with nothing."""
    everything = [V.anchor(0), *V.chain(0, 3)]
    for lost_after in range(len(records(everything))):
        host = HostCopy()
        reading = incoming(host)
        for record in records(everything)[:lost_after]:
            reading.take(record)
        if not kept:
            host = HostCopy()
        have = -1 if host.policy is None else host.policy.version
        again = everything if have < 0 else V.chain(have, 3)
        assert outcomes(host, *again) or have == 3
        assert (host.policy, host.state_digest) == (V.policy(3), V.digest(3))


def test_the_copy_does_not_move_before_the_closing() -> None:
    host = at(0)
    reading = incoming(host)
    *but_closing, closing = V.delta(0, 1).records()
    for record in but_closing:
        reading.take(record)
        assert host.state == V.states[0]
        assert host.is_proven()
    reading.take(closing)
    assert host.state == V.states[1]


def test_an_unfinished_publication_is_dropped_by_the_next_opening() -> None:
    host = at(0)
    reading = incoming(host)
    for record in (*[*V.delta(0, 1).records()][:-1], *V.delta(0, 2).records()):
        found = reading.take(record)
    assert isinstance(found, Version)
    assert host.state == V.states[2]


@pytest.mark.parametrize("publication", [V.anchor(1), V.delta(0, 1), V.derived_anchor(1), V.derived_delta(0, 1)])
def test_a_repeat_of_what_is_held_is_checked_and_changes_nothing(publication: Publication) -> None:
    host = at(1)
    assert outcomes(host, publication, V.delta(1, 2)) != []
    assert host.policy == V.policy(2)
    host = at(1)
    broken = [
        replace(record, data=record.data + b"x") if isinstance(record, Chunk) else record
        for record in publication.records()
    ]
    with pytest.raises(WireError):
        take_all(incoming(host), broken)
    assert (host.policy, host.state) == (V.policy(1), V.states[1])


def test_the_same_version_with_other_weights_is_a_rollback() -> None:
    other = Versions([V.states[0], flipped(V.states[1], "norm")])
    host = at(1)
    with pytest.raises(Fenced):
        outcomes(host, other.anchor(1))
    assert host.state == V.states[1]


@pytest.mark.parametrize(
    ("publication", "refusal"),
    [
        (V.anchor(0), Fenced),
        (V.delta(2, 3), WrongBase),
        (Versions([flipped(V.states[1], "norm"), V.states[2]], first=1).delta(0, 1), WrongBase),
    ],
)
def test_what_is_older_or_starts_elsewhere_is_refused_and_the_copy_stays(
    publication: Publication, refusal: type[PeriplusError]
) -> None:
    host = at(1)
    with pytest.raises(refusal):
        outcomes(host, publication)
    assert host.is_proven()
    assert host.state == V.states[1]


def test_a_dead_fork_is_refused_also_by_a_reader_that_lost_its_copy() -> None:
    host = HostCopy()
    assert isinstance(outcomes(host, NEXT_FORK.anchor(0))[0], Version)
    host.forget()
    with pytest.raises(Fenced):
        incoming(host, highest_fork=1).take(V.anchor(3).opening)


def test_a_new_fork_is_followed_and_counts_as_a_recovery() -> None:
    host = at(3)
    (found,) = outcomes(host, NEXT_FORK.anchor(0))
    assert isinstance(found, Version)
    assert found.recovers
    assert not found.fallback
    assert host.policy == Policy(1, 2)


def test_a_changed_byte_of_a_signed_chunk_is_forged() -> None:
    host, publication = at(0), V.delta(0, 1)
    for index, chunk in enumerate(publication.chunks):
        bad = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]
        with pytest.raises(Forged):
            take_all(incoming(host), [publication.opening, *publication.chunks[:index], replace(chunk, data=bad)])
    assert host.is_proven()


@pytest.mark.parametrize("base", [0, None])
def test_what_a_gateway_made_from_a_copy_that_went_bad_is_a_mismatch_and_the_copy_is_not_trusted_any_more(
    base: int | None,
) -> None:
    host = at(0)
    bad = flipped(V.states[2], "b.weight", 17)
    made = V.derived_delta(0, 2, made=bad) if base == 0 else V._derived(2, None, bad)
    (found,) = outcomes(host, made)
    assert isinstance(found, WeightMismatch)
    assert found.policy == V.policy(2)
    assert V.digest(2).hex() in found.why
    assert host.policy is None
    (recovered,) = outcomes(host, V.anchor(2), distrust=True)
    assert isinstance(recovered, Version)
    assert recovered.recovers
    assert recovered.fallback
    assert host.state == V.states[2]


def test_a_bit_that_flipped_in_host_memory_is_found_when_it_is_hashed_again() -> None:
    host = at(1)
    assert host.is_proven()
    host.state["a.weight"].data[100] ^= 4
    assert not host.is_proven()
    assert host.policy is None


def test_a_bit_that_flipped_in_host_memory_makes_the_next_version_a_mismatch() -> None:
    host = at(0)
    host.state["a.weight"].data[100] ^= 4
    try:
        (found,) = outcomes(host, V.delta(0, 1))
    except CorruptFrame:
        return  # its contexts are of the base: it may not decode at all
    assert isinstance(found, WeightMismatch)


def test_a_derived_way_is_a_fallback_and_leads_to_the_same_weights() -> None:
    host = at(0)
    (found,) = outcomes(host, V.derived_delta(0, 3))
    assert isinstance(found, Version)
    assert found.fallback
    assert found.recovers
    assert host.state == V.states[3]


def test_staged_elements_are_the_readers_own_and_the_copys_changes_do_not_reach_them() -> None:
    host = at(0)
    (first,) = outcomes(host, V.delta(0, 1))
    assert isinstance(first, Version)
    assert first.staged is not None
    outcomes(host, V.delta(1, 2))
    arrays = {name: tensor.data.copy() for name, tensor in V.states[0].items()}
    first.staged.write_into(arrays)
    assert all(np.array_equal(arrays[name], tensor.data) for name, tensor in V.states[1].items())


def test_more_content_than_this_reader_takes_is_refused_at_the_opening() -> None:
    size = content_bytes(V.states[0])
    reading = Incoming(V.trust, HostCopy(), highest_fork=0, distrust=False, max_content_bytes=size - 1)
    with pytest.raises(CorruptFrame, match="content_bytes"):
        reading.take(V.anchor(0).opening)


def test_a_record_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    host = at(1)
    reading = incoming(host)
    record = UnreadableRecord(kind="opening", is_derived=True, why=UnknownCodec("codec 99"))
    with pytest.raises(UnknownCodec):
        reading.take(record)
    assert host.policy == V.policy(1)
    assert kind_of(record) == "opening"


def test_a_record_is_of_a_derived_publication_if_its_opening_is() -> None:
    reading = incoming(at(1))
    derived, own = list(V.derived_delta(1, 3).records()), list(V.delta(1, 2).records())
    assert reading.is_of_derived(derived[0])
    assert not reading.is_of_derived(own[0])
    reading.take(derived[0])
    assert reading.is_of_derived(derived[1])
    assert reading.is_of_derived(UnreadableRecord(kind=None, is_derived=False, why=UnknownCodec("codec 99")))
    assert not reading.is_of_derived(UnreadableRecord(kind="opening", is_derived=False, why=UnknownCodec("codec 99")))
    assert [kind_of(record) for record in own] == ["opening", *["chunk"] * (len(own) - 2), "closing"]
