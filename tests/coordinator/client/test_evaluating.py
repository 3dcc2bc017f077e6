"""The job that `periplus eval` submits: the sets that its arguments name, and what it takes of another job."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.client.evaluating import OVERRIDE, evaluation_tree
from periplus.errors import ConfigError
from periplus.job.job_file import job_of

NOTHING: dict[str, Any] = {"samples": None, "num_prompts": None, "sampling": None}


def test_sets_are_files_tasks_and_those_of_the_job(tmp_path: Path) -> None:
    file = tmp_path / "Own problems.jsonl"
    file.write_text('{"prompt": "1+1", "answer": 2}\n')
    known = {"test": {"data": {"path": str(file)}, "samples": 4, "every_steps": 50, "sampling": {"temperature": 0.6}}}
    base = {"eval": {"sets": known}, "reward": {"name": "math"}, "optimizer": {"lr": 1.0}, "model": {"path": "x"}}
    tree = evaluation_tree("builtin:qwen3-tiny", ["test", str(file), "chain_sum"], base, NOTHING)
    assert tree["eval"]["sets"] == {
        "test": {"data": {"path": str(file)}, "samples": 4, "sampling": {"temperature": 0.6}},
        "own-problems": {"data": {"path": str(file)}},
        "chain_sum": {"environment": {"name": "chain_sum"}},
    }
    assert (tree["model"]["path"], tree["reward"], "optimizer" in tree) == (
        "builtin:qwen3-tiny",
        {"name": "math"},
        False,
    )
    job = job_of(tree, ["eval.sets.chain_sum.num_prompts=3"])
    assert job.evaluates_alone
    assert job.eval.sets["chain_sum"].num_prompts == 3


def test_options_change_all_sets_and_a_run_is_its_final_model(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    sampled = {"samples": 2, "num_prompts": 9, "sampling": 0.7}
    tree = evaluation_tree(str(tmp_path), ["chain_sum", "chain_sum"], {}, sampled)
    assert tree["model"]["path"] == str(tmp_path / "final")
    assert list(tree["eval"]["sets"]) == ["chain_sum", "chain_sum-2"]
    assert tree["eval"]["sets"]["chain_sum"] == {
        "environment": {"name": "chain_sum"},
        "samples": 2,
        "num_prompts": 9,
        "sampling": {"temperature": 0.7},
    }


def test_an_evaluation_without_a_set_or_with_held_out_problems_is_refused() -> None:
    with pytest.raises(ConfigError, match="no evaluation set is given"):
        evaluation_tree("m", [], {}, NOTHING)
    with pytest.raises(ConfigError, match="holds none out; give it data or an environment"):
        job_of({"name": "eval", "steps": 0, "eval": {"sets": {"own": {"samples": 1}}}})


@pytest.mark.parametrize(
    ("word", "is_key"), [("sampling.max_new_tokens=5", True), ("a/b", False), ("chain_sum", False)]
)
def test_arguments_with_a_key_are_no_sets(word: str, is_key: bool) -> None:
    assert bool(OVERRIDE.match(word)) is is_key
