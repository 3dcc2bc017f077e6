"""Seals: what a trainer signs of its journal, and what an auditor believes who has the authority's public key."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.audit import records
from periplus.audit.auditor import Report
from periplus.audit.findings import Code
from periplus.audit.records import chain_hash, from_line, to_line
from periplus.audit.seals import Sealer
from periplus.publication import JobAuthority, PublisherKey
from periplus.values.policy import Policy
from tests.support.audit.files import audited
from tests.support.audit.forger import FORGER, Entry, Forger
from tests.support.audit.run import JOB, AuditRun, sealer_of
from tests.support.keys import AUTHORITY

KEY = AUTHORITY.public_key


def verified(run: Path) -> Report:
    return audited(run, authorities=[KEY])


def rechained(run: Path, records_: list[records.Entry]) -> None:
    """Write these records with numbers and hashes that fit."""
    chain, lines = records.START_OF_CHAIN, []
    for n, record in enumerate(records_):
        line = to_line(n, chain, 1.7e9, record)
        lines.append(line + b"\n")
        chain = chain_hash(line)
    (run / "audit.jsonl").write_bytes(b"".join(lines))


def records_of(run: Path) -> list[records.Entry]:
    return [from_line(line, "here").record for line in (run / "audit.jsonl").read_bytes().splitlines()]


def test_a_whole_run_is_signed_to_its_last_line(honest: Path) -> None:
    report = verified(honest)
    assert (report.findings, report.seals.is_verified) == ((), True)
    assert (report.seals.num_lines, report.seals.num_keys) == (report.num_lines, 3), "each fork has its own key"


def test_without_an_authority_signatures_are_present_and_not_verified(honest: Path) -> None:
    report = audited(honest)
    assert (report.is_clean, report.seals.is_verified) == (True, False)
    assert report.seals.num_seals == verified(honest).seals.num_seals > 0


def test_what_comes_after_the_last_seal_is_told_and_is_no_step(tmp_path: Path) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.step()
    run.fill(run.open_group())
    run.kill()
    report = verified(run.root)
    assert report.is_clean
    assert report.seals.num_lines == report.num_lines - 4, "two leases, two results"


@pytest.mark.parametrize("with_authority", [False, True])
def test_a_line_that_a_trainer_seals_must_have_its_seal(honest: Path, run: Path, with_authority: bool) -> None:
    """Somebody adds a step behind the last seal, or takes a seal away and hashes the rest anew."""
    authorities = [KEY] if with_authority else []
    found = records_of(honest)
    last = max(i for i, record in enumerate(found) if isinstance(record, records.PublishEntry))
    rechained(run, found[: last + 1])
    assert Code.SEAL_MISSING in audited(run, authorities=authorities).counts
    without = [record for i, record in enumerate(found) if i != last + 1]
    rechained(run, without)
    assert {Code.SEAL_MISSING, Code.SEAL_WRONG} & audited(run, authorities=authorities).counts.keys()


def test_forks_whose_seals_are_taken_away_are_found_without_any_key(run: Path) -> None:
    forger = Forger(run)
    newest = forger.indices(lambda r: isinstance(r, records.OpenEntry))[-1]
    for first in (newest, 0):
        kept = [entry for entry in forger.entries[first:] if not isinstance(entry.record, records.SealEntry)]
        forger.entries[first:] = kept
        forger.reseal()
        assert Code.SEAL_MISSING in audited(run).counts


def test_a_run_of_another_schema_is_refused_by_name(run: Path) -> None:
    path = run / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"periplus.audit/2"', b'"periplus.audit/1"'))
    found = audited(run)
    assert any("schema 'periplus.audit/1' is not periplus.audit/2" in finding.message for finding in found.findings)


def test_an_authority_of_the_forgers_own_is_not_the_operators(run: Path) -> None:
    forger = Forger(run)
    forger.rewrite_everything(lambda t: replace(t, reward=0.0))
    assert audited(run, authorities=[FORGER.public_key]).is_clean, "all of it is consistent, and signed by its own key"
    assert Code.SEAL_WRONG in verified(run).counts


def test_several_authorities_may_be_given(honest: Path) -> None:
    other = JobAuthority.generate().public_key
    assert audited(honest, authorities=[other, KEY]).is_clean
    assert Code.SEAL_WRONG in audited(honest, authorities=[other]).counts


def with_seals(run: Path, sealer_for: Callable[[int], Sealer]) -> None:
    """Sign every seal of a run anew."""
    chain, lines, sealer = records.START_OF_CHAIN, [], sealer_for(0)
    for n, record in enumerate(records_of(run)):
        if isinstance(record, records.OpenEntry):
            sealer = sealer_for(record.fork)
        line = to_line(n, chain, 1.7e9, sealer.seal(n, chain) if isinstance(record, records.SealEntry) else record)
        lines.append(line + b"\n")
        chain = chain_hash(line)
    (run / "audit.jsonl").write_bytes(b"".join(lines))


def test_a_certificate_of_another_fork_or_job_is_not_enough(run: Path) -> None:
    with_seals(run, lambda fork: sealer_of(AUTHORITY, 0))
    assert Code.SEAL_WRONG in verified(run).counts, "the key of fork 0 signs all"
    with_seals(run, lambda fork: sealer_of(AUTHORITY, fork, "another job"))
    assert Code.SEAL_WRONG in verified(run).counts
    with_seals(run, lambda fork: sealer_of(AUTHORITY, fork, JOB))
    assert not {Code.SEAL_WRONG, Code.SEAL_MISSING} & verified(run).counts.keys(), "and this is what does hold"


def test_a_seal_of_another_run_or_another_line_does_not_hold(honest: Path, run: Path, tmp_path: Path) -> None:
    other = AuditRun(root=tmp_path / "other")
    other.start()
    other.step()
    other.end()
    stolen = [record for record in records_of(other.root) if isinstance(record, records.SealEntry)]
    found = records_of(honest)
    places = [i for i, record in enumerate(found) if isinstance(record, records.SealEntry)]
    for place, seal in ((places[2], stolen[2]), (places[2], found[places[1]]), (places[1], found[places[2]])):
        rechained(run, [*found[:place], seal, *found[place + 1 :]])
        assert Code.SEAL_WRONG in audited(run).counts


def test_a_fork_has_one_key(run: Path) -> None:
    """A second certified key of a fork is none: the coordinator certifies one."""
    second = PublisherKey.from_private_bytes(b"2" * 32)
    other = Sealer(second, AUTHORITY.certify(JOB, 2, second.public_key))
    chain, lines = records.START_OF_CHAIN, []
    found = records_of(run)
    for n, record in enumerate(found):
        line = to_line(n, chain, 1.7e9, other.seal(n, chain) if n == len(found) - 1 else record)
        lines.append(line + b"\n")
        chain = chain_hash(line)
    (run / "audit.jsonl").write_bytes(b"".join(lines))
    wrong = [finding for finding in verified(run).findings if finding.code is Code.SEAL_WRONG]
    assert any("another key" in finding.message for finding in wrong)


def test_a_sealer_signs_only_with_the_key_that_was_certified() -> None:
    with pytest.raises(ValueError, match="not of this trainer's"):
        Sealer(PublisherKey.generate(), AUTHORITY.certify(JOB, 0, PublisherKey.generate().public_key))


def test_a_trainer_that_died_between_a_line_and_its_seal_is_no_fault(tmp_path: Path) -> None:
    """The seal is torn, and cut off by the next trainer, whose own seals cover the line."""
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.step()
    run.checkpoint()
    run.kill()
    path = run.root / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    assert audited(run.root).is_clean
    assert Code.SEAL_MISSING in verified(run.root).counts, "until somebody vouches for that line"
    run.start(Policy(0, 1))
    run.step()
    run.end()
    assert verified(run.root).findings == ()


def test_a_trainer_that_was_never_certified_leaves_a_run_that_nobody_signed(tmp_path: Path) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.kill()
    opened = [record for record in records_of(run.root) if isinstance(record, records.OpenEntry)]
    rechained(run.root, [*opened, records.EndEntry(how="failed")])
    assert audited(run.root).is_clean
    assert Code.SEAL_MISSING in verified(run.root).counts


def test_an_unsigned_step_before_any_seal_is_found(run: Path) -> None:
    forger = Forger(run)
    first = forger.indices(lambda r: isinstance(r, records.SealEntry))[0]
    publish = records.PublishEntry(policy=Policy(0, 0), digest=bytes(32))
    forger.entries.insert(first, Entry(1.7e9, publish, -1))
    forger.reseal()
    assert Code.SEAL_MISSING in audited(run).counts
