"""A job whose tracker is not installed is refused, by the command and by the trainer, in the same words."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from periplus.errors import ConfigError, meaning
from tests.support.tiny_job import tiny_job
from trainer.preflight import answer, checked_inputs
from trainer.tracking.packages import check_trackers

WORDS = "output.trackers has wandb, but the package wandb is not installed here; pip install 'periplus[wandb]'"


@pytest.fixture
def without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def find_others(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "wandb" else find(name, package)

    monkeypatch.setattr("trainer.tracking.packages.importlib.util.find_spec", find_others)


@pytest.mark.usefixtures("without_wandb")
def test_a_job_whose_tracker_is_missing_is_refused_with_the_extra_to_install(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, output={"trackers": ("tensorboard", "wandb")})
    with pytest.raises(ConfigError) as refused:
        checked_inputs(job, None)
    assert WORDS in str(refused.value)
    assert meaning(refused.value).exit_code == 2
    assert WORDS in answer(job.to_json())["message"]


@pytest.mark.usefixtures("without_wandb")
def test_only_the_trackers_of_the_job_are_needed() -> None:
    check_trackers(())
    check_trackers(["tensorboard"])
