"""Each rule of a publication log by itself: what readers get, what is refused, what is kept."""

from contextlib import suppress
from dataclasses import replace

import pytest

from periplus.errors import CorruptFrame, Fenced, Forged, PeriplusError, WrongBase
from periplus.publication import (
    Closing,
    Derive,
    NeedsAnchor,
    Publication,
    PublicationLog,
    PublicationRecord,
    Send,
    Wait,
    payload_root,
)
from periplus.publication import log as log_module
from periplus.values.policy import Policy
from tests.support.publication.log import ONE, ZERO, deltas, feed, log_of, new_log, read, reader_of, records
from tests.support.publication.signed import Signer, derived, digest_of, sign_chunk

# ---- what readers get ------------------------------------------------------------------------------------------------


def test_a_newcomer_may_get_the_bundle_the_anchor_and_the_chain_after_it() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2), ZERO.delta(2, 4))
    assert read(log, has_bundle=False) == ["bundle 0.0", "anchor 0.0", "delta 0.1", "delta 0.2", "delta 0.4"]
    assert log.next(log.open(None, True)) == Derive(None, chain_bytes=28)


def test_a_newcomer_is_just_sent_an_anchor_of_the_newest_version() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0))
    assert isinstance(log.next(log.open(None, True)), Send)
    assert read(log) == ["anchor 0.0"]


def test_a_reader_on_the_chain_gets_only_later_deltas() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    assert read(log, Policy(0, 1)) == ["delta 0.2"]
    assert read(log, Policy(0, 2)) == []
    assert read(log, Policy(0, 2), has_bundle=False) == ["bundle 0.0"]


def test_a_reader_that_is_one_version_late_is_just_sent_it_and_one_further_behind_may_choose() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 3))
    assert isinstance(log.next(log.open(Policy(0, 2), True)), Send)
    assert log.next(log.open(Policy(0, 1), True)) == Derive(Policy(0, 1), chain_bytes=12)


def test_the_choice_of_the_signed_way_holds_until_the_newest_and_no_longer() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 3))
    reader = reader_of(log, Policy(0, 0), True)
    assert reader.follow(log) == ["delta 0.1", "delta 0.2", "delta 0.3"]
    feed(log, *deltas(3, 5))
    assert log.next(reader.cursor) == Derive(Policy(0, 3), chain_bytes=12)


def test_after_something_derived_the_reader_goes_on_from_there() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 4))
    cursor = log.after(log.open(Policy(0, 0), True), Policy(0, 3))
    outcome = log.next(cursor)
    assert isinstance(outcome, Send)
    assert outcome.record == ZERO.delta(3, 4).opening


def test_what_a_reader_has_that_leads_nowhere_is_left_to_the_gateways_copy() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(3), *deltas(3, 5))
    assert log.next(log.open(Policy(0, 1), True)) == Derive(Policy(0, 1), chain_bytes=22)
    log.drop_before(Policy(0, 4))
    assert log.next(log.open(Policy(0, 1), True)) == Derive(Policy(0, 1), chain_bytes=None)
    assert log.next(log.open(None, True)) == Derive(None, chain_bytes=None)


def test_a_reader_that_takes_only_what_is_signed_needs_an_anchor_where_the_chain_does_not_reach() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 4))
    assert read(log, distrust=True) == ["anchor 0.0", *(f"delta 0.{v}" for v in (1, 2, 3, 4))]
    log.drop_before(Policy(0, 2))
    assert log.next(log.open(None, True, distrust=True)) == NeedsAnchor()
    assert log.next(log.open(Policy(0, 1), True, distrust=True)) == NeedsAnchor()
    assert read(log, Policy(0, 2), distrust=True) == ["delta 0.3", "delta 0.4"]


def test_a_distrusting_reader_gets_the_anchor_while_it_comes_and_others_do_not_see_it() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 4))
    log.drop_before(Policy(0, 4))
    waiting, normal = log.open(None, True, distrust=True), log.open(Policy(0, 4), True)
    for record in records(ZERO.anchor(4)):
        log.append(record)
        outcome = log.next(waiting)
        assert isinstance(outcome, Send)
        assert outcome.record == record
        waiting = outcome.cursor
        assert log.next(normal) == Wait()
    assert waiting.have == Policy(0, 4)
    assert waiting.distrust


def test_a_relay_that_was_asked_for_an_anchor_gets_one_that_is_not_older_than_what_it_has() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    cursor = log.open(Policy(0, 2), True, distrust=True, wants_anchor=True)
    assert log.next(cursor) == NeedsAnchor()
    feed(log, ZERO.anchor(2), ZERO.delta(2, 3))
    relay = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    relay.drop_before(Policy(0, 1))
    while isinstance(outcome := log.next(cursor), Send):
        relay.append(outcome.record)
        cursor = outcome.cursor
    assert outcome == Wait()
    assert not cursor.distrust, "it has what it wanted"
    assert read(relay, distrust=True) == ["anchor 0.2", "delta 0.3"]


def test_an_anchor_is_skipped_by_who_has_its_version() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 1))
    reader = reader_of(log)
    reader.follow(log)
    feed(log, ZERO.anchor(1), ZERO.delta(1, 2))
    assert reader.follow(log)[-2:] == ["delta 0.1", "delta 0.2"]
    assert read(log, Policy(0, 0)) == ["delta 0.1", "delta 0.2"], "the chain to it is kept"


def test_an_anchor_that_skips_versions_starts_a_new_chain_and_reaches_followers_while_it_comes() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 1))
    follower = reader_of(log, Policy(0, 1), True)
    for record in records(ZERO.anchor(5)):
        log.append(record)
        assert follower.step(log)
    assert follower.applied == ["anchor 0.5"]
    assert log.next(log.open(Policy(0, 0), True)) == Derive(Policy(0, 0), chain_bytes=10)


def test_records_are_passed_on_before_their_publication_is_complete() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0))
    cursor = log.open(Policy(0, 0), True)
    for record in records(ZERO.delta(0, 1)):
        assert log.next(cursor) == Wait()
        log.append(record)
        outcome = log.next(cursor)
        assert isinstance(outcome, Send)
        assert outcome.record == record
        cursor = outcome.cursor
    assert cursor == log.open(Policy(0, 1), True)


def test_nothing_is_sent_before_the_bundle() -> None:
    assert new_log().next(new_log().open(None, False)) == Wait()
    log = log_of(ZERO.anchor(0))
    assert log.next(log.open(None, False)) == Wait()


def test_an_empty_log_waits() -> None:
    log = new_log()
    for cursor in (log.open(None, True), log.open(Policy(3, 3), True), log.open(None, True, distrust=True)):
        assert log.next(cursor) == Wait()
    assert log.next(log.open(Policy(3, 3), True, distrust=True, wants_anchor=True)) == Wait()
    assert (log.newest, log.newest_digest, log.has_bundle, log.highest_fork) == (None, b"", False, 0)


def test_a_reader_that_is_ahead_waits_and_is_never_sent_back() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    for have in (Policy(0, 7), Policy(2, 0)):
        for distrust in (False, True):
            assert log.next(log.open(have, True, distrust=distrust)) == Wait()


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(log: PublicationLog, publication: Publication, error: type[PeriplusError], match: str = ".") -> None:
    """Feed a publication, which is refused at its opening or closing and leaves the log as it was."""
    before = (log.newest, log.newest_digest, log.highest_fork, log.kept_bytes, read(log, distrust=True))
    with pytest.raises(error, match=match):
        feed(log, publication)
    assert (log.newest, log.newest_digest, log.highest_fork, log.kept_bytes, read(log, distrust=True)) == before


def full_log() -> PublicationLog:
    return log_of(ZERO.bundle(1), ZERO.anchor(1), *deltas(1, 4))


def test_a_delta_that_does_not_continue_is_refused() -> None:
    refused(full_log(), ZERO.delta(5, 6), WrongBase, r"delta 0\.6 .* is from 0\.5 .*here is 0\.4; publish an anchor")
    refused(new_log(), ZERO.delta(5, 6), WrongBase, "here is nothing")


def test_what_was_rolled_back_is_refused() -> None:
    refused(full_log(), ZERO.anchor(0), Fenced, "roll back")
    refused(full_log(), ZERO.delta(0, 1), Fenced, "roll back")
    refused(full_log(), ZERO.bundle(0), Fenced, "roll back")


def test_another_content_for_a_version_that_is_held_is_refused() -> None:
    refused(full_log(), ZERO.delta(2, 4), Fenced, "one content")
    refused(full_log(), ZERO.delta(3, 4, num_bytes=9), Fenced, "one content")
    refused(full_log(), ZERO.bundle(1, payload=b"another"), Fenced, "roll back")


def test_the_same_opening_with_another_payload_or_state_is_refused_at_its_closing() -> None:
    held = ZERO.delta(3, 4)
    evil = [sign_chunk(ZERO.key, held.opening, chunk.index, chunk.data.upper()) for chunk in held.chunks]
    other = held.closing
    for changes in ({"root": payload_root([chunk.data for chunk in evil])}, {"state_digest": digest_of(Policy(9, 9))}):
        chunks = tuple(evil) if "root" in changes else held.chunks
        closing = ZERO.key.sign_closing(held.opening, replace(other, **changes))  # type: ignore[arg-type]
        refused(full_log(), Publication(opening=held.opening, chunks=chunks, closing=closing), Fenced, "one content")


def test_an_anchor_with_another_state_for_a_known_version_is_refused_and_never_closed_downstream() -> None:
    log = full_log()
    genuine = ZERO.anchor(4)
    closing = ZERO.key.sign_closing(genuine.opening, replace(genuine.closing, state_digest=bytes(32)))
    cursor = log.open(None, True, distrust=True)
    log.drop_before(Policy(0, 4))
    sent: list[PublicationRecord] = []
    for record in [*list(genuine.records())[:-1], closing]:
        with suppress(Fenced):
            log.append(record)
        if isinstance(outcome := log.next(cursor), Send):
            sent.append(outcome.record)
            cursor = outcome.cursor
    assert len(sent) == 4
    assert not any(isinstance(record, Closing) for record in sent)
    assert log.append(genuine.closing) is not None, "the right closing still completes"


def test_a_higher_fork_fences_the_lower_ones_from_its_opening_on() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    log.append(ONE.anchor(1).opening)
    assert log.highest_fork == 1
    for old in (ZERO.delta(2, 3), ZERO.anchor(9), ZERO.bundle(9), ZERO.delta(1, 2)):
        with pytest.raises(Fenced, match="stop publishing"):
            log.append(old.opening)


def test_once_a_higher_fork_has_shown_itself_no_state_of_a_lower_one_is_begun() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    begun = reader_of(log, Policy(0, 1), True)
    begun.step(log)
    feed(log, ONE.bundle(1))
    assert begun.follow(log) == ["delta 0.2"], "its end is"
    for have in (None, Policy(0, 0), Policy(0, 1)):
        for distrust in (False, True):
            assert log.next(log.open(have, True, distrust=distrust)) == Wait()
    newcomer = reader_of(log)
    assert newcomer.follow(log) == ["bundle 1.1"]
    feed(log, ONE.anchor(1))
    assert newcomer.follow(log) == ["bundle 1.1", "anchor 1.1"]
    assert begun.follow(log) == ["delta 0.2", "anchor 1.1"]


def test_a_forged_opening_of_a_higher_fork_fences_nobody() -> None:
    log = full_log()
    forged = replace(ZERO.anchor(1).opening, policy=Policy(9, 1))
    with pytest.raises(Forged):
        log.append(forged)
    assert log.highest_fork == 0
    feed(log, ZERO.delta(4, 5))


def test_publications_of_other_jobs_and_derived_ones_do_not_enter() -> None:
    refused(full_log(), Signer(job_id="job-2").anchor(9), Forged)
    refused(full_log(), derived(ZERO.anchor(9)), CorruptFrame, "asked for it alone")
    refused(full_log(), derived(ZERO.anchor(9), Policy(0, 4)), CorruptFrame, "asked for it alone")


def test_a_refusal_in_the_middle_of_a_publication_leaves_it_to_be_completed() -> None:
    log = full_log()
    *head, closing = records(ZERO.delta(4, 5))
    for record in head:
        log.append(record)
        for bad in (
            ZERO.anchor(0).opening,
            ZERO.delta(8, 9).opening,
            ONE.delta(4, 5).chunks[0],
            ZERO.anchor(5).closing,
        ):
            with pytest.raises(PeriplusError):
                log.append(bad)
    done = log.append(closing)
    assert done == ZERO.delta(4, 5)


# ---- repeats ---------------------------------------------------------------------------------------------------------


def test_an_identical_repeat_is_checked_and_changes_nothing() -> None:
    sent = [ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2)]
    log = new_log()
    assert feed(log, *sent) == sent
    expected = read(log, has_bundle=False)
    assert feed(log, sent[0], *sent[2:], sent[-1]) == []
    assert read(log, has_bundle=False) == expected
    *head, closing = records(sent[-1])
    for record in head[:-1]:
        log.append(record)
    with pytest.raises(CorruptFrame):
        log.append(closing)
    with pytest.raises(Forged):
        log.append(replace(sent[-1].chunks[-1], data=b"x"))


def test_a_repeat_of_what_has_left_the_memory_is_a_no_op_too() -> None:
    log = full_log()
    log.drop_before(Policy(0, 4))
    assert feed(log, *deltas(1, 4)) == []
    assert log.kept_bytes == 0
    assert log.newest == Policy(0, 4)


def test_an_anchor_of_the_newest_version_is_kept_and_handed_out_and_an_older_known_one_only_if_it_leads_on() -> None:
    log = full_log()
    assert feed(log, ZERO.anchor(4)) == [ZERO.anchor(4)], "a copy can be repaired from it"
    assert feed(log, ZERO.anchor(4)) == [ZERO.anchor(4)], "and again"
    assert log.kept_bytes == 3 * 6 + 10
    log = full_log()
    log.drop_before(Policy(0, 2))
    assert feed(log, ZERO.anchor(3)) == []
    assert read(log, distrust=True) == ["anchor 0.3", "delta 0.4"]
    log.drop_before(Policy(0, 4))
    assert feed(log, ZERO.anchor(3)) == []
    assert log.next(log.open(None, True, distrust=True)) == NeedsAnchor()
    assert log.newest == Policy(0, 4)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "NUM_REMEMBERED", 16)
    log = new_log(max_bytes=30)
    feed(log, ZERO.anchor(0), *deltas(0, 30))
    assert len(log._digests) == len(log._roots) == 16
    assert log.kept_bytes <= 30
    assert log.newest_digest == digest_of(Policy(0, 30))
    refused(log, ZERO.delta(3, 4), Fenced, "roll back")


def test_the_bundle_may_be_repeated_however_many_versions_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "NUM_REMEMBERED", 4)
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 30))
    feed(log, ZERO.bundle(), ZERO.anchor(30), *deltas(30, 31))
    assert read(log, Policy(0, 30), has_bundle=False) == ["bundle 0.0", "delta 0.31"]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_beyond_the_room_the_anchor_goes_first_and_then_the_oldest_deltas() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2), max_bytes=24)
    assert log.next(log.open(None, True)) == Derive(None, chain_bytes=22)
    feed(log, *deltas(2, 3))
    assert log.next(log.open(None, True)) == Derive(None, chain_bytes=None)
    assert log.next(log.open(Policy(0, 0), True)) == Derive(Policy(0, 0), chain_bytes=18)
    feed(log, *deltas(3, 10))
    assert log.kept_bytes == 24
    assert read(log, Policy(0, 6)) == [f"delta 0.{v}" for v in (7, 8, 9, 10)]
    assert log.next(log.open(Policy(0, 5), True)) == Derive(Policy(0, 5), chain_bytes=None)


def test_the_newest_delta_is_kept_whatever_its_size_and_an_anchor_larger_than_the_room_passes_through() -> None:
    log = new_log(max_bytes=5)
    cursor = log.open(None, True)
    for record in records(ZERO.anchor(0)):
        log.append(record)
        outcome = log.next(cursor)
        assert isinstance(outcome, Send)
        cursor = outcome.cursor
    assert read(log, distrust=True) == ["anchor 0.0"], "who asked for it has until the next version to look"
    feed(log, ZERO.delta(0, 1))
    assert log.kept_bytes == 6
    assert read(log, Policy(0, 0)) == ["delta 0.1"]


def test_a_reader_in_the_middle_of_what_is_dropped_gets_its_end() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), ZERO.delta(0, 1))
    slow = reader_of(log, Policy(0, 0), True)
    slow.step(log)
    feed(log, *deltas(1, 6))
    log.drop_before(Policy(0, 4))
    assert slow.follow(log) == ["delta 0.1"]
    assert log.next(slow.cursor) == Derive(Policy(0, 1), chain_bytes=None)


def test_a_publisher_that_died_midway_is_forgotten() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0))
    reader = reader_of(log)
    reader.follow(log)
    for record in records(ZERO.delta(0, 1))[:2]:
        log.append(record)
        reader.step(log)
    feed(log, ZERO.delta(0, 2))
    assert reader.follow(log) == ["bundle 0.0", "anchor 0.0", "delta 0.2"]


def test_a_higher_fork_supersedes_everything() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    late, newcomer = reader_of(log, Policy(0, 1), True), reader_of(log, None, True)
    late.step(log)
    for record in records(ONE.anchor(1)):
        log.append(record)
        newcomer.step(log)
    assert newcomer.applied == ["anchor 1.1"], "it is not led to a dead fork while the new one comes"
    assert late.follow(log) == ["anchor 1.1"], "what is of a dead fork is not sent to its end"
    assert read(log, Policy(0, 2)) == ["anchor 1.1"]
    assert log.newest == Policy(1, 1)


# ---- restarts and copies ---------------------------------------------------------------------------------------------


def test_a_log_is_restored_from_what_the_disk_has() -> None:
    log = new_log()
    log.restore(ZERO.bundle(), deltas(3, 5), copy=Policy(0, 3), copy_digest=digest_of(Policy(0, 3)))
    assert (log.newest, log.has_bundle, log.highest_fork) == (Policy(0, 5), True, 0)
    assert read(log, Policy(0, 3)) == ["delta 0.4", "delta 0.5"]
    assert log.next(log.open(None, True)) == Derive(None, chain_bytes=None)


def test_a_restored_log_follows_no_fork_below_the_highest_that_it_saw() -> None:
    log = new_log()
    log.restore(ZERO.bundle(), deltas(3, 5), copy=Policy(0, 3), copy_digest=digest_of(Policy(0, 3)), highest_fork=2)
    assert log.next(log.open(None, True)) == Wait()
    with pytest.raises(Fenced):
        log.append(ONE.anchor(6).opening)
    feed(log, Signer(fork=2).anchor(6))


def test_a_log_is_restored_from_a_copy_or_a_chain_alone_or_from_nothing() -> None:
    log = new_log()
    log.restore(None, [], copy=Policy(0, 3), copy_digest=digest_of(Policy(0, 3)))
    assert feed(log, ZERO.delta(3, 4)) == [ZERO.delta(3, 4)]
    log = new_log()
    log.restore(None, [], copy=Policy(3, 3), copy_digest=digest_of(Policy(3, 3)))
    assert log.highest_fork == 3
    log = new_log()
    log.restore(None, [ZERO.anchor(1), ZERO.delta(1, 2)])
    assert log.newest == Policy(0, 2)
    log = new_log()
    log.restore(None, [])
    assert log.newest is None


def test_a_disk_that_was_changed_is_noticed() -> None:
    good = ZERO.delta(3, 4)
    for bad, copy, error in (
        (replace(good, chunks=(replace(good.chunks[0], data=b"evil"), *good.chunks[1:])), Policy(0, 3), Forged),
        (replace(good, chunks=good.chunks[:1]), Policy(0, 3), CorruptFrame),
        (good, Policy(0, 2), WrongBase),
        (good, Policy(0, 9), Fenced),
        (Signer(job_id="job-2").delta(3, 4), Policy(0, 3), Forged),
    ):
        with pytest.raises(error):
            new_log().restore(None, [bad], copy=copy, copy_digest=digest_of(copy))


def test_after_a_derived_publication_the_chain_goes_on_from_where_it_led() -> None:
    log = log_of(ZERO.bundle(), ZERO.anchor(0), *deltas(0, 2))
    behind, cursor = reader_of(log, Policy(0, 1), True), log.open(Policy(0, 2), True)
    for record in records(ZERO.delta(2, 3))[:2]:
        log.append(record)
    log.rebase(Policy(0, 7), digest_of(Policy(0, 7)))
    assert log.newest == Policy(0, 7)
    assert log.next(cursor) == Derive(Policy(0, 2), chain_bytes=None)
    assert log.next(behind.cursor) == Derive(Policy(0, 1), chain_bytes=None)
    with pytest.raises(WrongBase):
        log.append(ZERO.delta(8, 9).opening)
    with pytest.raises(CorruptFrame, match="before its opening"):
        log.append(ZERO.delta(2, 3).chunks[1])
    feed(log, ZERO.delta(7, 8))
    assert read(log, Policy(0, 7)) == ["delta 0.8"]


def test_a_rebase_goes_only_forward_and_believes_one_content_a_version() -> None:
    log = full_log()
    log.rebase(Policy(0, 3), digest_of(Policy(0, 3)))
    assert log.newest == Policy(0, 4)
    with pytest.raises(Fenced, match="known as"):
        log.rebase(Policy(0, 3), bytes(32))
    log.rebase(Policy(2, 4), digest_of(Policy(2, 4)))
    assert (log.newest, log.highest_fork) == (Policy(2, 4), 2)
    with pytest.raises(Fenced, match="fork 2"):
        log.rebase(Policy(1, 9), digest_of(Policy(1, 9)))


def test_a_rebase_drops_a_delta_that_is_coming_from_where_the_copy_was() -> None:
    log = full_log()
    log.append(ZERO.delta(4, 9).opening)
    log.rebase(Policy(0, 7), digest_of(Policy(0, 7)))
    with pytest.raises(CorruptFrame, match="before its opening"):
        log.append(ZERO.delta(4, 9).chunks[0])
    assert log.next(log.open(Policy(0, 7), True)) == Wait()


def test_a_rebase_leaves_a_newer_anchor_that_is_coming() -> None:
    log = full_log()
    *head, closing = records(ZERO.anchor(9))
    for record in head:
        log.append(record)
    log.rebase(Policy(0, 7), digest_of(Policy(0, 7)))
    assert log.append(closing) == ZERO.anchor(9)
    assert log.newest == Policy(0, 9)
