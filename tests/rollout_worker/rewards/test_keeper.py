"""Keepers of real reward processes: nothing that a function has started gets away from them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import RewardCrashed, RewardTimedOut
from rollout_worker.rewards.keeper import descendants
from tests.support.processes.fake_engine import is_alive, wait_for
from tests.support.processes.rewards import Answered, play, reward, scores, scoring

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[3]

STARTING = """
import os, subprocess, time
from pathlib import Path
def score(completions):
    # Twice: one that leaves the session, and one whose parent has ended too.
    subprocess.Popen("sleep 600 & echo $! >> pids; echo $$ >> pids; exec sleep 600", shell=True, start_new_session=True,
                     cwd=os.path.dirname(__file__))
    while not (pids := Path(__file__).with_name("pids")).exists() or pids.read_text().count("\\n") < 2:
        time.sleep(0.01)
    match completions[0]:
        case "hang": time.sleep(600)
        case "crash": os._exit(3)
        case "segv": os.kill(os.getpid(), 11)
    return [1.0 for _ in completions]
"""
OWN = {"path": "starting:score"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "starting.py").write_text(STARTING)
    return tmp_path


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def outcome(folder: Path, completion: str) -> Any:
    async def scene() -> Any:
        section = reward(OWN, on_failure="fail", timeout_s=2, processes=1)
        async with scoring(section, "", code_folder=folder) as scorer:
            (found,) = await scores(scorer, Answered("").item(0), [completion])
            return found

    return play(scene)


@pytest.mark.parametrize(
    ("completion", "error", "how"),
    [
        ("hang", RewardTimedOut, "no answer within 2 s"),
        ("crash", RewardCrashed, "ended with exit code 3"),
        ("segv", RewardCrashed, "was killed by signal 11"),
    ],
)
def test_what_a_failing_function_has_started_ends_with_it_even_in_another_session(
    folder: Path, completion: str, error: type[Exception], how: str
) -> None:
    found = outcome(folder, completion)
    assert isinstance(found, error)
    assert how in str(found)
    assert len(pids(folder)) == 2
    assert not any(map(is_alive, pids(folder)))


def test_what_a_function_leaves_running_ends_when_its_process_is_no_longer_needed(folder: Path) -> None:
    assert outcome(folder, "fine").reward == 1.0
    assert not any(map(is_alive, pids(folder)))


WORKER = """
import asyncio, sys
from pathlib import Path
from tests.support.processes.rewards import Answered, reward, scores, scoring
async def main():
    async with scoring(reward({"path": "starting:score"}, timeout_s=600), "", code_folder=Path(sys.argv[1])) as scorer:
        await scores(scorer, Answered("").item(0), ["hang"])
asyncio.run(main())
"""


def test_what_a_function_has_started_ends_with_a_worker_that_is_killed(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], cwd=ROOT, start_new_session=True) as worker:
        wait_for(lambda: (folder / "pids").exists() and len(pids(folder)) == 2, "the start of what it starts")
        os.killpg(worker.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, pids(folder))), "the end of what it has started")


@pytest.mark.parametrize(
    ("parents", "found"),
    [
        ({}, set()),
        ({1: 0, 2: 1, 3: 2}, set()),
        ({5: 1, 6: 5, 8: 7, 7: 6, 9: 1}, {6, 7, 8}),
        ({6: 5, 7: 5, 5: 6}, {6, 7}),  # two moments seen as one
    ],
)
def test_descendants_are_found_over_any_number_of_steps(parents: Mapping[int, int], found: set[int]) -> None:
    assert descendants(5, parents) == found
