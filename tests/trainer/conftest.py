from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.learning import tiny_model
from tests.support.trainer.whole_run import Trainers


@pytest.fixture
def model() -> Any:
    """Return a model small enough for every test of the trainer."""
    return tiny_model()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def trainers(cache_dir: Path) -> Iterator[Trainers]:
    with Trainers(cache_dir) as trainers:
        yield trainers
