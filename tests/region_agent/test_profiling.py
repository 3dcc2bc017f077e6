"""An agent measures with child processes, keeps each figure, goes on after an interruption, and tells of failures."""

import asyncio
import stat
from pathlib import Path

import pytest

from periplus.values.machine import Machine
from periplus.values.profile import Profile
from periplus.values.task import Role
from region_agent.profiling import Profiler
from tests.support.tiny_job import tiny_job

MACHINE = Machine(name="rack-7", num_cores=2, memory_bytes=1 << 30, devices=())
ROWS = [
    '{"num_rows": 2}',
    '{"engine_start_s": 1.5}',
    '{"generation": {"num_samples": 1, "num_slots": 8, "prompt_tokens": 8, "completion_tokens": 1, "seconds": 0.1, "spread": 0}}',  # noqa: E501
    '{"versions": {"torch": "2.13"}}',
]


def interpreter(folder: Path, *lines: str, then: str = "exit 0") -> str:
    """A program in the place of a Python that measures: it notes its arguments and prints these lines."""
    path = folder / "python"
    shown = "\n".join(f"echo '{line}'" for line in lines)
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/arguments\n{shown}\n{then}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def profiler(folder: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Profiler, list[int]]:
    """A profiler both of whose processes are `python`, and how many rows it had at each change."""
    monkeypatch.setattr("region_agent.profiling.sys.executable", python)
    changes: list[int] = []
    made = Profiler(
        folder / "profiles", MACHINE, {Role.TRAINER: 1, Role.ROLLOUT: 1}, {}, lambda: changes.append(rows(made))
    )
    return made, changes


def rows(of: Profiler) -> int:
    return sum(len(each.generation) for each in of.profiles)


async def measured(of: Profiler, folder: Path) -> Profile:
    before = of.profiles
    of.order(tiny_job(folder), "")
    running = asyncio.ensure_future(of.run())
    try:
        async with asyncio.timeout(20):
            while of.profiles == before or not (of.profiles[0].is_complete or of.profiles[0].problem):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
    return of.profiles[0]


def test_each_figure_is_kept_as_it_comes_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, changes = profiler(tmp_path, interpreter(tmp_path, *ROWS), monkeypatch)
    found = asyncio.run(measured(one, tmp_path))
    assert found.is_complete
    assert found.host.engine_start_s == 1.5
    assert found.versions == {"torch": "2.13"}
    assert changes[0] == 0
    assert changes == sorted(changes)
    again, _ = profiler(tmp_path, "", monkeypatch)
    assert again.profiles == one.profiles, "the next agent has what was measured"


def test_an_interrupted_profile_goes_on_with_the_rows_that_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = interpreter(tmp_path, *ROWS, '{"problem": "no memory"}', then="exit 2")
    found = asyncio.run(measured(profiler(tmp_path, broken, monkeypatch)[0], tmp_path))
    assert (found.is_complete, len(found.generation)) == (False, 1)
    assert found.problem.endswith("ended with exit code 2: no memory")
    one, _ = profiler(tmp_path, interpreter(tmp_path, '{"num_rows": 2}'), monkeypatch)
    found = asyncio.run(measured(one, tmp_path))
    assert (found.is_complete, found.problem, len(found.generation)) == (True, "", 1)
    words = (tmp_path / "arguments").read_text().split("\n")
    assert [line.rpartition(" ")[2] for line in words if "rollout_worker" in line] == ["0", "1"]


def test_a_figure_that_is_out_of_range_ends_the_measurement_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = interpreter(tmp_path, *ROWS, '{"load_s": -1}', then="sleep 60")
    found = asyncio.run(measured(profiler(tmp_path, wrong, monkeypatch)[0], tmp_path))
    assert "load_s" in found.problem
    assert found.host.load_s == 0.0
    assert Profile.from_json(found.to_json()) == found, "a coordinator can read it"


def test_a_file_that_is_no_profile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "x.json").write_text("{}")
    assert profiler(tmp_path, "", monkeypatch)[0].profiles == ()


@pytest.mark.parametrize(
    "line", ["Fetching 3 files", "[1, 2]", '{"num_rows": "many"}', '{"a": 1, "b": 2}', '{"new": 1}']
)
def test_a_line_that_is_no_result_ends_the_measurement_and_not_the_agent(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.run(measured(profiler(tmp_path, interpreter(tmp_path, *ROWS, line), monkeypatch)[0], tmp_path))
    assert found.problem
    assert len(found.generation) == 1


def test_a_process_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region_agent.profiling.SILENT_S", 0.2)
    found = asyncio.run(
        measured(profiler(tmp_path, interpreter(tmp_path, *ROWS, then="sleep 60"), monkeypatch)[0], tmp_path)
    )
    assert found.problem == "rollout_worker.profile said nothing for 0 s, and was ended"
