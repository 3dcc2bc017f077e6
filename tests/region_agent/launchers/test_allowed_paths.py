"""Runs lie only below the directories that the operator of a region allows."""

from pathlib import Path

import pytest

from periplus.errors import Denied
from region_agent.launchers.allowed_paths import check_run_path


def test_paths_below_a_root_are_allowed_also_if_the_root_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "disk")
    for path in (tmp_path / "work" / "runs" / "j", tmp_path / "disk" / "runs" / "j", tmp_path / "more" / "j"):
        check_run_path(path, (tmp_path / "work", tmp_path / "more"))


@pytest.mark.parametrize("path", ["work/../else/j", "else/j", "workshop/j", "work/out/j", "/etc/j"])
def test_any_other_path_is_refused_by_name_with_the_roots(tmp_path: Path, path: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "out").symlink_to(tmp_path / "else")
    with pytest.raises(Denied, match="--allow-dir") as raised:
        check_run_path(tmp_path / path, (tmp_path / "work",))
    assert str(tmp_path / path) in str(raised.value)
    assert str(tmp_path / "work") in str(raised.value)
