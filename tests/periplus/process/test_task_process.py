"""A worker process from its task file to its exit code and last word, as the agent sees it."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import IO

import pytest

from periplus.values.task import (
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    FailureCause,
    Role,
    TaskOutcome,
    TaskSpec,
    TaskState,
)
from tests.support.keys import JOB_SECRET

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio
import sys
import textwrap
import time
from periplus.process import task_process
from periplus.errors import ConfigError, EngineRefused, FunctionRefused, NonFiniteLoss, Unreachable
from periplus.values.task import TaskState

async def raising(error):
    async with asyncio.TaskGroup():
        raise error

async def waiting(stop):
    print("ready", flush=True)
    await stop.wait()
    return TaskState.STOPPED

async def chatter(stop):
    print("words " * 10_000, flush=True)
    print("more words", file=sys.stderr, flush=True)
    print("unflushed")
    return TaskState.SUCCEEDED

def make_work(spec):
    if spec.task_id == "refuse":
        raise ConfigError("no such model; give another")
    return {
        "succeed": lambda stop: asyncio.sleep(0, TaskState.SUCCEEDED),
        "wait": waiting,
        "function": lambda stop: raising(FunctionRefused("no such function")),
        "engine": lambda stop: raising(EngineRefused("no such degree")),
        "fail": lambda stop: raising(NonFiniteLoss("loss nan")),
        "several": lambda stop: raising(ExceptionGroup("g", [NonFiniteLoss("loss nan"), Unreachable("gone")])),
        "chatter": chatter,
        "crash": lambda stop: raising(ZeroDivisionError("by zero")),
    }[spec.task_id]

task_process.command(make_work)()
"""


class Process:
    """One started worker; its standard input stays open until `end_stdin`, as an agent holds it."""

    def __init__(self, folder: Path, work: str, output: int | IO[str] = subprocess.PIPE) -> None:
        spec = TaskSpec(
            task_id=work,
            job_id="j",
            role=Role.ROLLOUT,
            region="eu",
            job_json="",
            plan_json="",
            fork=0,
            resume_from="",
            gateway="",
            run_dir=str(folder),
            status_file=str(folder / "status.json"),
            num_threads=1,
            authority_key="ab" * 32,
            job_secret=JOB_SECRET,
        )
        self._status = folder / "status.json"
        (folder / "task.json").write_text(spec.to_json())
        command = [sys.executable, "-c", PROGRAM, "--task-file", str(folder / "task.json")]
        self.popen = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)

    def until_ready(self) -> None:
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "ready\n"

    def outcome(self) -> tuple[int, TaskOutcome, str]:
        _, log = self.popen.communicate(timeout=30)
        status = self._status.read_text() if self._status.exists() else ""
        return self.popen.returncode, TaskOutcome.of_exit(self.popen.returncode, status), log


@pytest.mark.parametrize(
    ("work", "code", "state", "message"),
    [
        ("succeed", EXIT_SUCCEEDED, TaskState.SUCCEEDED, ""),
        ("refuse", EXIT_FAILED, TaskState.FAILED, "no such model; give another"),
        ("function", EXIT_FAILED, TaskState.FAILED, "no such function"),
        ("engine", EXIT_FAILED, TaskState.FAILED, "no such degree"),
        ("fail", EXIT_FAILED, TaskState.FAILED, "loss nan"),
        ("several", EXIT_FAILED, TaskState.FAILED, "loss nan (and 1 other error)"),
    ],
)
def test_the_outcome_of_work_is_the_last_word_and_the_exit_code(
    tmp_path: Path, work: str, code: int, state: TaskState, message: str
) -> None:
    process = Process(tmp_path, work)
    exit_code, outcome, log = process.outcome()
    causes = {"function": FailureCause.LASTING, "engine": FailureCause.ENGINE}
    expected = TaskOutcome(state=state, message=message, cause=causes.get(work, FailureCause.PASSING))
    assert (exit_code, outcome) == (code, expected), "only a function that is refused would fail again"
    assert "Traceback" not in log, "an error of ours is for a person, without a traceback"


def test_a_crash_is_a_failure_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    exit_code, outcome, log = Process(tmp_path, "crash").outcome()
    assert (exit_code, outcome.state) == (EXIT_FAILED, TaskState.FAILED)
    assert outcome.message == "ZeroDivisionError: by zero"
    assert "Traceback" in log
    assert "TaskGroup" not in log + outcome.message


def test_the_end_of_standard_input_stops_a_worker_whose_agent_died(tmp_path: Path) -> None:
    process = Process(tmp_path, "wait")
    process.until_ready()
    exit_code, outcome, _ = process.outcome()  # communicate closes standard input
    assert (exit_code, outcome) == (EXIT_STOPPED, TaskOutcome(state=TaskState.STOPPED, message=""))


def test_sigterm_stops_a_worker_whose_agent_lives(tmp_path: Path) -> None:
    process = Process(tmp_path, "wait")
    process.until_ready()
    process.popen.terminate()
    assert process.popen.wait(timeout=30) == EXIT_STOPPED
    assert process.outcome()[1].state is TaskState.STOPPED


def test_a_missing_task_file_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "--task-file", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_FAILED
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_log_that_the_disk_has_no_room_for_ends_no_work(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = Process(tmp_path, "chatter", full)
        exit_code, outcome, _ = process.outcome()
    assert (exit_code, outcome) == (EXIT_SUCCEEDED, TaskOutcome(state=TaskState.SUCCEEDED, message=""))


def test_an_outcome_that_cannot_be_written_leaves_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "status.json").symlink_to("/dev/full")
    process = Process(tmp_path, "wait")
    process.until_ready()
    process.popen.terminate()
    _, log = process.popen.communicate(timeout=30)
    assert process.popen.returncode == EXIT_STOPPED
    assert "outcome_not_written" in log
    assert "Traceback" not in log


def test_what_a_task_has_started_ends_with_it_even_without_an_agent() -> None:
    program = textwrap.dedent("""
        import subprocess, sys
        from periplus.process.task_process import end_group
        child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                                 stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        print(child.pid, flush=True)
        end_group()
        print("went on", flush=True)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
    )
    pid, last = done.stdout.split("\n", 1)
    assert last == "went on\n"
    until_s = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until_s, "the task's child is still alive"
        time.sleep(0.05)


def test_a_process_that_leads_no_group_kills_nobody() -> None:
    program = "from periplus.process.task_process import end_group; end_group(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "alive\n"
