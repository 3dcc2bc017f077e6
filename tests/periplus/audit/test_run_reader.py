from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from periplus.audit import records
from periplus.audit.auditor import audit
from periplus.audit.findings import Code
from periplus.audit.run_reader import published_digest, read_run, round_to_bf16
from periplus.errors import NotFound
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.weight_state import Tensor
from tests.support.audit.files import audited
from tests.support.audit.run import AuditRun


def test_nothing_is_changed_by_reading(honest: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in honest.rglob("*")}
    audited(honest)
    assert {path: path.stat().st_mtime_ns for path in honest.rglob("*")} == before


def test_every_kind_of_file_reports_its_progress(honest: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    audit(read_run(honest, (), lambda *step: seen.append(step)))
    assert {what for what, _, _ in seen} >= {"journal", "trajectories", "2.6/model.safetensors"}
    assert all(done <= total for _, done, total in seen)
    assert [step for step in seen if step[0] == "journal"][-1][1:] == ((honest / "audit.jsonl").stat().st_size,) * 2


def test_a_directory_without_a_journal_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"audit\.jsonl"):
        read_run(tmp_path, (), lambda *step: None)


def test_a_run_may_go_on_while_it_is_read(tmp_path: Path) -> None:
    """Lines, frames, checkpoints and prunes that come after the audit began are not held against the run."""
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.step()
    run.journal.flush()
    is_first = True

    def meanwhile(what: str, done: int, total: int) -> None:
        nonlocal is_first
        if is_first:  # the journal's end is known by now, and the frames are being read
            is_first = False
            run.step()
            run.checkpoint()
            run.fill(run.open_group())
            run.prune()
            run.journal.flush()

    report = audit(read_run(run.root, (), meanwhile))
    run.kill()
    assert not is_first
    assert report.findings == ()
    assert report.forks[0].head == Policy(0, 1)
    assert audited(run.root).is_clean


def test_frames_that_cannot_be_decoded_are_one_finding_each_and_the_rest_is_verified(tmp_path: Path) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.step()
    held = run.lease(run.open_group(), 0)
    trajectory = run.trajectory(held)
    run.store.append(b"no frame")
    run.arrive(trajectory)
    run.end()
    report = audited(run.root)
    assert set(report.counts) == {Code.FRAME_UNREADABLE}
    assert report.findings[0].place == "frame 1.2"
    assert report.surviving is not None
    assert report.surviving.trained_by_frame == 4


def test_a_run_without_metrics_or_config_has_fewer_witnesses_and_is_no_worse(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "config.yaml").unlink()
    assert audited(run).is_clean


def test_a_line_that_prunes_counts_though_it_was_written_later(honest: Path) -> None:
    evidence = read_run(honest, (), lambda *step: None)
    frames = dict(list(evidence.frames.items())[3:])
    lines = list(evidence.lines)
    assert Code.FRAME_MISSING in audit(replace(evidence, lines=lines, frames=frames)).counts
    kept_from = next(iter(frames))
    assert isinstance(kept_from, records.FrameId)
    assert audit(replace(evidence, lines=lines, frames=frames, pruned_before=kept_from)).is_clean


def test_rounding_is_to_nearest_even_and_keeps_what_is_no_number() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F80C000, 0x3F807FFF, 0x7F800000, 0x7FC00001, 0x80000000], "<u4")
    rounded = round_to_bf16({"w": Tensor("F32", (7,), bits)})["w"]
    assert rounded.dtype == "BF16"
    assert [hex(b) for b in rounded.data.view("<u2")] == [
        "0x3f80",
        "0x3f82",
        "0x3f81",
        "0x3f80",
        "0x7f80",
        "0x7fc0",
        "0x8000",
    ]


def test_the_published_digest_by_blocks_is_that_of_the_rounded_tensors() -> None:
    generator = np.random.default_rng(0)
    for num_values in (0, 1, (1 << 19) - 1, 1 << 19, (1 << 19) + 1, 3 << 19):
        values = generator.standard_normal(num_values, dtype=np.float32)
        state = {"w": Tensor("F32", (num_values,), values), "i": Tensor("I32", (2,), np.arange(2, dtype="<i4"))}
        assert published_digest(state) == state_digest(round_to_bf16(state))
