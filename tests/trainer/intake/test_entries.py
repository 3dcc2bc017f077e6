"""Lines of the audit that are made of the ledger's and the intake's values."""

from dataclasses import replace

from periplus.audit.records import AdmissionVerdict, DropEntry, DroppedSample, FrameId, LostEntry, UsedSample
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose, content_digest
from tests.periplus.values.test_trajectory import GOOD
from trainer.intake.committed import kept
from trainer.intake.entries import drop_entry, lease_entry, lost_entry, result_entry, used_samples
from trainer.ledger.values import Drop, Lease, LeaseLost, Loss

KEPT = kept(Position(epoch=3, sequence=8), (GOOD, replace(GOOD, sample=4)))
LEASE = Lease(lease_id=1, group=2, sample=3, item=4, start_at=Policy(1, 5), consume_by_version=7, purpose=Purpose.TRAIN)


def test_a_lease_is_written_with_its_worker_and_region() -> None:
    line = lease_entry(LEASE, "a", "far")
    assert (line.lease_id, line.group, line.sample, line.item) == (1, 2, 3, 4)
    assert (line.start_at, line.consume_by_version, line.purpose) == (Policy(1, 5), 7, Purpose.TRAIN)
    assert (line.worker_id, line.region) == ("a", "far")


def test_a_lost_lease_is_written_with_the_reason() -> None:
    expected = LostEntry(lease_id=1, group=2, sample=3, worker_id="a", why=Loss.EXPIRED)
    assert lost_entry(LeaseLost(LEASE, "a", Loss.EXPIRED)) == expected


def test_a_result_is_written_with_the_place_of_its_content() -> None:
    line = result_entry(KEPT[1], AdmissionVerdict.REFUSED, "too_old", "far")
    assert (line.frame, line.index, line.digest) == (FrameId(3, 8), 1, content_digest(replace(GOOD, sample=4)))
    assert (line.verdict, line.why, line.region) == (AdmissionVerdict.REFUSED, "too_old", "far")
    assert (line.num_tokens, line.policies, line.stop_reason) == (3, GOOD.policies, GOOD.stop_reason)


def test_dropped_and_used_samples_are_named_by_the_digests_of_their_contents() -> None:
    dropped = drop_entry(2, Drop.OVERDUE, KEPT)
    samples = (DroppedSample(3, KEPT[0].digest, 3), DroppedSample(4, KEPT[1].digest, 3))
    assert dropped == DropEntry(group=2, why=Drop.OVERDUE, samples=samples)
    assert used_samples(KEPT) == (UsedSample(2, 3, KEPT[0].digest), UsedSample(2, 4, KEPT[1].digest))
