"""A verdict comes whatever a file holds, and its cost follows the file's size and no number that stands in it.

Every value of every kind of line, of a manifest and of metrics.jsonl is replaced by what breaks readers: zero, negative
numbers, powers of two, floats beyond any range, NaN, texts without end, nesting without end. Time is CPU time of this
process, in proportion to that of the honest run.
"""

import contextlib
import functools
import gc
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.audit import records
from periplus.audit.auditor import Report, audit
from periplus.audit.evidence import Evidence
from periplus.audit.findings import Code
from periplus.audit.records import MAX_LINE_BYTES, chain_hash, from_line, to_line
from periplus.audit.report import report_text, report_tree
from periplus.audit.run_reader import MAX_METRICS_BYTES, read_run
from periplus.audit.walk import MAX_FORKS
from periplus.errors import CorruptFrame
from periplus.spool.database import DATABASE
from periplus.values.policy import Policy
from periplus.values.safetensors_format import safetensors_head
from periplus.values.trajectory import PolicyRun, Purpose, StopReason
from periplus.values.weight_state import read_safetensors_file
from tests.support.audit.files import audited, copy_run
from tests.support.audit.forger import Forger
from tests.support.audit.history import short_run
from tests.support.audit.opened import OPENED
from tests.support.cases.examples import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOWER = 20
"""A hostile audit may take so many times as long as the honest one: the machine is shared, an edit may be 100 kB."""

MEMORY_BYTES = 100 << 20
"""Far below what a walk over 2^31 numbers takes, far above what the edits themselves have."""

DEEP = "[" * 3000 + "]" * 3000
TEXTS = (
    "0",
    "-1",
    "1",
    str(2**31),
    str(2**40),
    str(2**63),
    str(2**64 - 1),
    "1e308",
    "1e999",
    "NaN",
    "-Infinity",
    '""',
    "null",
    "true",
    "[]",
    "{}",
    json.dumps("x" * 100_000),
    DEEP,
    "[" + "0," * 20_000 + "0]",
    "9" * 5000,
    "[[0,0]]",
    '"' + "00" * 16 + '"',
)


@functools.cache
def evidence_of(run: Path) -> Evidence:
    evidence = read_run(run, (), lambda what, done, total: None)
    return replace(evidence, lines=tuple(evidence.lines))


def timed(evidence: Evidence) -> tuple[Report, float]:
    """Return an audit's report and CPU time.

    The collector of cycles is paused, as in audit_run: it would visit all that other tests left in memory.
    """
    gc.disable()
    try:
        begun_s = time.process_time()
        report = audit(evidence)
        json.dumps(report_tree(report))
        report_text(report)
        return report, time.process_time() - begun_s
    finally:
        gc.enable()


def audited_within(limit_s: float, evidence: Evidence, what: object) -> Report:
    """Return the report of an audit that must be fast once in three times: other processes may slow two down."""
    for _ in range(3):
        report, spent_s = timed(evidence)
        if spent_s < limit_s:
            return report
    pytest.fail(f"{what}: {spent_s:.3f} s of CPU time, and the limit is {limit_s:.3f} s")


def values_of(line: bytes) -> dict[str, str]:
    """Return the texts of a line's values, by key."""
    return {key: json.dumps(value, separators=(",", ":")) for key, value in json.loads(line).items()}


def with_value(line: bytes, key: str, text: str) -> bytes:
    values = values_of(line) | {key: text}
    return b"{" + ",".join(f'"{name}":{value}' for name, value in values.items()).encode() + b"}\n"


def is_refused(line: bytes) -> bool:
    try:
        from_line(line[:-1], "here")
    except CorruptFrame:
        return True
    return False


def one_of_each_kind(lines: Sequence[bytes]) -> dict[str, int]:
    """Return the place of the first line of each kind."""
    found: dict[str, int] = {}
    for index, line in enumerate(lines):
        found.setdefault(json.loads(line)["kind"], index)
    return found


def test_every_value_of_every_kind_of_line_may_be_anything_and_is_found(pruned: Path) -> None:
    evidence = evidence_of(pruned)
    lines = tuple(evidence.lines)
    _, honest_s = timed(evidence)
    kinds = one_of_each_kind(lines)
    assert len(kinds) == len(records._KINDS)
    for index in kinds.values():
        for key in json.loads(lines[index]):
            for text in TEXTS:
                changed = with_value(lines[index], key, text)
                if text not in TEXTS[::7] and is_refused(changed):
                    continue  # as the others are, that the whole audit is played for
                where = f"{json.loads(lines[index])['kind']}.{key} = {text[:40]}"
                edited = replace(evidence, lines=(*lines[:index], changed, *lines[index + 1 :]))
                assert not audited_within(SLOWER * honest_s + 0.2, edited, where).is_clean, where


NUMBERS = (0, 1, 2**31, 2**40, 2**63, 2**64 - 1)


def integers_in(record: records.Entry) -> Iterator[tuple[str, Any]]:
    for name in type(record).__dataclass_fields__:
        value = getattr(record, name)
        if type(value) is int:
            yield name, int
        elif isinstance(value, Policy):
            yield name, Policy


def test_a_forger_may_put_any_number_anywhere_and_the_audit_ends_as_soon(pruned: Path) -> None:
    """Every line is one that a writer could have written, and the chain holds: only what it means is wrong."""
    _, honest_s = timed(evidence_of(pruned))
    forger = Forger(pruned)
    originals = [entry.record for entry in forger.entries]
    seen: set[tuple[type, str]] = set()
    for index, record in enumerate(originals):
        for name, kind in integers_in(record):
            if (type(record), name) in seen:
                continue
            seen.add((type(record), name))
            for number in NUMBERS:
                value = number if kind is int else Policy(getattr(record, name).fork, number)
                try:
                    forger.entries[index].record = replace(record, **{name: value})  # type: ignore[arg-type]
                    from_line(to_line(0, bytes(16), 0.0, forger.entries[index].record), "here")
                except CorruptFrame:
                    continue
                chain, lines = bytes(16), []
                for n, entry in enumerate(forger.entries):
                    line = to_line(n, chain, entry.time_s, entry.record)
                    lines.append(line + b"\n")
                    chain = chain_hash(line)
                where = (record, name, number)
                report = audited_within(SLOWER * honest_s + 0.2, replace(evidence_of(pruned), lines=lines), where)
                if value != getattr(record, name):
                    assert not report.is_clean, where
        forger.entries[index].record = record
    assert len(seen) > 20


def test_one_word_that_makes_an_evaluation_a_training_group_ends_with_a_verdict(run: Path) -> None:
    path = run / "audit.jsonl"
    text = path.read_bytes()
    assert b'"purpose":"eval"' in text
    path.write_bytes(text.replace(b'"purpose":"eval"', b'"purpose":"train"', 1))
    tracemalloc.start()
    report = audited(run)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not report.is_clean
    assert peak_bytes < MEMORY_BYTES


def test_groups_that_are_passed_over_are_one_finding_however_many(run: Path) -> None:
    forger = Forger(run)
    for index in forger.indices(lambda r: getattr(r, "group", None) == 9):
        forger.edit(index, group=20_000_000)
    forger.reseal()
    report = audited(run)
    skipped = [f for f in report.findings if f.code is Code.UNACCOUNTED and "passed over" in f.message]
    assert 0 < len(skipped) < 10
    assert report.counts[Code.UNACCOUNTED] < 100


# ---- many of a kind: nothing is quadratic ----------------------------------------------------------------------------


def journal_of(body: Sequence[records.Entry], opened: records.OpenEntry) -> list[bytes]:
    chain, lines = bytes(16), []
    for n, record in enumerate((opened, *body)):
        line = to_line(n, chain, 0.0, record)
        lines.append(line + b"\n")
        chain = chain_hash(line)
    return lines


ONE_SAMPLE_A_STEP = replace(OPENED, group_size=1, groups_per_step=1)


def lease(number: int, group: int, purpose: Purpose = Purpose.TRAIN) -> records.LeaseEntry:
    return records.LeaseEntry(
        lease_id=number,
        group=group,
        sample=0,
        item=0,
        purpose=purpose,
        worker_id="w",
        region="r",
        start_at=Policy(0, 0),
        consume_by_version=1,
    )


def accepted(number: int, group: int) -> records.ResultEntry:
    return records.ResultEntry(
        verdict=records.AdmissionVerdict.ACCEPTED,
        why="",
        lease_id=number,
        group=group,
        sample=0,
        worker_id="w",
        region="r",
        digest=bytes(16),
        num_tokens=1,
        policies=(PolicyRun(Policy(0, 0), 1),),
        stop_reason=StopReason.EOS,
        frame=records.FrameId(1, number),
        index=0,
    )


def stepped(version: int) -> records.ConsumeEntry:
    used = (records.UsedSample(version, 0, bytes(16)),)
    return records.ConsumeEntry(
        policy=Policy(0, version), trained=True, why="", samples=used, root=bytes(16), staleness_tokens={0: 1}
    )


PRUNE = records.PruneEntry(kept_from=records.FrameId(0, 0), policy=Policy(0, 0))

MANY: dict[str, Callable[[int], Sequence[records.Entry]]] = {
    "leases with ever wider gaps": lambda n: [r for i in range(n) for r in (lease(3 * i + 9, i), PRUNE)],
    "checkpoints after many steps": lambda n: [
        *map(stepped, range(n)),
        *(records.CheckpointEntry(policy=Policy(0, n), manifest=bytes(32), covers=n) for _ in range(n)),
    ],
    "prunes after many steps": lambda n: [
        r for i in range(n) for r in (lease(i + 1, i), accepted(i + 1, i), stepped(i), PRUNE)
    ],
    "prunes while many samples wait": lambda n: [
        *(r for i in range(n) for r in (lease(i + 1, i), accepted(i + 1, i))),
        *[PRUNE] * n,
    ],
    "groups far apart": lambda n: [r for i in range(n) for r in (lease(i + 1, i << 20), accepted(i + 1, i << 20))],
    "evaluations that never end": lambda n: [
        r for i in range(n) for r in (lease(i + 1, (1 << 40) + i, Purpose.EVAL), stepped(i))
    ],
    "ends": lambda n: [records.EndEntry(how="succeeded")] * n,
    "seals": lambda n: [records.SealEntry(key=b"k" * 32, certificate=bytes(64), signature=bytes(64))] * n,
    "publications": lambda n: [records.PublishEntry(policy=Policy(0, 0), digest=bytes([i % 2]) * 32) for i in range(n)],
    "results for one place": lambda n: [r for i in range(n) for r in (lease(i + 1, i), accepted(1, i))],
}


@pytest.mark.parametrize("what", MANY)
def test_many_lines_of_a_kind_cost_in_proportion_to_their_number(what: str) -> None:
    def cost_s(number: int) -> float:
        evidence = Evidence(lines=journal_of(MANY[what](number), ONE_SAMPLE_A_STEP), frames={})
        return min(timed(evidence)[1] for _ in range(3))

    small_s, large_s = cost_s(500), cost_s(4000)
    assert large_s < 3 * 8 * small_s + 0.1, f"{small_s:.3f} s for 500, {large_s:.3f} s for 4000"


def test_more_forks_than_are_checked_are_a_finding_and_cost_no_more(tmp_path: Path) -> None:
    forks = [
        replace(ONE_SAMPLE_A_STEP, fork=number, parent=Policy(number - 1, 0), manifest=bytes(32), resumed_at=1)
        for number in range(1, 2 * MAX_FORKS)
    ]
    report, spent_s = timed(Evidence(lines=journal_of(forks, ONE_SAMPLE_A_STEP), frames={}))
    assert report.counts[Code.TOO_MANY_FORKS] == MAX_FORKS
    assert spent_s < 60


# ---- the files beside the journal ------------------------------------------------------------------------------------


def replaced_everywhere(tree: Any, text: str) -> Iterator[str]:
    """Yield the JSON text of a tree with each of its values replaced in turn."""
    marker = "\x00here"

    def variants(node: Any) -> Iterator[Any]:
        yield marker
        if isinstance(node, dict):
            for key, value in node.items():
                for variant in variants(value):
                    yield node | {key: variant}
        elif isinstance(node, list):
            for index, value in enumerate(node):
                for variant in variants(value):
                    yield [*node[:index], variant, *node[index + 1 :]]

    for variant in variants(tree):
        yield json.dumps(variant).replace(json.dumps(marker), text)


# Each text takes two seconds. Every third one is in `make test-slow`, and the others in `make test-faults`.
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=f"{len(text)}:{text[:12]}") for text in TEXTS],
)
def test_every_value_of_a_manifest_may_be_anything_and_is_found(tmp_path: Path, text: str) -> None:
    run = tmp_path / "run"
    short_run(run)
    assert audited(run).is_clean
    path = run / "checkpoints" / "0.1" / "manifest.json"
    tree = json.loads(path.read_text())
    for changed in replaced_everywhere(tree, text):
        path.write_text(changed)
        assert not audited(run).is_clean or changed == json.dumps(tree), changed[:300]


@pytest.mark.parametrize("file", ["metrics.jsonl", "config.yaml"])
def test_every_value_of_another_file_may_be_anything(run: Path, file: str) -> None:
    path = run / file
    lines = path.read_text().splitlines()
    for text in TEXTS[::3]:
        for changed in replaced_everywhere(json.loads(lines[0]), text):
            path.write_text("\n".join([changed, *lines[1:]]) + "\n")
            report = audited(run)
            assert file != "config.yaml" or Code.SETTINGS_CHANGED in report.counts or changed == lines[0]


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_bytes_of_any_file_may_be_anything(
    honest: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = copy_run(honest, tmp_path_factory.mktemp("bytes") / "run")
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    path = data.draw(st.sampled_from(files))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(raw)
    json.dumps(report_tree(audited(run)))


@pytest.mark.parametrize("file", ["audit.jsonl", "metrics.jsonl", "config.yaml", "checkpoints/1.4/manifest.json"])
@pytest.mark.parametrize("content", [b"", b"\n" * 50, b"\x00" * 4096, b"[" * 100_000, b"\xff\xfe{}", b"{" * 9 + b"\n"])
def test_a_whole_file_may_be_anything(run: Path, file: str, content: bytes) -> None:
    (run / file).write_bytes(content)
    json.dumps(report_tree(audited(run)))


FILES_OF_A_RUN = ("metrics.jsonl", "config.yaml", "checkpoints/1.4/manifest.json", "trajectories")


@pytest.mark.parametrize("file", FILES_OF_A_RUN)
def test_a_pipe_or_a_device_in_place_of_a_file_ends_with_a_verdict(run: Path, file: str) -> None:
    """Nothing ever comes out of the pipe, and the device gives zeros without end: a child process audits them."""
    path = run / file
    if path.is_dir():
        path /= DATABASE
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        report = audited_by_a_process(run)
        is_note = file in ("metrics.jsonl", "config.yaml")
        assert report["notes"] if is_note else report["findings"]


MEMORY_LIMIT_BYTES = 7 << 28
"""Address space of a process that audits: less than two copies of the large tensor, and than the sparse files. Threads
for numpy would take some of it for each core."""

WITH_LITTLE_MEMORY = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_LIMIT_BYTES}, {MEMORY_LIMIT_BYTES}))
runpy.run_module("periplus", run_name="__main__", alter_sys=True)
"""


def audited_by_a_process(run: Path, *spools: Path) -> dict[str, Any]:
    """Return the report of the command, run in a process of its own with little memory."""
    options = [word for spool in spools for word in ("--spool", str(spool))]
    command = [sys.executable, "-c", WITH_LITTLE_MEMORY, "job", "audit", str(run), "-o", "json", *options]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=variables, capture_output=True, timeout=120, check=False)
    assert ended.returncode in (0, 1), (ended.stdout, ended.stderr)
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def test_a_metrics_file_beyond_any_run_is_no_witness(run: Path) -> None:
    os.truncate(run / "metrics.jsonl", MAX_METRICS_BYTES + 1)
    assert any("bytes" in note and "metrics.jsonl" in note for note in audited(run).notes)


def test_a_large_file_beside_the_exported_model_does_not_hide_another_model(run: Path) -> None:
    model = run / "final" / "model.safetensors"
    raw = bytearray(model.read_bytes())
    raw[-1] ^= 0x40
    model.write_bytes(raw)
    assert Code.FINAL_WRONG in audited(run).counts
    (run / "final" / "other.safetensors").touch()
    os.truncate(run / "final" / "other.safetensors", 1 << 40)
    assert Code.FINAL_WRONG in audited(run).counts


def test_a_large_tensor_added_to_the_exported_model_is_found_in_little_memory(run: Path) -> None:
    """A tensor of 1 GiB, which takes no room on disk, is mapped and read by blocks: a copy of it would not fit."""
    path = run / "final" / "model.safetensors"
    state = read_safetensors_file(path)
    lines = [(name, tensor.dtype, tensor.shape) for name, tensor in state.items()]
    head = safetensors_head([("added", "F32", (1 << 28,)), *lines], {})
    data = [np.array(tensor.data).tobytes() for tensor in state.values()]
    with path.open("wb") as file:
        file.write(head)
        file.seek(1 << 30, os.SEEK_CUR)
        file.writelines(data)
    report = audited_by_a_process(run)
    assert "final_wrong" in report["counts"]


LARGE = 1 << 40
"""Bytes of a sparse file: far beyond the memory that the auditing process is given."""


@pytest.mark.parametrize("head", [b"", b"[" * 1000])
def test_a_line_of_the_journal_without_end_is_a_finding(run: Path, head: bytes) -> None:
    with (run / "audit.jsonl").open("ab") as file:
        file.write(head)
        file.truncate(LARGE)
    report = audited_by_a_process(run)
    assert report["counts"] == {"line_unreadable": 1}


def test_the_longest_line_is_still_read_and_one_byte_more_is_not(run: Path) -> None:
    path = run / "audit.jsonl"
    num_lines = len(path.read_bytes().splitlines())
    with path.open("ab") as file:
        file.write(b" " * (MAX_LINE_BYTES - 1) + b"\n")
    assert (report := audited(run)).num_lines == num_lines + 1
    assert "more than" not in str(report.findings)
    path.write_bytes(path.read_bytes()[:-1] + b" \n")
    assert (report := audited(run)).num_lines == num_lines
    assert "more than" in str(report.findings)


def test_a_record_without_end_and_a_database_that_is_none_are_findings_in_a_store_and_in_a_spool(run: Path) -> None:
    spool = run / "spool"
    spool.mkdir()
    with contextlib.closing(sqlite3.connect(run / "trajectories" / DATABASE, isolation_level=None)) as connection:
        connection.execute("UPDATE records SET data = zeroblob(200000000) WHERE key = (SELECT max(key) FROM records)")
    (spool / DATABASE).touch()
    os.truncate(spool / DATABASE, LARGE)
    report = audited_by_a_process(run, spool)
    assert "frame_unreadable" in report["counts"]
    assert any(str(spool) in str(finding) for finding in report["findings"])


@pytest.mark.parametrize(
    "schema",
    [
        "WITH RECURSIVE more(key, digest, data) AS (SELECT 1, x'', x'' UNION ALL SELECT key + 1, x'', x'' FROM more) "
        "SELECT * FROM more",
        "SELECT 1 AS key, x'' AS digest, randomblob(1000000000) AS data",
    ],
)
def test_a_store_that_computes_its_records_is_a_finding(run: Path, schema: str) -> None:
    with contextlib.closing(sqlite3.connect(run / "trajectories" / DATABASE, isolation_level=None)) as connection:
        connection.execute("DROP TABLE records")
        connection.execute(f"CREATE VIEW records AS {schema}")
    assert "frame_unreadable" in audited_by_a_process(run)["counts"]


def test_the_name_of_a_part_or_of_a_checkpoint_may_be_anything(run: Path) -> None:
    folder = run / "checkpoints" / "1.4"
    tree = json.loads((folder / "manifest.json").read_text())
    for name in ("x" * 5000, "\x00", "..", ".", "", "../0.2/manifest.json", "\ud800"):
        tree["parts"][0]["name"] = name
        (folder / "manifest.json").write_text(json.dumps(tree))
        assert Code.PART_WRONG in audited(run).counts
    for name in ("9" * 200 + ".1", "²³.1", "1.", "x"):
        folder = folder.rename(folder.with_name(name))
        assert not audited(run).is_clean


def test_lines_are_read_from_what_lies_in_the_file(run: Path) -> None:
    """A line that is torn in the middle of the file is one that cannot be read."""
    text = (run / "audit.jsonl").read_bytes()
    lines = io.BytesIO(text.replace(b",", b"\n", 1)).readlines()
    assert Code.LINE_UNREADABLE in audit(replace(evidence_of(run), lines=lines)).counts
