"""Tests of the checks of a job's inputs, which the submitting command and the starting trainer share."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.preflight import check_job
from periplus.environment.gym_tasks import load
from periplus.environment.prompts import PromptEncoder
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile, load_job
from periplus.values.record import RecordKind
from periplus.values.task import Role
from periplus.values.weight_state import SINGLE_FILE, read_safetensors, write_safetensors
from tests.support.coordinator.preflight import check_in_this_process
from tests.support.tiny_job import task_of, tiny_job
from trainer.config import TrainerConfig
from trainer.data.model import build_tokenizer, resolve_model_dir
from trainer.preflight import CharacterTokenizer, answer
from trainer.setup import prepare

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
# The reward model of preference.yaml is made first: tests/integration/test_examples.py.
EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.yaml") if path.name != "preference.yaml"
)


def broken_model(folder: Path) -> Path:
    whole = resolve_model_dir("builtin:qwen3-tiny", folder / "cache", 0)
    directory = Path(shutil.copytree(whole, folder / "broken"))
    state = dict(read_safetensors(directory))
    del state["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(directory / SINGLE_FILE, state)
    return directory


def bad_rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text('{"prompt": "1?", "solution": "2"}\n{"prompt": ["1?"], "solution": "2"}\n{"prompt": "1?"}\n')
    return path


def refused_job(folder: Path, case: str) -> JobFile:
    job = tiny_job(folder)
    match case:
        case "weights":
            return job.model_copy(update={"model": job.model.model_copy(update={"path": str(broken_model(folder))})})
        case "rows":
            return job.model_copy(update={"data": job.data.model_copy(update={"path": str(bad_rows(folder))})})
        case "prompts":
            return job.model_copy(update={"sampling": job.sampling.model_copy(update={"prompt_tokens": 2})})
        case _:
            return job.model_copy(update={"eval": job.eval.model_copy(update={"num_prompts": 40})})


CASES = [
    ("weights", "model.layers.1.mlp.up_proj.weight"),
    ("rows", ":2 has a message in prompt that is"),
    ("prompts", "set sampling.prompt_tokens="),
    ("few", "eval.num_prompts"),
]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_this_process(monkeypatch)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("case", "words"), CASES)
def test_the_trainer_and_the_command_refuse_a_job_with_the_same_words(tmp_path: Path, case: str, words: str) -> None:
    check_refusal(tmp_path, case, words)


# The child of the first case imports torch and transformers.
@pytest.mark.parametrize(("case", "words"), [pytest.param(*CASES[0], marks=pytest.mark.slow), *CASES[1:]])
def test_the_child_of_the_command_says_the_same(tmp_path: Path, case: str, words: str) -> None:
    check_refusal(tmp_path, case, words)


def check_refusal(tmp_path: Path, case: str, words: str) -> None:
    job = refused_job(tmp_path, case)
    with pytest.raises(ConfigError) as by_command:
        check_job(job)
    task = task_of(job, Role.TRAINER, tmp_path)
    config = TrainerConfig(task=task, job=job, cache_dir=tmp_path / "cache", resume_from=None)
    said: list[str] = []

    def say(kind: RecordKind, text: str, values: dict[str, float]) -> None:
        said.append(text)

    with pytest.raises(ConfigError) as by_trainer:
        prepare(config, say, lambda: 0.0)
    assert words in str(by_command.value)
    assert str(by_trainer.value) == str(by_command.value)
    assert said == ["checking model, data and environment"], "nothing was loaded"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_pass(path: Path) -> None:
    assert check_job(load_job(path)).left == ()


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("environment.name=spell_backwards", "did you mean spell_backward"),
        ("environment.config.min_wordlen=3", "did you mean environment.config.min_word_len?"),
        ("environment.config.min_word_len=9", "change environment.config"),
        ("environment.config.min_word_len=a", "change environment.config"),
        ("environment.config.min_word_len=null", "change environment.config"),
        ("sampling.prompt_tokens=6", "set sampling.prompt_tokens=7"),
        ("sampling.max_new_tokens=600", "has only 512 positions"),
        ("eval.num_prompts=9900", "set data.size higher"),
    ],
)
def test_what_does_not_fit_the_environment_is_refused_before_the_job_is_sent(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_job(load_job(Path("examples/spelling.yaml").absolute(), [override]))
    assert words in str(refused.value)


def test_the_light_tokenizer_is_the_built_in_models_own() -> None:
    light, whole = CharacterTokenizer(), build_tokenizer()
    for task in ("spell_backward", "chain_sum", "gcd", "letter_counting"):
        environment = load(task, {}, seed=0, size=50)
        for index in range(50):
            item = environment.item(index)
            assert PromptEncoder(tokenizer=light).encode(item) == PromptEncoder(tokenizer=whole).encode(item)


def test_a_slow_environment_is_checked_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trainer.preflight.BUDGET_S", 0.0)
    found: dict[str, Any] = answer(tiny_job(tmp_path).to_json())
    assert (found["prompts"], found["problems"]) == (1, 40)
    assert (found["first_prompt"], found["framing"]) == ("0?", "plain text, without a chat template")


@pytest.mark.parametrize(("number", "words"), [(9, "killed by signal 9"), (24, "used up its processor time")])
def test_a_child_that_is_killed_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, words: str
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\ncat > /dev/null\nkill -{number} $$\n")
    fake.chmod(0o755)
    monkeypatch.setattr("coordinator.client.preflight.sys.executable", str(fake))
    with pytest.raises(ConfigError, match=words):
        check_job(tiny_job(tmp_path))


def test_a_problem_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    job = load_job(EXAMPLES[0], ["environment={name: chain_sum, config: {min_terms: 99999999, max_terms: 99999999}}"])
    code = "import trainer.preflight as p; p.LIMIT_S = 2; p.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=job.to_json(), text=True, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGXCPU
    assert not done.stdout


def test_a_folder_of_the_same_name_where_the_command_runs_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "preflight.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    assert check_job(tiny_job(tmp_path)).left == ()


def test_without_the_trainers_libraries_the_rest_is_left_to_the_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("coordinator.client.preflight.importlib.util.find_spec", lambda name: None)
    (left,) = check_job(tiny_job(tmp_path)).left
    assert "tokenizers is not installed here" in left
    with pytest.raises(ConfigError, match="not a directory"):
        check_job(tiny_job(tmp_path, model={"path": str(tmp_path / "absent")}))


def test_the_answer_of_the_child_is_one_line(tmp_path: Path) -> None:
    assert "reason" in answer("{}")
    assert "\n" not in json.dumps(answer(tiny_job(tmp_path).to_json()))


@pytest.mark.usefixtures("in_this_process")
def test_a_dry_run_counts_what_is_left_out_and_a_job_that_loses_most_is_warned_of(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    rows = [{"prompt": "9" * (3 + (n > 15) * 9) + f"{n}", "level": n % 2} for n in range(80)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {
        "path": str(tmp_path / "rows.jsonl"),
        "drop_long_prompts": True,
        "filters": [{"column": "level", "at_most": 0}],
    }
    section = type(job.data).model_validate_json(json.dumps(data))
    eval_ = job.eval.model_copy(update={"num_prompts": 2})
    checked = check_job(job.model_copy(update={"data": section, "eval": eval_}))
    counts = (
        "6 problems to train on, 2 held out; left out: 40 rows by filters, 32 of 40 problems (80%) with prompts longer "
        "than sampling.prompt_tokens=8"
    )
    assert checked.left == (f"warning: most problems are not used: {counts}",)
    assert checked.shown[1] == counts
    assert "80 rows read, 40 left out by filters" in checked.shown[0]
