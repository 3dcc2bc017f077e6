"""Tests of second leases in the audit: one is explained by the lease that it names, and by nothing else."""

from pathlib import Path

import pytest

from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict
from tests.support.audit.files import audited
from tests.support.audit.run import AuditRun


@pytest.mark.parametrize("wins", ["first", "hedge", "hedge after the first was lost"])
def test_a_sample_that_was_leased_twice_is_clean_whichever_result_is_first(tmp_path: Path, wins: str) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    groups = [run.open_group(), run.open_group()]
    first = run.lease(groups[0], 0, worker="rollout-eu-0")
    hedge = run.lease(groups[0], 0, worker="rollout-eu-1", hedges=first.lease_id)
    if wins == "hedge after the first was lost":
        run.lose(first)
    winner, other = (first, hedge) if wins == "first" else (hedge, first)
    run.arrive(run.trajectory(winner))
    run.arrive(run.trajectory(other), verdict=AdmissionVerdict.DUPLICATE, why="duplicate")
    for group in groups:
        run.fill(group)
    run.consume(groups)
    run.end()
    report = audited(run.root)
    assert report.findings == ()


@pytest.mark.parametrize(("worker", "named"), [("rollout-eu-0", 1), ("rollout-eu-1", 7)])
def test_a_second_lease_at_the_same_worker_or_beside_another_lease_is_a_finding(
    tmp_path: Path, worker: str, named: int
) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    groups = [run.open_group(), run.open_group()]
    run.lease(groups[0], 0, worker="rollout-eu-0")
    run.lease(groups[0], 0, worker=worker, hedges=named)
    for group in groups:
        run.fill(group)
    run.consume(groups)
    run.end()
    assert Code.LEASE_CONTRADICTS in audited(run.root).counts
