"""Real processes that are killed with signal 9, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from periplus.process.guard import guard_session
from tests.support.processes.fake_engine import FakeProcess, exists, is_alive, wait_for

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems have no process descriptors"),
]

ROOT = Path(__file__).parents[3]
TASK = """
import json, time
from periplus.process.guard import guard_session
from tests.support.processes.fake_engine import start_fake_engine
if __name__ == "__main__":
    print(json.dumps([guard_session(), start_fake_engine()]), flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Task:
    process: "subprocess.Popen[str]"
    guard: int
    engine: tuple[FakeProcess, ...]

    def wait_until_nothing_is_left(self) -> None:
        for pid, block in self.engine:
            wait_for(lambda pid=pid: not is_alive(pid), f"the end of {pid}")  # type: ignore[misc]
            wait_for(lambda block=block: not exists(block), f"the end of {block}")  # type: ignore[misc]
        wait_for(lambda: not is_alive(self.guard), "the end of the guard")


@contextmanager
def guarded_task() -> Iterator[Task]:
    """Start a task as an agent does: the leader of a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", TASK], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        guard, engine = json.loads(process.stdout.readline())
        task = Task(process, guard, tuple(FakeProcess(*each) for each in engine))
        try:
            assert all(is_alive(pid) and exists(block) for pid, block in task.engine)
            yield task
        finally:
            process.kill()
            for pid, _ in task.engine:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_processes_and_shared_memory_of_a_killed_task_go_and_those_of_others_stay() -> None:
    others = SharedMemory(create=True, size=1 << 12)
    try:
        with guarded_task() as neighbour, guarded_task() as task:
            task.process.kill()
            task.wait_until_nothing_is_left()
            assert exists(others.name)
            assert is_alive(neighbour.guard)
            assert all(is_alive(pid) and exists(block) for pid, block in neighbour.engine)
    finally:
        others.close()
        others.unlink()


def test_shared_memory_of_a_group_that_is_killed_as_a_whole_goes() -> None:
    with guarded_task() as task:
        os.killpg(task.process.pid, signal.SIGKILL)
        task.wait_until_nothing_is_left()


def test_the_rest_of_a_task_goes_when_its_core_was_killed_before() -> None:
    with guarded_task() as task:
        os.kill(task.engine[0].pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(task.engine[0].pid), "the end of the core")
        assert is_alive(task.guard)
        task.process.kill()
        task.wait_until_nothing_is_left()


def test_a_task_goes_on_without_its_guard() -> None:
    with guarded_task() as task:
        os.kill(task.guard, signal.SIGKILL)
        wait_for(lambda: not is_alive(task.guard), "the end of the guard")
        assert task.process.poll() is None
        assert all(is_alive(pid) for pid, _ in task.engine)
        for _, block in task.engine:
            Path("/dev/shm", block).unlink()


def test_a_task_that_dies_before_its_guard_has_begun_leaves_nothing() -> None:
    program = (
        "import os, subprocess; from periplus.process.guard import guard_session; guard = guard_session();"
        "child = subprocess.Popen(['sleep', '600']); print(guard, child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, start_new_session=True
    )
    for pid in map(int, done.stdout.split()):
        wait_for(lambda pid=pid: not is_alive(pid), f"the end of {pid}")  # type: ignore[misc]


def test_who_leads_no_session_has_no_guard_because_the_others_there_are_not_its_own() -> None:
    program = "from periplus.process.guard import guard_session; print(guard_session())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "None\n"


@pytest.mark.parametrize("is_old_kernel", [False, True])
def test_a_system_without_process_descriptors_has_no_guard(
    monkeypatch: pytest.MonkeyPatch, is_old_kernel: bool
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    if is_old_kernel:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    assert guard_session() is None
