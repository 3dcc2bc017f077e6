"""An audit catches whoever changes a finished run so that it looks different.

Each change in `tests/support/audit/tampering` is made twice: carelessly, which leaves the hash chain as it was, and by
a forger, who recomputes chain, roots, claimed ages and the manifests' hashes and positions, so that only what the lines
and the frames mean can show it. What a forger can hide who also rewrites the frames is in docs/audit.md, and is tested
in test_tampering_signed.py.
"""

from pathlib import Path

import pytest

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.spool.database import DATABASE
from tests.support.audit.files import audited
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import STEP, Tampering, at, first_trained
from tests.support.audit.tampering.every import TAMPERINGS
from tests.support.audit.tampering.frames import a_version_is_edited_in_the_journal

BY_THE_SEAL = {Code.CHAIN_BROKEN, Code.NUMBER_BROKEN, Code.ROOT_WRONG, Code.MANIFEST_WRONG, Code.LINE_UNREADABLE}
"""The findings that never show a forger who recomputes hashes."""


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=str)
def test_a_forger_who_recomputes_every_hash_is_caught_by_what_the_records_mean(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.reseal()
    counts = audited(run).counts
    assert counts.keys() & set(tampering.caught), counts
    assert not (tampering.is_sealable and counts.keys() & BY_THE_SEAL), counts


# Every fourth is quick: what a careless change breaks is the hash chain, whatever it changes.
@pytest.mark.parametrize(
    "tampering",
    [pytest.param(each, marks=() if number % 4 == 0 else pytest.mark.slow) for number, each in enumerate(TAMPERINGS)],
    ids=str,
)
def test_a_clumsy_hand_is_caught(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.write_unsealed()
    assert not audited(run).is_clean


def test_a_forger_who_changes_nothing_leaves_the_run_as_it_was(run: Path) -> None:
    before = (run / "audit.jsonl").read_bytes()
    Forger(run).reseal()
    assert (run / "audit.jsonl").read_bytes() == before


def test_an_edited_line_is_named_and_so_is_what_was_found_in_it(run: Path) -> None:
    forger = Forger(run)
    index = first_trained(forger)
    a_version_is_edited_in_the_journal(forger)
    forger.write_unsealed()
    findings = {finding.code: finding for finding in audited(run).findings}
    assert findings[Code.FRAME_CONTRADICTS].place == f"audit.jsonl:{index + 1}"
    assert findings[Code.FRAME_CONTRADICTS].values["name"] == "policies"
    assert findings[Code.CHAIN_BROKEN].place == f"audit.jsonl:{index + 2}"


def test_a_histogram_that_flatters_is_found(run: Path) -> None:
    forger = Forger(run)
    forger.edit(at(forger, records.ConsumeEntry, policy=STEP), staleness_tokens={0: 17})
    forger.write_unsealed()
    assert Code.STALENESS_CLAIMED in audited(run).counts


def test_a_root_that_is_not_the_samples_is_found(run: Path) -> None:
    forger = Forger(run)
    forger.edit(at(forger, records.ConsumeEntry, policy=STEP), root=bytes(16))
    forger.write_unsealed()
    assert {Code.ROOT_WRONG, Code.MANIFEST_CONTRADICTS} <= audited(run).counts.keys()


def test_one_cause_that_breaks_every_line_is_counted_and_shown_in_part(run: Path) -> None:
    lines = (run / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (run / "audit.jsonl").write_bytes(b"".join(line.replace(b'"prev":"', b'"prev":"g') for line in lines))
    report = audited(run)
    assert report.counts[Code.LINE_UNREADABLE] == len(lines)
    assert sum(finding.code is Code.LINE_UNREADABLE for finding in report.findings) == 100


def test_a_store_that_cannot_be_read_is_one_finding(run: Path) -> None:
    file = run / "trajectories" / DATABASE
    file.write_bytes(file.read_bytes()[:-5000])
    report = audited(run)
    assert set(report.counts) == {Code.FRAME_UNREADABLE}
    assert report.surviving is not None
    assert report.surviving.trained_by_frame == 0


def test_a_key_that_occurs_twice_is_found_though_the_chain_holds(run: Path) -> None:
    """A reader of JSON takes the last value of the two, which is the honest one."""
    chain, lines = bytes(16), []
    for n, entry in enumerate(Forger(run).entries):
        line = records.to_line(n, chain, entry.time_s, entry.record)
        if n == 20:
            line = line.replace(b'"kind"', b'"kind":"drop","kind"')
        lines.append(line + b"\n")
        chain = records.chain_hash(line)
    (run / "audit.jsonl").write_bytes(b"".join(lines))
    findings = [f for f in audited(run).findings if f.code is Code.LINE_UNREADABLE]
    assert [f.place for f in findings] == ["audit.jsonl:21"]
