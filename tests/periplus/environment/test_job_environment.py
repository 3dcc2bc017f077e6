"""Which parts of a job decide that its data needs answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from periplus.environment.job_environment import trainer_environment
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile

WITHOUT_ANSWERS: list[Any] = [
    {"functions": [{"name": "format"}, {"name": "length", "target": 1, "max": 2}, {"name": "code"}]},
    {"functions": [{"name": "regex", "pattern": "x"}, {"name": "model", "path": "rm"}, {"path": "mine:score"}]},
]
WITH_ANSWERS: list[Any] = [
    {"name": "verifier"},
    {"name": "math"},
    {"functions": [{"name": "format"}, {"name": "exact"}]},
    {"functions": [{"name": "regex", "pattern": "(x)", "group": 1}]},
]


def job(folder: Path, reward: Any, **keys: Any) -> JobFile:
    path = folder / "data.jsonl"
    path.write_text('{"prompt": "a", "gold": "x"}\n')
    data = {"path": str(path)}
    tree = {"name": "j", "data": data, "reward": reward, "eval": {"sets": {"other": {"data": data}}}, **keys}
    return JobFile.model_validate_json(json.dumps(tree))


@pytest.mark.parametrize("reward", WITHOUT_ANSWERS)
def test_a_data_set_needs_no_answers_if_no_reward_function_reads_them(tmp_path: Path, reward: Any) -> None:
    made = trainer_environment(job(tmp_path, reward))
    assert made.environment.item(0).answer == ""
    assert "prompt from the first of" in made.read[0]
    assert "no answers" in made.read[0]
    with pytest.raises(ConfigError, match="needed: prompt, and answer"):
        trainer_environment(job(tmp_path, reward, train={"warmup": {"num_examples": 1}}))


@pytest.mark.parametrize("reward", WITH_ANSWERS)
def test_a_data_set_needs_answers_if_a_reward_function_reads_them(tmp_path: Path, reward: Any) -> None:
    with pytest.raises(ConfigError, match="needed: prompt, and answer"):
        trainer_environment(job(tmp_path, reward))


def test_an_environment_of_the_users_own_needs_no_answers(tmp_path: Path) -> None:
    made = trainer_environment(job(tmp_path, {"name": "verifier"}, environment={"path": "mine:Game"}))
    assert made.environment.item(0).answer == ""
