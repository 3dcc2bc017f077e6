"""One local fleet at a time holds its directory, however the one before it has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.local_fleet.directory import FOLDER, LOCK, held_folder
from periplus.errors import Conflict, Denied, PeriplusError

HOLD = """
import sys
from pathlib import Path
from coordinator.local_fleet.directory import held_folder
with held_folder(Path(sys.argv[1])) as folder:
    (folder / "agent-local.log").write_text("old")
    print("held", flush=True)
    input()
"""


def test_a_second_fleet_in_a_directory_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with held_folder(tmp_path) as folder:
        (folder / "coordinator.log").write_text("x")
        with pytest.raises(Conflict, match=r"runs in .* already.*--dir"), held_folder(tmp_path):
            pytest.fail("two fleets hold it")
        assert (folder / "coordinator.log").read_text() == "x"
        with held_folder(tmp_path / "elsewhere"):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere"]


def test_the_folder_of_a_killed_fleet_is_taken_over_empty(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Conflict), held_folder(tmp_path):
        pytest.fail("two fleets hold it")
    holder.kill()
    holder.communicate()
    with held_folder(tmp_path) as folder:
        assert [path.name for path in folder.iterdir()] == [LOCK]


def test_logs_stay_after_a_failure_until_the_next_fleet(tmp_path: Path) -> None:
    def fail() -> None:
        with held_folder(tmp_path) as folder:
            (folder / "coordinator.log").write_text("why")
            raise PeriplusError("coordinator ended unexpectedly")

    with pytest.raises(PeriplusError, match="ended unexpectedly"):
        fail()
    assert (tmp_path / FOLDER / "coordinator.log").read_text() == "why"
    with held_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_agents_keep_beside_it_stays(tmp_path: Path) -> None:
    with held_folder(tmp_path) as folder:
        (folder.parent / "local").mkdir()
    assert [path.name for path in (tmp_path / ".periplus").iterdir()] == ["local"]


def test_a_directory_that_cannot_hold_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".periplus").write_text("a file")
    with pytest.raises(Denied, match="--dir"), held_folder(tmp_path):
        pytest.fail("it is held")
