"""The driver of the ledger, fed with values: what is written, sent, logged and counted, and what stays on disk."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.audit.records import AdmissionVerdict, DropEntry, LeaseEntry, LostEntry, ResultEntry
from periplus.errors import CorruptFrame, StateError, WireError
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import StopReason, content_digest
from tests.support.ledger.checked import TIMEOUT_S
from tests.support.ledger.drivers import FRAME_BYTES, HOME, Frames, driver_of, hello, join, leases_in, of, sampled
from tests.support.trainer.reader_proofs import proof_of
from trainer.intake import ledger_driver
from trainer.intake.committed import RefusedSample, kept
from trainer.intake.effects import EvaluationDone, EventLogged, LedgerBatch, LineWritten
from trainer.intake.messages import DepartureReceived, FailureReceived, ProofReceived
from trainer.ledger.values import Drop, Granted, LeasesStarted, Loss, Revoked, RoomOffered
from trainer.reporting.delivery import ReaderProof

CORRUPT = CorruptFrame("bad reward")


def names(effects: tuple[object, ...]) -> list[tuple[int, str]]:
    return [(effect.level, effect.name) for effect in effects if isinstance(effect, EventLogged)]


def proof(*, ok: bool) -> ReaderProof:
    return proof_of(Policy(0, 0), ok=ok)


# ---- messages --------------------------------------------------------------------------------------------------------


def test_every_line_of_a_lease_is_written_before_the_lease_is_sent() -> None:
    driver = driver_of()
    driver.on_message(hello("a", "far"), 0.0)
    effects = driver.on_message(RoomOffered("a", 2), 0.0)
    (granted,) = of(effects, Granted)
    lines = of(effects, LeaseEntry)
    assert [line.lease_id for line in lines] == [lease.lease_id for lease in granted.leases]
    assert {(line.worker_id, line.region) for line in lines} == {("a", "far")}
    last_line = max(place for place, effect in enumerate(effects) if isinstance(effect, LineWritten))
    assert last_line < effects.index(granted)


def test_a_worker_with_another_bundle_never_joins() -> None:
    driver = driver_of()
    with pytest.raises(WireError, match="another tokenizer"):
        driver.on_message(replace(hello("a"), bundle_digest=b"of another job"), 0.0)
    assert driver.regions == {}
    with pytest.raises(StateError, match="before its hello"):
        driver.on_message(RoomOffered("a", 2), 0.0)


def test_a_refused_message_is_counted_and_logged() -> None:
    driver = driver_of()
    (logged,) = driver.refuse_message("a", CORRUPT)
    assert logged == EventLogged(logging.ERROR, "message_refused", {"worker": "a", "why": CORRUPT})
    assert driver.take_tally().refused_messages == 1
    assert driver.take_tally().refused_messages == 0, "taken once"


def test_the_region_of_a_worker_outlives_it_and_the_longest_known_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_driver, "WORKERS_KNOWN", 2)
    driver = driver_of()
    for worker_id in ("a", "b", "a", "c"):
        driver.on_message(hello(worker_id, f"of {worker_id}"), 0.0)
        driver.on_message(DepartureReceived(worker_id=worker_id, why="it left"), 0.0)
    assert driver.regions == {"a": "of a", "c": "of c"}


def test_a_proof_tells_the_ledger_which_weights_a_worker_has_and_a_failed_one_does_not() -> None:
    driver = driver_of()
    driver.on_message(hello("a"), 0.0)
    driver.on_message(ProofReceived("a", proof(ok=False)), 0.0)
    assert driver.ledger.state.workers["a"].policy is None
    driver.on_message(ProofReceived("a", proof(ok=True)), 0.0)
    assert driver.ledger.state.workers["a"].policy == Policy(0, 0)


@pytest.mark.parametrize(("connection_lost", "why"), [(False, Loss.WORKER_DIED), (True, Loss.WORKER_GONE)])
def test_a_started_sample_of_a_worker_that_died_is_lost_otherwise_than_of_one_that_is_out_of_reach(
    connection_lost: bool, why: Loss
) -> None:
    driver = driver_of()
    leases = join(driver, "a", 2)
    driver.on_message(LeasesStarted("a", tuple(lease.lease_id for lease in leases), Policy(0, 0)), 0.0)
    effects = driver.on_message(
        DepartureReceived(worker_id="a", why="reset by peer", connection_lost=connection_lost), 1.0
    )
    assert names(effects) == [(logging.WARNING, "worker_gone")]
    assert {entry.why for entry in of(effects, LostEntry)} == {why}
    assert driver.take_tally().lost == 2


def test_a_sample_that_a_worker_cannot_produce_is_lost_only_if_it_holds_that_lease() -> None:
    driver = driver_of(max_attempts=2)
    lease, _ = join(driver, "a", 2)
    failure = FailureReceived(
        worker_id="a", lease_id=lease.lease_id, group=lease.group, sample=lease.sample, why="KeyError"
    )
    of_another_fork = driver.on_message(replace(failure, group=lease.group + 7), 1.0)
    assert of(of_another_fork, LostEntry) == []
    effects = driver.on_message(failure, 1.0)
    assert [entry.why for entry in of(effects, LostEntry)] == [Loss.FAILED]
    assert [again.sample for again in leases_in(effects)] == [lease.sample], "it is leased again"


# ---- frames ----------------------------------------------------------------------------------------------------------


def test_accepted_samples_become_the_batch_that_is_wanted() -> None:
    driver, frames = driver_of(), Frames()
    first, second = join(driver, "a", 2)[:2]
    assert of(driver.want_batch(0.0), LedgerBatch) == []
    one, other = frames.commit(sampled(second)), frames.commit(sampled(first))
    effects = driver.on_frame(one, 1.0)
    (line,) = of(effects, ResultEntry)
    assert (line.verdict, line.why, line.region) == (AdmissionVerdict.ACCEPTED, "", HOME)
    assert (line.digest, line.frame, line.index) == (content_digest(sampled(second)), (1, 0), 0)
    (batch,) = of(driver.on_frame(other, 1.0), LedgerBatch)
    assert batch == LedgerBatch(Policy(0, 0), (*other.kept, *one.kept)), "in the order of samples"


def test_a_second_result_of_a_sample_is_written_logged_and_counted_as_a_duplicate() -> None:
    driver, frames = driver_of(), Frames()
    lease, _ = join(driver, "a", 2)
    driver.on_frame(frames.commit(sampled(lease)), 1.0)
    effects = driver.on_frame(frames.commit(sampled(lease)), 1.0)
    assert [line.verdict for line in of(effects, ResultEntry)] == [AdmissionVerdict.DUPLICATE]
    assert names(effects) == [(logging.WARNING, "result_refused")]
    tally = driver.take_tally()
    assert (tally.duplicates, tally.refused) == (1, 0)


def test_a_result_that_was_not_leased_is_refused_with_the_reason() -> None:
    driver, frames = driver_of(), Frames()
    lease, _ = join(driver, "a", 2)
    effects = driver.on_frame(frames.commit(sampled(lease, item=lease.item + 1)), 1.0)
    assert [(line.verdict, line.why) for line in of(effects, ResultEntry)] == [(AdmissionVerdict.REFUSED, "unfit")]
    assert driver.take_tally().refused == 1


def test_a_sample_that_was_refused_before_ends_its_lease() -> None:
    driver, frames = driver_of(), Frames()
    lease, _ = join(driver, "a", 2)
    refused = RefusedSample(lease_id=lease.lease_id, group=lease.group, sample=lease.sample, why=CORRUPT)
    effects = driver.on_frame(frames.commit(refusal=CORRUPT, refused=(refused,)), 1.0)
    assert names(effects) == [(logging.ERROR, "frame_refused"), (logging.ERROR, "sample_refused")]
    assert [entry.why for entry in of(effects, LostEntry)] == [Loss.REFUSED]
    tally = driver.take_tally()
    assert (tally.refused_messages, tally.refused, tally.frames_bytes) == (1, 1, 0)


def test_an_abandoned_sample_is_written_and_leased_again() -> None:
    driver, frames = driver_of(), Frames()
    lease, _ = join(driver, "a", 2)
    effects = driver.on_frame(frames.commit(sampled(lease, stop_reason=StopReason.ABANDONED)), 1.0)
    assert [line.verdict for line in of(effects, ResultEntry)] == [AdmissionVerdict.ABANDONED]
    assert [entry.why for entry in of(effects, LostEntry)] == [Loss.FAILED]
    assert [again.sample for again in leases_in(effects)] == [lease.sample]


def test_only_frames_of_other_regions_count_as_bytes_between_regions() -> None:
    driver, frames = driver_of(group_size=3), Frames()
    near, far = join(driver, "a", 1), join(driver, "b", 2, "far")
    driver.on_frame(frames.commit(sampled(near[0])), 1.0)
    assert driver.take_remote_bytes().num_bytes == 0
    driver.on_frame(frames.commit(sampled(far[0], "b"), worker_id="b", region="far"), 1.0)
    driver.on_frame(frames.commit(sampled(far[1], "b"), worker_id="b", region=""), 1.0)
    remote = driver.take_remote_bytes()
    assert remote.num_bytes == 2 * FRAME_BYTES, "a frame without its spool's region counts by its worker's"
    assert remote.json_bytes > 0
    assert driver.take_tally().frames_bytes == 3 * FRAME_BYTES


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_that_is_given_up_is_written_with_the_samples_that_had_come_in() -> None:
    driver, frames = driver_of(max_attempts=1), Frames()
    first, second = join(driver, "a", 2)
    driver.on_frame(frames.commit(sampled(first)), 1.0)
    failure = FailureReceived(
        worker_id="a", lease_id=second.lease_id, group=second.group, sample=second.sample, why="KeyError"
    )
    (entry,) = of(driver.on_message(failure, 1.0), DropEntry)
    assert (entry.group, entry.why) == (first.group, Drop.FAILED)
    assert [(sample.sample, sample.digest) for sample in entry.samples] == [
        (first.sample, content_digest(sampled(first)))
    ]
    tally = driver.take_tally()
    assert (tally.dropped, tally.failed_groups, tally.filtered) == (1, 1, 0)


def test_a_group_of_equal_rewards_is_counted_as_filtered_and_not_as_dropped() -> None:
    driver, frames = driver_of(filter_uniform=True), Frames()
    leases = join(driver, "a", 2)[:2]
    effects = driver.on_frame(frames.commit(*map(sampled, leases)), 1.0)
    assert [entry.why for entry in of(effects, DropEntry)] == [Drop.FILTERED]
    assert names(effects) == []
    tally = driver.take_tally()
    assert (tally.filtered, tally.dropped) == (2, 0)


def test_a_lease_that_expires_is_revoked_when_the_driver_is_told_the_time() -> None:
    driver = driver_of()
    lease, *_ = join(driver, "a", 2)
    assert driver.tick(TIMEOUT_S - 1) == ()
    effects = driver.tick(TIMEOUT_S + 1)
    assert lease.lease_id in {number for revoked in of(effects, Revoked) for number in revoked.lease_ids}
    assert {entry.why for entry in of(effects, LostEntry)} == {Loss.EXPIRED}


def test_an_evaluation_comes_back_in_the_order_of_its_items() -> None:
    driver, frames = driver_of(), Frames()
    join(driver, "a", 4)
    leases = sorted(leases_in(driver.want_evaluation((7, 5), 0.0)), key=lambda lease: lease.item)
    assert [lease.item for lease in leases] == [5, 7]
    assert of(driver.on_frame(frames.commit(sampled(leases[0])), 1.0), EvaluationDone) == []
    (done,) = of(driver.on_frame(frames.commit(sampled(leases[1])), 1.0), EvaluationDone)
    assert [each.trajectory.item for each in done.kept] == [7, 5]


# ---- what stays on disk ----------------------------------------------------------------------------------------------


def test_frames_of_a_consumed_batch_may_go_once_a_checkpoint_covers_them() -> None:
    driver, frames = driver_of(steps=99), Frames()
    for version in range(7):
        policy = Policy(0, version)
        leases = join(driver, f"w{version}", 2)[:2]
        driver.want_batch(0.0)
        committed = [frames.commit(sampled(x, f"w{version}", policy), worker_id=f"w{version}") for x in leases]
        effects = [effect for frame in committed for effect in driver.on_frame(frame, 1.0)]
        (batch,) = of(tuple(effects), LedgerBatch)
        driver.on_message(DepartureReceived(worker_id=f"w{version}", why="done"), 1.0)
        driver.step_done(batch, 2.0)
    assert driver.kept_bytes == 14 * FRAME_BYTES
    assert driver.give_up_frames(covered_version=0) is None, "no checkpoint covers any"
    assert driver.give_up_frames(covered_version=7) == Position(1, 4), "ten frames have room"


def test_what_an_earlier_fork_kept_is_accepted_again_and_what_is_not_wanted_is_settled() -> None:
    lease, *_ = join(driver_of(), "a", 2)
    of_group = sampled(lease)
    far_ahead = replace(of_group, group=9_999)
    driver = driver_of()
    frame = kept(Position(0, 5), (of_group, far_ahead))
    effects = driver.replay([(Position(0, 5), FRAME_BYTES, frame)], 0.0)
    assert [(line.verdict, line.group) for line in of(effects, ResultEntry)] == [
        (AdmissionVerdict.ACCEPTED, lease.group)
    ]
    assert driver.kept_bytes == FRAME_BYTES
    assert driver.replay([], 0.0) == ()


HOW: dict[str, dict[str, Any]] = {"good": {}, "unfit": {"item": 0}, "abandoned": {"stop_reason": StopReason.ABANDONED}}


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(sorted(HOW))), min_size=1, max_size=12))
def test_a_frame_stays_only_for_a_sample_that_was_accepted_and_not_consumed(sent: list[tuple[int, str]]) -> None:
    """Each frame has one sample. `Retention.settle` asserts besides that no sample is settled twice."""
    driver, frames = driver_of(kept_bytes=0, max_attempts=99), Frames()
    leases = join(driver, "a", 2)[:2]
    accepted = []
    for place, (sample, how) in enumerate(sent):
        effects = driver.on_frame(frames.commit(sampled(leases[sample], **HOW[how])), 1.0)
        if AdmissionVerdict.ACCEPTED in [line.verdict for line in of(effects, ResultEntry)]:
            accepted.append(place)
    first = accepted[0] if accepted else len(sent) - 1  # the newest frame always stays
    assert driver.give_up_frames(covered_version=99) == (Position(1, first) if first else None)
