"""What a job is told of its reward functions and its environment before it is submitted."""

import json
from pathlib import Path
from typing import Any

import pytest

from periplus.job.job_file import load_job
from rollout_worker.rewards import check

pytestmark = pytest.mark.processes

OWN = """
def fine(prompts, completions, completion_ids, trainer_state, answer, level, **columns):
    assert trainer_state.global_step == 0
    return [len(ids) + float(each) for ids, each in zip(completion_ids, level)]
def raises(completions):
    raise ValueError("the judge is out")
def needs(completions, difficulty):
    return [0.0]
def judges(completions, answer):
    return [0.0]
def text(completions):
    return ["good"]
def short(completions):
    return []
def nan(completions):
    return [float("nan")]

class Game:
    def __init__(self, how):
        self.how = how
    def reset(self, item):
        return 5 if self.how == "no messages" else None
    def step(self, completion):
        if self.how == "raise":
            raise ValueError("no move")
        return (None, "1", True) if self.how == "text" else (None, 0.5, True)
"""


def tried(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: Any = None, **sections: Any) -> dict[str, Any]:
    rows = rows or [{"prompt": "1+1=", "answer": "22", "level": 3}]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "own.py").write_text(OWN)
    job = {"name": "a", "data": {"path": str(folder / "rows.jsonl")}, "eval": {"num_prompts": 1}, **sections}
    (folder / "job.yaml").write_text(json.dumps(job))
    monkeypatch.chdir(folder)
    return check.answer(load_job(folder / "job.yaml").to_json())


def test_a_function_in_the_style_of_trl_gets_all_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tried(tmp_path, monkeypatch, reward={"functions": [{"path": "own:fine"}]})
    assert said == {"tried": [{"label": "own:fine", "weight": 1.0, "value": 5.0}]}


def test_a_function_that_needs_answers_refuses_data_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": "1+1=", "truth": "2"}]
    said = tried(tmp_path, monkeypatch, rows, reward={"functions": [{"path": "own:judges"}]})
    assert "the data set has no answers (it has the columns prompt, truth)" in said["message"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "own:raises raised ValueError: the judge is out (line 6 of own.py)"),
        ("needs", "own:needs needs the argument difficulty, which is no column of the data set (it has level)"),
        ("text", "own:text raised TypeError: 'good' is no number"),
        ("short", "own:short returned 0 values for 1 completions"),
        ("nan", "own:nan gave nan; a reward is a number from -1000000 to 1000000"),
    ],
)
def test_a_function_that_fails_on_the_first_answer_refuses_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    said = tried(tmp_path, monkeypatch, reward={"functions": [{"path": f"own:{name}"}]})
    assert said["reason"] == ("FUNCTION_REFUSED" if name == "needs" else "CONFIG_ERROR")
    assert message in said["message"]


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (None, "the column 'tests', which the data set does not have (it has level)"),
        ("[]", "problem 0: the problem's column 'tests' holds '[]', but must be a list of statements"),
        ([1], "problem 0: the problem's column 'tests' holds '[1]', but must be a list of statements"),
    ],
)
def test_tests_that_are_none_refuse_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: Any, message: str
) -> None:
    row = {"prompt": "1+1=", "answer": "2", "level": 3} | ({} if tests is None else {"tests": tests})
    said = tried(tmp_path, monkeypatch, [row, row], reward="code")
    assert message in said["message"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "raised ValueError: no move (line "),
        ("text", "raised TypeError: step returned the reward '1', which is no number"),
        ("no messages", "raised TypeError: 5 stands for messages"),
    ],
)
def test_an_environment_that_fails_in_its_first_turn_refuses_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, message: str
) -> None:
    environment = {"path": "own:Game", "config": {"how": how}}
    assert message in tried(tmp_path, monkeypatch, environment=environment)["message"]


def test_the_reward_of_a_turn_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"path": "own:Game", "config": {"how": "fine"}}
    (said,) = tried(tmp_path, monkeypatch, environment=environment)["tried"]
    assert said == {"label": "environment.path own:Game", "weight": 1.0, "value": 0.5}
