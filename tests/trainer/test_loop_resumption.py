"""A run that was stopped or killed goes on from its checkpoint in a new fork, to the same bits if it is synchronous."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.run_directory import RunDirectory
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.task import TaskState
from tests.support.audit.files import audited
from tests.support.processes.dying import GONE, in_a_child
from tests.support.tiny_job import NUM_PROBLEMS
from tests.support.trainer.whole_run import Run, Trainers
from trainer.checkpointing import checkpoint
from trainer.data.problem_digests import DIVISION
from trainer.setup import prepare

KILLED: dict[str, Any] = {"steps": 3, "checkpoint": {"every_steps": 1, "keep": 2}, "eval": {"num_prompts": 4}}


def test_a_stopped_run_saves_and_a_resumed_one_goes_on_from_there_in_the_next_fork(
    tmp_path: Path, trainers: Trainers
) -> None:
    stopped = trainers.start(tmp_path / "a", steps=3).finish(stop_after=1)
    assert stopped.state is TaskState.STOPPED
    assert not stopped.of_kind(RecordKind.SUMMARY)
    assert checkpoint.newest(stopped.run_dir / "checkpoints").policy == Policy(0, 1)

    resumed = trainers.start(tmp_path / "b", steps=3, fork=1, resume_from=stopped.run_dir)
    assert resumed.model_digest == stopped.digest, "it continues with what readers last held"
    resumed.finish()
    assert resumed.state is TaskState.SUCCEEDED
    assert [record.policy for record in resumed.of_kind(RecordKind.STEP)] == [Policy(1, 2), Policy(1, 3)]
    assert resumed.summary["steps"] == 3
    assert resumed.summary["accuracy_before"] == stopped.of_kind(RecordKind.EVAL)[0].values["accuracy"]
    assert resumed.digest == trainers.train(tmp_path / "whole", steps=3).digest, "as if it had never stopped"


@pytest.mark.parametrize(("at_resumption", "at_end", "in_all"), [(120, 150, 150), (0, 50, 150)])
def test_a_resumed_run_sums_the_bytes_between_regions_also_over_a_gateway_that_restarted(
    tmp_path: Path, trainers: Trainers, at_resumption: int, at_end: int, in_all: int
) -> None:
    stopped = trainers.start(tmp_path / "a", steps=2)
    stopped.link.wan_bytes_counted = 100
    stopped.finish(stop_after=1)
    resumed = trainers.start(tmp_path / "b", steps=2, fork=1, resume_from=stopped.run_dir)
    resumed.link.wan_bytes_counted = at_resumption

    def count_on(record: Record) -> None:
        resumed.link.wan_bytes_counted = at_end

    resumed.link.on_record = count_on
    asyncio.run(resumed.serve(asyncio.Event()))
    resumed.opened.close()
    [summary] = [r for r in RunDirectory(tmp_path / "b" / "run").records() if r.kind is RecordKind.SUMMARY]
    assert summary.values["wan_bytes"] == in_all


def dies(folder: Path, cache_dir: Path, at: int, settings: dict[str, Any]) -> None:
    """Train, until the process is gone without a word at its `at`-th message to its gateway."""
    run, calls = Trainers(cache_dir).start(folder, **settings), count(1)

    def tick(*_: object) -> None:
        if next(calls) == at:
            os._exit(GONE)

    run.link.before_each = tick
    run.finish()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Callable[[int], tuple[int, Run]]:
    """Return, by its bound on staleness, the number of messages of a run that nobody kills, and the run."""

    @cache
    def run_of(staleness: int) -> tuple[int, Run]:
        with Trainers(cache_dir) as trainers:
            return trainers.messages_of(tmp_path_factory.mktemp("whole"), **KILLED, staleness=staleness)

    return run_of


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.25, 0.4, 0.55, 0.7, 0.85, 0.97])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_trainer_killed_anywhere_resumes_in_a_new_fork_and_the_audit_is_clean(
    tmp_path: Path, trainers: Trainers, whole_run: Callable[[int], tuple[int, Run]], staleness: int, share: float
) -> None:
    settings = KILLED | {"staleness": staleness}
    num_messages, whole = whole_run(staleness)
    folder = tmp_path / "killed"
    code = in_a_child(dies, folder, trainers.cache_dir, max(1, int(num_messages * share)), settings)
    assert code == GONE, "it ended before it could be killed"
    run_dir = folder / "run"
    if not list((run_dir / "checkpoints").glob("*/manifest.json")):
        assert audited(run_dir).findings == (), "killed before there was anything to resume"
        return

    resumed = trainers.start(folder, fork=1, resume_from=run_dir, **settings).finish()

    assert resumed.state is TaskState.SUCCEEDED
    assert resumed.summary["steps"] == 3
    assert resumed.summary["staleness_violations"] == 0
    assert audited(run_dir).findings == ()
    if staleness == 0:
        assert resumed.digest == whole.digest, "not a bit differs from the run that was never killed"


def test_checkpoints_come_as_often_as_asked_and_the_last_step_has_one(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", steps=3, checkpoint={"every_steps": 1, "keep": 2})
    root = run.run_dir / "checkpoints"
    assert sorted(path.name for path in root.iterdir()) == ["0.2", "0.3"]


def test_the_task_of_a_resumed_run_names_its_fork(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.start(tmp_path / "a")
    task = replace(run.config.task, fork=4)
    config = replace(run.config, task=task)
    assert prepare(config, lambda *_: None, lambda: 0.0).policy == Policy(4, 0)


def test_critic_reference_and_their_optimizers_survive_a_resume(tmp_path: Path, trainers: Trainers) -> None:
    settings: dict[str, Any] = {
        "steps": 3,
        "algorithm": {"name": "ppo", "group_size": 8, "kl_coefficient": 0.1},
        "train": {"groups_per_step": 4, "minibatches": 2, "epochs": 2},
    }
    stopped = trainers.start(tmp_path / "a", **settings).finish(stop_after=1)
    resumed = trainers.start(tmp_path / "b", fork=1, resume_from=stopped.run_dir, **settings)
    assert resumed.finish().digest == trainers.train(tmp_path / "whole", **settings).digest


def test_a_run_whose_data_file_has_grown_is_refused_by_name_and_counts_before_its_weights_are_read(
    tmp_path: Path, trainers: Trainers
) -> None:
    stopped = trainers.start(tmp_path / "a", steps=3).finish(stop_after=1)
    with pytest.raises(ConfigError, match=r"grown\.jsonl had 40 problems \(blake3 .*\) and has 41 problems") as raised:
        trainers.start(tmp_path / "a", steps=3, fork=1, resume_from=stopped.run_dir, data=grown(tmp_path))
    assert "--change" in str(raised.value)
    assert DIVISION in str(raised.value), "other problems are held out now"


def test_a_run_goes_on_with_other_problems_if_that_is_allowed_and_says_so_ever_after(
    tmp_path: Path, trainers: Trainers
) -> None:
    folder = tmp_path / "a"
    stopped = trainers.start(folder, steps=3).finish(stop_after=1)
    how: dict[str, Any] = {"steps": 3, "resume_from": stopped.run_dir, "data": grown(tmp_path)}
    trainers.start(folder, fork=1, allows_other_problems=True, **how).finish(stop_after=2)
    resumed = trainers.start(folder, fork=2, **how).finish()
    assert resumed.summary["changes_of_problems"] == 1
    report = audited(folder / "run")
    assert report.findings == ()
    assert [note for note in report.notes if note.startswith("fork 1 has other problems")]
    opened = [line["other_problems"] for line in resumed.journal() if line["kind"] == "open"]
    assert opened == [False, True, False]


def test_a_data_file_that_was_moved_holds_the_same_problems(tmp_path: Path, trainers: Trainers) -> None:
    stopped = trainers.start(tmp_path / "a", steps=2).finish(stop_after=1)
    moved = (tmp_path / "a" / "problems.jsonl").rename(tmp_path / "moved.jsonl")
    data = {"path": str(moved), "solution_column": "solution"}
    resumed = trainers.start(tmp_path / "b", steps=2, fork=1, resume_from=stopped.run_dir, data=data)
    assert resumed.finish().summary["changes_of_problems"] == 0


def grown(folder: Path) -> dict[str, str]:
    """Return the data section of a file with one problem more than the tiny job has."""
    lines = [json.dumps({"prompt": f"{number}?", "solution": "a"}) for number in range(NUM_PROBLEMS + 1)]
    (folder / "grown.jsonl").write_text("\n".join(lines))
    return {"path": str(folder / "grown.jsonl"), "solution_column": "solution"}
