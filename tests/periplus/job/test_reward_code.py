"""The user's own code of a job: which files travel, and that no others are taken later."""

from pathlib import Path

import pytest

from periplus.errors import ConfigError
from periplus.job import reward_code
from periplus.job.inputs import check_inputs
from periplus.job.job_file import JobFile, load_job
from periplus.job.reward_code import read_code

OWN = 'name: a\nenvironment: {name: chain_sum}\nreward: {functions: [{path: "my_rewards:score"}]}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my_rewards.py").write_text("score = len")
    (tmp_path / "job.yaml").write_text(OWN)
    return tmp_path / "job.yaml"


def test_the_module_beside_the_job_file_is_found_and_its_digest_fixed(file: Path) -> None:
    job = load_job(file)
    assert job.reward.code == (str(file.parent / "my_rewards.py"),)
    assert list(job.reward.code_digests) == ["my_rewards.py"]
    assert read_code(job.reward, None) == {"my_rewards.py": b"score = len"}
    assert read_code(JobFile.from_json(job.to_json()).reward, None) == read_code(job.reward, None)


def test_a_module_in_the_folder_where_the_command_runs_is_found_too(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (file.parent / "my_rewards.py").rename(elsewhere / "my_rewards.py")
    with pytest.raises(ConfigError, match=r"no my_rewards\.py or my_rewards/__init__\.py in"):
        load_job(file)
    monkeypatch.chdir(elsewhere)
    assert read_code(load_job(file).reward, None) == {"my_rewards.py": b"score = len"}


def test_a_changed_file_is_refused_later(file: Path) -> None:
    job = load_job(file)
    check_inputs(job)
    (file.parent / "my_rewards.py").write_text("import os")
    with pytest.raises(ConfigError, match=r"reward\.code has changed since the job was submitted: my_rewards\.py"):
        check_inputs(job)
    (file.parent / "my_rewards.py").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_code(job.reward, None)


def test_a_folder_travels_under_its_name_without_what_is_hidden_linked_or_no_code(file: Path) -> None:
    package = file.parent / "lib"
    for name in ("__init__.py", "deep/inner.py", ".hidden/x.py", "notes.txt", "__pycache__/x.pyc"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    (package / "linked.py").symlink_to("/etc/passwd")
    job = load_job(file, [f"reward.code=[{file.parent}/my_rewards.py, {package}]"])
    assert sorted(read_code(job.reward, None)) == ["lib/__init__.py", "lib/deep/inner.py", "my_rewards.py"]
    (package / "new.py").write_text("")
    with pytest.raises(ConfigError, match=r"has changed .*lib/new\.py"):
        read_code(job.reward, None)


def test_a_library_is_too_much(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_code, "MAX_CODE_BYTES", 5)
    with pytest.raises(ConfigError, match="more than"):
        load_job(file)


def test_two_files_of_one_name_are_refused(file: Path) -> None:
    (file.parent / "other").mkdir()
    (file.parent / "other" / "my_rewards.py").write_text("")
    with pytest.raises(ConfigError, match=r"two files that travel as my_rewards\.py"):
        load_job(file, [f"reward.code=[{file.parent}/my_rewards.py, {file.parent}/other/my_rewards.py]"])
