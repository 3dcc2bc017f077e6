"""Signatures show what a forger who recomputes everything can hide from the rest of an audit.

docs/audit.md lists these cases: keep its table and these tests together.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.job.run_directory import RunDirectory
from periplus.spool.reader import SpoolReader
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from tests.support.audit.files import audited
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import Tampering, at, found
from tests.support.audit.tampering.every import TAMPERINGS
from tests.support.audit.tampering.forks import another_setting_of_the_job
from tests.support.keys import AUTHORITY


def every_reward_is_changed_in_frames_and_journal(forger: Forger) -> None:
    forger.rewrite_everything(lambda t: replace(t, reward=0.0))


def another_digest_was_published(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(2, 5)), digest=bytes(32))


def the_learner_is_replaced(forger: Forger) -> None:
    (forger.root / "checkpoints" / "1.4" / "learner.json").write_bytes(b"other moments")


def the_job_is_renamed(forger: Forger) -> None:
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, job_id="other-1")
    for path in forger.root.glob("checkpoints/*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"job_id": "other-1"}))


def another_setting_of_the_job_and_its_hash(forger: Forger) -> None:
    another_setting_of_the_job(forger)
    config = blake3((forger.root / "config.yaml").read_bytes()).digest()
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, settings=config)


def the_region_of_a_worker_is_changed_throughout(forger: Forger) -> None:
    for index in forger.indices(lambda r: getattr(r, "worker_id", "") == "rollout-ap-0" and hasattr(r, "region")):
        forger.edit(index, region="us-east")


def times_are_changed(forger: Forger) -> None:
    for entry in forger.entries:
        entry.time_s += 1e6


SIGNED_ONLY = (
    every_reward_is_changed_in_frames_and_journal,
    another_digest_was_published,
    the_learner_is_replaced,
    the_job_is_renamed,
    another_setting_of_the_job_and_its_hash,
    the_region_of_a_worker_is_changed_throughout,
    times_are_changed,
)


@pytest.mark.parametrize("edit", SIGNED_ONLY)
def test_what_a_consistent_forger_can_hide_is_shown_by_the_authoritys_key_alone(
    run: Path, edit: Callable[[Forger], None]
) -> None:
    assert audited(run, authorities=[AUTHORITY.public_key]).is_clean
    forger = Forger(run)
    edit(forger)
    forger.reseal()
    assert audited(run).is_clean
    counts = audited(run, authorities=[AUTHORITY.public_key]).counts
    assert {Code.SEAL_WRONG, Code.SEAL_MISSING} & counts.keys()


# Every fourth is quick: that a signature does not fit shows before what the lines mean is looked at.
@pytest.mark.parametrize(
    "tampering",
    [pytest.param(each, marks=() if number % 4 == 0 else pytest.mark.slow) for number, each in enumerate(TAMPERINGS)],
    ids=str,
)
def test_no_forger_is_believed_by_who_has_the_authoritys_key(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.reseal()
    assert not audited(run, authorities=[AUTHORITY.public_key]).is_clean


def test_what_no_digest_covers_is_not_found_and_is_in_the_docs(run: Path) -> None:
    """If one of these is found one day, docs/audit.md has a line too many."""
    forger = Forger(run)
    forger.rewrite_frames(lambda t: replace(t, metadata='{"other": 1}', generation_s=9.0))
    config = run / "config.yaml"
    config.write_text(config.read_text() + " ")
    record = Record(kind=RecordKind.PHASE, policy=Policy(3, 0), time_s=0.0, text="loading the model")
    RunDirectory(run).append(record)
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert report.is_clean
    assert any("config.yaml is of fork 3" in note for note in report.notes)


def test_a_fork_that_is_added_behind_the_last_signature_is_told(run: Path) -> None:
    forger = Forger(run)
    first = found(forger, records.OpenEntry, fork=1)
    chain, n = records.chain_hash(forger.path.read_bytes().splitlines()[-1]), len(forger.entries)
    with forger.path.open("ab") as file:
        file.write(records.to_line(n, chain, 1.8e9, replace(first, fork=3)) + b"\n")
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert any("nobody signed that it began" in note for note in report.notes)


def everything_behind_a_checkpoint_is_cut_off(forger: Forger) -> None:
    """Remove all that came after a checkpoint, from every file, as if the trainer had died there."""
    end = at(forger, records.CheckpointEntry, policy=Policy(0, 2)) + 2
    frames = [entry.record.frame for entry in forger.entries[:end] if isinstance(entry.record, records.ResultEntry)]
    del forger.entries[end:]
    (forger.root / "metrics.jsonl").unlink()
    shutil.rmtree(forger.root / "final")
    for name in ("1.4", "2.6"):
        shutil.rmtree(forger.root / "checkpoints" / name)
    for record in list(SpoolReader.open(forger.root / "trajectories").records()):
        frame = records.FrameId(record.position.epoch, record.position.sequence)
        if frame not in frames:
            forger.remove_frame(frame)


def test_a_history_that_is_cut_at_a_seal_looks_like_that_of_a_trainer_that_died_there(run: Path) -> None:
    """Nothing within the files can show it, and docs/audit.md says so; the report says where the signatures end."""
    forger = Forger(run)
    everything_behind_a_checkpoint_is_cut_off(forger)
    forger.write_unsealed()
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert (report.findings, report.is_ended) == ((), False)
    assert report.forks[-1].head == Policy(0, 2)


@pytest.mark.parametrize("kept", ["metrics.jsonl", "final", "checkpoints/2.6", "frames"])
def test_a_history_that_is_cut_is_found_by_any_file_that_was_forgotten(honest: Path, run: Path, kept: str) -> None:
    forger = Forger(run)
    everything_behind_a_checkpoint_is_cut_off(forger)
    forger.write_unsealed()
    for name in [kept] if kept != "frames" else ["trajectories"]:
        if (honest / name).is_dir():
            shutil.copytree(honest / name, run / name, dirs_exist_ok=True)
        else:
            shutil.copy(honest / name, run / name)
    assert not audited(run).is_clean
