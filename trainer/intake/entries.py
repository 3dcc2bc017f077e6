"""Lines of the audit about leases, results and groups, made of the values that the ledger and the intake have.

These are pure translations. When a line is written, and what waits for it, is decided elsewhere (ledger_driver.py,
write_ahead.py).
"""

from collections.abc import Sequence

from periplus.audit import records as audit
from trainer.intake.committed import KeptTrajectory
from trainer.ledger.values import Lease, LeaseLost


def lease_entry(lease: Lease, worker_id: str, region: str) -> audit.LeaseEntry:
    """Return the line of a lease that is granted to a worker in `region`, which is empty if unknown."""
    return audit.LeaseEntry(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=lease.purpose,
        worker_id=worker_id,
        region=region,
        start_at=lease.start_at,
        consume_by_version=lease.consume_by_version,
        hedges=lease.hedges,
    )


def lost_entry(lost: LeaseLost) -> audit.LostEntry:
    """Return the line of a lease that ended without a result."""
    lease = lost.lease
    return audit.LostEntry(
        lease_id=lease.lease_id, group=lease.group, sample=lease.sample, worker_id=lost.worker_id, why=lost.why
    )


def result_entry(kept: KeptTrajectory, verdict: audit.AdmissionVerdict, why: str, region: str) -> audit.ResultEntry:
    """Return the line of a sample that came in: what was decided about it, and where its content is on disk.

    `why` is empty for a sample that was accepted. `region` is the worker's, and empty if unknown.
    """
    t = kept.trajectory
    return audit.ResultEntry(
        verdict=verdict,
        why=why,
        lease_id=t.lease_id,
        group=t.group,
        sample=t.sample,
        worker_id=t.worker_id,
        region=region,
        digest=kept.digest,
        num_tokens=len(t.completion_ids),
        policies=t.policies,
        stop_reason=t.stop_reason,
        frame=audit.FrameId(kept.frame.epoch, kept.frame.sequence),
        index=kept.index,
    )


def drop_entry(group: int, why: str, kept: Sequence[KeptTrajectory]) -> audit.DropEntry:
    """Return the line of a group that is given up; `kept` are the samples of it that had come in."""
    samples = tuple(
        audit.DroppedSample(each.trajectory.sample, each.digest, len(each.trajectory.completion_ids)) for each in kept
    )
    return audit.DropEntry(group=group, why=why, samples=samples)


def used_samples(kept: Sequence[KeptTrajectory]) -> tuple[audit.UsedSample, ...]:
    """Return the names by which the audit refers to these samples: group, sample and digest of the content."""
    return tuple(audit.UsedSample(each.trajectory.group, each.trajectory.sample, each.digest) for each in kept)
