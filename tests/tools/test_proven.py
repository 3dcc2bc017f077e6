"""A tier is left out only while every file that it looks at is what it was when the tier passed."""

import shutil
from pathlib import Path

import pytest

from tools.proven import ALWAYS, RECORD, ROOT, SUBJECTS, files, note, since

ORACLE = "oracle"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what the oracle's tier looks at, which has just passed."""
    for path in files(ROOT, ORACLE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / RECORD).parent.mkdir()
    note(tmp_path, ORACLE, "2026-01-02", "abc1234")
    return tmp_path


@pytest.mark.parametrize("tier", SUBJECTS)
def test_every_subject_exists(tier: str) -> None:
    assert len(set(files(ROOT, tier))) > len({*ALWAYS, *SUBJECTS[tier]})


def test_a_tier_that_passed_is_left_out_and_says_since_when(tree: Path) -> None:
    assert since(tree, ORACLE) == "commit abc1234, 2026-01-02"


def test_a_tier_without_a_record_runs(tree: Path) -> None:
    (tree / RECORD).unlink()
    assert since(tree, ORACLE) is None
    (tree / RECORD).write_text("oracle\n")
    assert since(tree, ORACLE) is None


def test_any_changed_new_or_removed_file_runs_it_again(tree: Path) -> None:
    for path in ("constraints.txt", "trainer/learning/losses/grpo.py", "tests/oracle/test_trl.py", "pyproject.toml"):
        before = (tree / path).read_bytes()
        (tree / path).write_bytes(before + b"\n")
        assert since(tree, ORACLE) is None, path
        (tree / path).write_bytes(before)
        assert since(tree, ORACLE) is not None
    (tree / "trainer/learning/new.py").write_bytes(b"")
    assert since(tree, ORACLE) is None
    (tree / "trainer/learning/new.py").unlink()
    (tree / "trainer/learning/losses/grpo.py").rename(tree / "trainer/learning/losses/grpo2.py")
    assert since(tree, ORACLE) is None


def test_what_python_writes_beside_the_files_changes_nothing(tree: Path) -> None:
    (tree / "trainer/learning/__pycache__").mkdir()
    (tree / "trainer/learning/__pycache__/x.pyc").write_bytes(b"x")
    assert since(tree, ORACLE) is not None
