from pathlib import Path

import pytest

from tests.support.audit.files import copy_run
from tests.support.audit.history import honest_run


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a finished run once, which no test may change."""
    root = tmp_path_factory.mktemp("honest") / "run"
    honest_run(root)
    return root


@pytest.fixture(scope="session")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a finished run with lines of every kind once, which no test may change."""
    root = tmp_path_factory.mktemp("pruned") / "run"
    honest_run(root, prune=True)
    return root


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run, to be damaged."""
    return copy_run(honest, tmp_path / "run")
