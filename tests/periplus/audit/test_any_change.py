"""Any change at all of a finished run's journal, frames or manifests is reported, or says nothing else."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.audit import records
from periplus.audit.auditor import audit
from periplus.audit.evidence import Evidence
from periplus.audit.findings import Code
from periplus.audit.records import from_line
from periplus.audit.run_reader import read_run
from periplus.errors import CorruptFrame
from tests.support.audit.files import audited, copy_run
from tests.support.cases.examples import examples

pytestmark = pytest.mark.slow


class Box:
    """The honest run's evidence, read once; hypothesis need not print it."""

    def __init__(self, evidence: Evidence) -> None:
        self.lines = tuple(evidence.lines)
        self.evidence = replace(evidence, lines=self.lines)

    def __repr__(self) -> str:
        return "the honest run"


@pytest.fixture(scope="session")
def box(honest: Path) -> Box:
    return Box(read_run(honest, (), lambda what, done, total: None))


def parsed(lines: list[bytes]) -> list[records.Entry] | None:
    """Return the records of the whole lines, or None if one is unreadable."""
    try:
        return [from_line(line[:-1], "line").record for line in lines if line.endswith(b"\n")]
    except CorruptFrame:
        return None


def is_harmless(before: list[bytes], after: list[bytes]) -> bool:
    """Return whether the journal tells the same, or the same but for last lines that are about no step.

    A journal without its last lines is that of a trainer that was killed before it wrote them, and the report says so:
    it has no end, and the samples are not committed. The time of the last line has no line behind it to vouch for it.
    """
    old, new = parsed(before), parsed(after)
    if old is None or new is None or new != old[: len(new)]:
        return False
    return not any(
        isinstance(r, records.OpenEntry | records.ConsumeEntry | records.CheckpointEntry) for r in old[len(new) :]
    )


def changed(lines: list[bytes], change: str, index: int, other: int, place: int, value: int) -> None:
    """Make one change of one line, in place. Numbers wrap around."""
    index, other, place = index % len(lines), other % len(lines), place % len(lines[index % len(lines)])
    line = lines[index]
    match change:
        case "delete":
            del lines[index]
        case "repeat":
            lines.insert(other, line)
        case "swap":
            lines[index], lines[other] = lines[other], line
        case "byte":
            lines[index] = line[:place] + bytes([value]) + line[place + 1 :]
        case "insert":
            lines[index] = line[:place] + bytes([value]) + line[place:]
        case "remove":
            lines[index] = line[:place] + line[place + 1 :]
        case "cut":
            del lines[index:]


@given(
    change=st.sampled_from(["delete", "repeat", "swap", "byte", "insert", "remove", "cut"]),
    index=st.integers(0, 1 << 16) | st.just(-1),
    other=st.integers(0, 1 << 16),
    place=st.integers(0, 1 << 16),
    value=st.integers(0, 255),
)
@settings(max_examples=examples(300), deadline=None)
def test_any_change_of_a_line_is_reported_or_says_nothing_else(
    box: Box, change: str, index: int, other: int, place: int, value: int
) -> None:
    before = list(box.lines)
    lines = list(before)
    changed(lines, change, index, other, place, value)
    lines = io.BytesIO(b"".join(lines)).readlines()
    report = audit(replace(box.evidence, lines=lines))
    assert not report.is_clean or is_harmless(before, lines)


@given(index=st.integers(min_value=0))
@settings(max_examples=examples(100), deadline=None)
def test_any_frame_that_is_removed_is_missed_unless_nothing_came_of_it(box: Box, index: int) -> None:
    evidence = box.evidence
    frames = dict(evidence.frames)
    removed = list(frames)[index % len(frames)]
    del frames[removed]
    report = audit(replace(evidence, frames=frames))
    never_told = audit(evidence).uncommitted - report.uncommitted == len(evidence.frames[removed])
    assert set(report.counts) == {Code.FRAME_MISSING} or (report.is_clean and never_told)


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_change_of_a_manifest_is_reported(
    honest: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = copy_run(honest, tmp_path_factory.mktemp("manifest") / "run")
    path = run / "checkpoints" / data.draw(st.sampled_from(["0.2", "1.4", "2.6"])) / "manifest.json"
    raw = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    assert not audited(run).is_clean
