"""The job with which a run is resumed, and the runs that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from periplus.audit.journal import AuditJournal
from periplus.audit.walk import SETTINGS
from periplus.errors import ConfigError, Conflict, NotFound
from periplus.job.job_file import recorded_job
from periplus.job.resumption import FIXED, Resumption, newest_checkpoint, resumption
from periplus.values.policy import Policy
from tests.support.left_run import left_run

JOB = "name: sums\nenvironment: {name: chain_sum}\nsteps: 320\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten steps of 20 are done; eval.every_steps was set to 7 on the command line that began it."""
    return left_run(tmp_path / "runs" / "sums-1", (0, 10), eval={"every_steps": 7})


def go_on(run: Path, *overrides: str, file: Path | None = None, change: bool = False) -> Resumption:
    return resumption(run, file, overrides, may_change=change)


def refusal(kind: type[Exception], run: Path, *overrides: str, **options: Any) -> str:
    with pytest.raises(kind) as raised:
        go_on(run, *overrides, **options)
    return str(raised.value)


def test_a_run_goes_on_with_its_own_job(run: Path) -> None:
    found = go_on(run)
    assert found.job == recorded_job(run / "config.yaml")
    assert (found.checkpoint.run_dir, found.checkpoint.job_id, found.checkpoint.policy) == (
        run,
        "sums-1",
        Policy(0, 10),
    )
    assert found.changes == ()


def test_an_override_that_was_forgotten_is_not_a_change_and_one_that_is_repeated_neither(
    run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("320", "20"))
    assert go_on(run, file=file).job.eval.every_steps == 7
    assert go_on(run, "eval.every_steps=7", file=file).changes == ()


def test_the_file_that_the_run_was_begun_with_does_not_silently_change_its_steps(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    said = refusal(ConfigError, run, "eval.every_steps=9", file=file)
    assert "  steps: 20 in the run, 320 now" in said.splitlines()
    assert "  eval.every_steps: 7 in the run, 9 now" in said.splitlines()
    assert "--change" in said
    changed = go_on(run, "eval.every_steps=9", file=file, change=True)
    assert (changed.job.steps, changed.job.eval.every_steps) == (320, 9)
    assert [(change.key, change.before, change.after) for change in changed.changes] == [
        ("steps", "20", "320"),
        ("eval.every_steps", "7", "9"),
    ]


@pytest.mark.parametrize(
    "override",
    [
        "staleness=1",
        "seed=5",
        "algorithm.name=dapo",
        "algorithm.group_size=16",
        "train.groups_per_step=8",
        "environment.name=basic_arithmetic",
        "environment.config.min_terms=3",
        "data.size=9000",
        "eval.num_prompts=64",
        "train.warmup.num_examples=64",
        "output.dir=elsewhere",
    ],
)
def test_what_a_run_promises_is_never_changed(tmp_path: Path, override: str) -> None:
    run = left_run(tmp_path / "sums-1", (0, 10), train={"warmup": {}})
    key, _, value = override.partition("=")
    said = refusal(ConfigError, run, override, "steps=40", change=True)
    assert f"  {key}: " in said
    assert value in said
    assert "steps" not in said, "that may change"


def test_what_the_audit_compares_between_forks_is_fixed() -> None:
    key_of = {
        "bound": "staleness",
        "group_size": "algorithm.group_size",
        "groups_per_step": "train.groups_per_step",
        "seed": "seed",
        "algorithm": "algorithm.name",
    }
    compared = set(SETTINGS) - {"job_id"}  # a resumed job keeps its id
    assert compared == key_of.keys()
    assert set(key_of.values()) <= FIXED.keys()


@pytest.mark.parametrize("spelling", ["{}/", "{}/.", "{}/../sums-1"])
def test_a_run_may_be_spelled_in_any_way(run: Path, spelling: str) -> None:
    assert go_on(Path(spelling.format(run))).checkpoint.run_dir == run


def test_a_run_may_be_named_from_another_directory_and_through_a_link(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latest").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    for name in ("latest", "runs/sums-1"):
        found = go_on(Path(name))
        assert (found.checkpoint.run_dir, found.job.output.dir) == (run, "runs")


def test_a_run_that_was_moved_goes_on_where_it_lies_now(tmp_path: Path) -> None:
    run = left_run(tmp_path / "old" / "sums-1", (0, 10), output={"dir": str(tmp_path / "old")})
    moved = shutil.move(run, tmp_path / "sums-1")
    assert go_on(Path(moved)).job.output.dir == str(tmp_path)


def test_a_directory_under_another_name_is_refused_since_the_job_keeps_its_id(tmp_path: Path) -> None:
    run = left_run(tmp_path / "sums-1", (0, 10))
    copy = shutil.copytree(run, tmp_path / "copy")
    assert "rename the directory copy to sums-1" in refusal(ConfigError, copy)


def test_a_run_that_its_trainer_still_writes_is_not_resumed(run: Path) -> None:
    with AuditJournal.open(run / "audit.jsonl"):
        assert "periplus job cancel sums-1" in refusal(Conflict, run)
    assert go_on(run).checkpoint.policy == Policy(0, 10)


def test_a_run_that_is_done_says_so_and_goes_on_with_more_steps(tmp_path: Path) -> None:
    run = left_run(tmp_path / "sums-1", (0, 20), summed_up=True)
    said = refusal(ConfigError, run)
    assert "has done all its" in said
    assert "steps=N --change" in said
    assert go_on(run, "steps=40", change=True).job.steps == 40


def test_a_run_that_was_killed_after_its_last_step_still_has_its_end_to_do(tmp_path: Path) -> None:
    run = left_run(tmp_path / "sums-1", (0, 20))
    assert go_on(run).checkpoint.policy == Policy(0, 20)


def test_fewer_steps_than_are_done_are_refused(run: Path) -> None:
    assert "already done 10 steps" in refusal(ConfigError, run, "steps=9", change=True)


def test_what_is_missing_in_a_run_is_said(run: Path, tmp_path: Path) -> None:
    assert "give the directory of a run" in refusal(NotFound, tmp_path / "nowhere")
    assert "nothing to resume from" in refusal(NotFound, tmp_path)
    (run / "config.yaml").unlink()
    assert "config.yaml" in refusal(NotFound, run)


def test_a_newer_schema_is_said_and_not_guessed_at(run: Path) -> None:
    manifest = run / "checkpoints" / "0.10" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("checkpoint/1", "checkpoint/2"))
    assert "periplus.checkpoint/2" in refusal(ConfigError, run)
    manifest.write_text(manifest.read_text().replace("checkpoint/2", "checkpoint/1"))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("periplus.job/1", "periplus.job/2"))
    assert "periplus.job/2" in refusal(ConfigError, run)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fork": "x"}', json.dumps({"fork": 0})])
def test_a_damaged_manifest_is_said(run: Path, text: str) -> None:
    (run / "checkpoints" / "0.10" / "manifest.json").write_text(text)
    assert "not a checkpoint manifest" in refusal(ConfigError, run)


def test_the_next_fork_lies_above_every_trainer_that_wrote_there(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"fork": 0}\n{"fork": 3}\nno record\n{"fork": 7')
    assert newest_checkpoint(run).resume_policy == Policy(3, 10)


def test_a_change_that_bends_the_schedule_names_the_rate_before_and_after(tmp_path: Path) -> None:
    run = left_run(tmp_path / "runs" / "sums-1", (0, 10), optimizer={"schedule": "linear", "lr": 0.1})
    assert go_on(run).rates is None
    rates = go_on(run, "steps=40", change=True).rates
    assert rates == pytest.approx((0.1 * (1 - 9 / 20), 0.1 * (1 - 10 / 40)))
    assert go_on(run, "eval.every_steps=9", change=True).rates is None
