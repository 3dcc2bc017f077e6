"""`~` and environment variables in the paths of a job."""

from pathlib import Path
from typing import Any

import pytest

from periplus.config.local_paths import expanded_path, home_folder
from periplus.errors import ConfigError
from periplus.job.job_file import changed_job, job_of, load_job

VARIABLES = {"DATA": "/data", "RUN_1": "one", "EMPTY": ""}


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~", "/home/me"),
        ("~/runs", "/home/me/runs"),
        ("a/~/b", "a/~/b"),
        ("runs", "runs"),
        ("${DATA}/x", "/data/x"),
        ("$DATA/${RUN_1}_$RUN_1", "/data/one_one"),
        ("cost$5", "cost$5"),
        ("~/$RUN_1", "/home/me/one"),
    ],
)
def test_paths_are_expanded_as_a_shell_does(monkeypatch: pytest.MonkeyPatch, path: str, expanded: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded_path(path, "output.dir", VARIABLES) == expanded


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("$SCRATCH/runs", "data.path is '.SCRATCH/runs', but the environment variable 'SCRATCH' is not set here"),
        ("${EMPTY}/runs", "'EMPTY' is not set here, or is empty; set it, or write the path out"),
        ("${DATA:-x}", "variable 'DATA:-x' is not set"),
        ("~no-such-user/x", "data.path is '~no-such-user/x', but this machine knows no such user"),
    ],
)
def test_what_cannot_be_expanded_is_named(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        expanded_path(path, "data.path", VARIABLES)


def test_a_path_that_exists_under_its_odd_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a$b", "~draft.jsonl"):
        (tmp_path / name).touch()
    assert expanded_path(str(tmp_path / "a$b"), "data.path", {}) == str(tmp_path / "a$b")
    assert expanded_path("~draft.jsonl", "data.path", {}) == "~draft.jsonl"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    (tmp_path / "mine.py").write_text("def score(): ...\nclass Game: ...\n")
    (tmp_path / "rm").mkdir()
    (tmp_path / "rm" / "config.json").write_text("{}")
    return tmp_path


def test_every_path_of_a_job_is_expanded_where_it_is_submitted(home: Path) -> None:
    rewards = [{"name": "model", "path": "$PLACE/rm"}, {"path": "mine:score"}]
    tree: dict[str, Any] = {
        "name": "j",
        "model": {"path": "~/model", "chat_template": "${PLACE}/template.jinja"},
        "data": {"sources": [{"path": "~/a.jsonl"}, {"path": "$PLACE/b.jsonl"}]},
        "eval": {"sets": {"s": {"data": {"path": "${PLACE}/c.jsonl"}}}},
        "reward": {"functions": rewards, "code": ["~/mine.py"]},
        "output": {"dir": "~/runs"},
    }
    job = job_of(tree)
    found = [job.model.path, *(str(each.path) for each in job.data.sources), *job.reward.code, job.output.dir]
    assert found == [str(home / name) for name in ("model", "a.jsonl", "b.jsonl", "mine.py", "runs")]
    assert job.model.chat_template == "{{ messages }}"
    assert getattr(job.reward.functions[0], "path") == str(home / "rm")  # noqa: B009
    (data,) = [each.data for each in job.eval.sets.values()]
    assert data is not None
    assert data.path == str(home / "c.jsonl")


def test_the_code_of_an_environment_and_a_single_data_set_are_expanded(home: Path) -> None:
    tree = {
        "name": "j",
        "data": {"path": "~/a.jsonl"},
        "environment": {"path": "mine:Game", "code": ["$PLACE/mine.py"]},
    }
    job = job_of(tree)
    assert job.environment is not None
    assert (job.data.path, job.environment.code) == (str(home / "a.jsonl"), (str(home / "mine.py"),))
    assert job.output.dir == "runs"


def test_a_resumed_run_keeps_a_directory_that_was_not_expanded_when_it_began(home: Path) -> None:
    file = home / "job.yaml"
    file.write_text("name: j\ndata: {path: a.jsonl}\noutput: {dir: ~/runs}\n")
    job = load_job(file)
    assert changed_job(job, file, ["steps=3"]).output.dir == job.output.dir == str(home / "runs")
    before = job.model_copy(update={"output": job.output.model_copy(update={"dir": "~/runs"})})
    assert changed_job(before, None, ["steps=3"]).output.dir == "~/runs"


@pytest.mark.parametrize(("text", "value"), [("True", True), ("FALSE", False)])
def test_a_job_may_spell_true_as_python_does_and_a_word_for_it_is_refused(home: Path, text: str, value: bool) -> None:
    file = home / "job.yaml"
    file.write_bytes(f"name: j\ndata: {{path: a.jsonl}}\ntrain: {{filter_groups: {text}}}\n".encode("utf-8-sig"))
    assert load_job(file).train.filter_groups is value
    with pytest.raises(ConfigError, match=r'train.filter_groups is "yes", but must be true or false'):
        load_job(file, ["train.filter_groups=yes"])
    file.write_bytes(file.read_bytes().decode("utf-8-sig").encode("utf-16"))
    with pytest.raises(ConfigError, match="save the file as UTF-8"):
        load_job(file)


def test_a_user_without_a_home_has_a_folder_that_nobody_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert home_folder() == Path.home()
    monkeypatch.setattr(Path, "home", home)
    assert not home_folder().exists()
