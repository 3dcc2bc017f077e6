from pathlib import Path

import pytest

from tests.support.audit.files import copy_run
from tests.support.audit.history import honest_run


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; never written to."""
    root = tmp_path_factory.mktemp("honest") / "run"
    honest_run(root)
    return root


@pytest.fixture(scope="session")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has lines of every kind; never written to."""
    root = tmp_path_factory.mktemp("pruned") / "run"
    honest_run(root, prune=True)
    return root


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return copy_run(honest, tmp_path / "run")
