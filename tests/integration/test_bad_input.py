"""Bad input at the command line: one clear message, the documented exit code, no traceback."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from periplus.__main__ import run
from periplus.net.certificates import FleetAuthority
from periplus.net.parties import region
from tests.support.cases.tiers import rest_is_slow
from tests.support.coordinator.preflight import check_in_this_process
from tests.support.processes.demo import TWO_REGIONS

AGENT, COORDINATOR = ("agent", "--plaintext"), ("coordinator", "--plaintext")

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "examples" / "spelling.yaml")
FLEET = str(ROOT / "examples" / "fleets" / "three-clouds.yaml")


def periplus(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "periplus", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
    )


CASES: list[tuple[tuple[str, ...], int, tuple[str, ...]]] = [
    (("demo", "--job", "nowhere.yaml"), 2, ("nowhere.yaml", "no such file")),
    (("demo", "sampling.temprature=1"), 2, ("sampling.temprature", "sampling.temperature")),
    (("demo", "staleness=-1"), 2, ("staleness", "-1")),
    (("demo", "model.path=/nowhere/model"), 2, ("/nowhere/model", "checkpoint directory")),
    (("demo", "model.path=builtin:qwen4"), 2, ("builtin:qwen4", "builtin:qwen3-tiny")),
    (("demo", "--wan", "interplanetary"), 2, ("interplanetary", "intercontinental")),
    (("demo", "--regions", "aws:us-east-1,aws:nowhere-1"), 2, ("aws:nowhere-1",)),
    (("demo", "--resume", "nowhere"), 3, ("nowhere", "directory of a run")),
    (("demo", "--change"), 2, ("--change", "--resume")),
    (("job", "submit"), 2, ("FILE", "--resume")),
    (("job", "submit", "steps=3"), 2, ("FILE", "--resume")),
    (("job", "submit", JOB, "--change"), 2, ("--change", "--resume")),
    (("job", "submit", "--resume", "nowhere"), 3, ("nowhere", "directory of a run")),
    (("job", "report", "nowhere"), 3, ("nowhere", "directory of a run")),
    (("job", "submit", JOB, "--coordinator", "127.0.0.1:1"), 5, ("127.0.0.1:1", "periplus coordinator")),
    (("job", "submit", JOB, "model.path=/nowhere/model"), 2, ("/nowhere/model",)),
    (("job", "submit", "/dev/zero", "--dry-run"), 2, ("/dev/zero", "larger than")),
    (("job", "submit", JOB, "--dry-run", "sampling.top_p=0.9"), 2, ("sampling.top_p is not supported yet",)),
    (
        ("job", "submit", JOB, "--dry-run", "environment.config.min_term=3"),
        2,
        ("environment.config.min_term is no",),
    ),
    (("job", "submit", JOB, "--dry-run", "environment.config={max_word_len: .inf}"), 2, ("finite",)),
    (("job", "submit", JOB, "--dry-run", "steps=" + "9" * 5000), 2, ("cannot be read as int",)),
    (("demo", "sampling.prompt_tokens=6"), 2, ("set sampling.prompt_tokens=7",)),
    (("region", "list", "--coordinator", "127.0.0.1:1"), 5, ("127.0.0.1:1",)),
    ((*COORDINATOR, "--listen", "nonsense"), 2, ("nonsense",)),
    ((*COORDINATOR, "--listen", "127.0.0.1:70000"), 2, ("127.0.0.1:70000", "HOST:PORT")),
    ((*COORDINATOR, "--listen", "127.0.0.1:0", "--ready-file", "/nowhere/x"), 2, ("/nowhere/x", "writable")),
    ((*AGENT, "--region", "here", "--listen", "127.0.0.1:99999"), 2, ("127.0.0.1:99999", "HOST:PORT")),
    ((*AGENT, "--region", "two words"), 2, ("two words", "region")),
    ((*AGENT, "--region", "here", "--work-dir", "/proc/nowhere"), 2, ("/proc/nowhere", "cannot be written")),
    ((*AGENT, "--region", "here", "--state-dir", "/proc/nowhere"), 2, ("/proc/nowhere", "cannot be written")),
    ((*AGENT, "--region", "here", "--ready-file", "/nowhere/x"), 2, ("/nowhere/x", "writable")),
    (("links", "--coordinator", ""), 2, ("--coordinator", "HOST:PORT")),
    (("links", "--coordinator", "nonsense"), 2, ("nonsense", "HOST:PORT")),
    (("wan", "run", "--grid", "off", "--control", "nonsense"), 2, ("nonsense", "HOST:PORT")),
    (("wan", "show", "--control", "127.0.0.1:1"), 5, ("127.0.0.1:1", "periplus wan run")),
    (("demo", "--work-dir", "/proc/nowhere"), 2, ("/proc/nowhere", "cannot be written")),
    (("demo", "--regions", ","), 2, ("--regions", "aws:us-east-1")),
    (("demo", "--job", "/etc"), 2, ("/etc", "is a directory")),
    (("launch",), 2, ("launch", "choose from agent, coordinator")),
    (("job", "submit", JOB, "--dry-run", "name=My Job"), 2, ("My Job", "letters a-z, digits and -")),
    ((*AGENT, "--region", "a/b"), 2, ("a/b", "letters, digits and :._-")),
    ((*COORDINATOR, "--wan", "127.0.0.1:1", "--region", "us"), 5, ("127.0.0.1:1", "periplus wan run")),
    (
        (*COORDINATOR, "--listen", "127.0.0.1:0", "--state-dir", "/proc/nowhere"),
        2,
        ("/proc/nowhere", "state directory"),
    ),
    ((*COORDINATOR, "--listen", "192.0.2.1:7070"), 2, ("192.0.2.1:7070", "--plaintext is for loopback")),
    (
        (*AGENT, "--region", "here", "--listen", "192.0.2.1:7072", "--coordinator", "127.0.0.1:1"),
        2,
        ("192.0.2.1:7072", "--plaintext is for loopback"),
    ),
    (("plan", "nowhere"), 2, ("nowhere", "no such file", "choose from calibrate")),
    (("plan", "nowhere.yaml", "--fleet", FLEET), 2, ("nowhere.yaml", "no such file")),
    (("plan", JOB, "--fleet", JOB), 2, ("looks like a job", "give a fleet")),
    (("simulate", JOB), 2, ("looks like a job", "give a plan")),
    (("weights", "inspect", "nowhere"), 3, ("nowhere", "periplus weights diff")),
    (("weights", "inspect", JOB), 1, ("is not a delta's file",)),
    (("job", "audit", "nowhere"), 3, ("nowhere", "directory of a run")),
    (("job", "audit", "/tmp", "--authority", "nowhere"), 2, ("nowhere", "64 hexadecimal digits")),
]

PROCESSES = ("demo", "coordinator", "agent", "plan", "job")
"""Commands whose first case is given to a process as well: a program's exit code, and what native code writes."""


def check_answer(code: int, said: str, expected: int, words: tuple[str, ...]) -> None:
    assert code == expected, said
    assert "Traceback" not in said
    assert "Errno" not in said
    assert said.lower().count("error:") == 1
    for word in words:
        assert word in said


@pytest.mark.parametrize(("arguments", "code", "words"), CASES)
def test_bad_input_is_answered_with_one_message_and_its_code(
    arguments: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_in_this_process(monkeypatch)
    check_answer(run(arguments), capfd.readouterr().err, code, words)


@pytest.mark.processes
@pytest.mark.parametrize("command", rest_is_slow(PROCESSES))
def test_a_process_answers_as_the_command_does(command: str) -> None:
    arguments, code, words = next(case for case in CASES if case[0][0] == command)
    done = periplus(*arguments)
    check_answer(done.returncode, done.stderr, code, words)


@pytest.mark.processes
@pytest.mark.parametrize("service", [COORDINATOR, (*AGENT, "--region", "here", "--coordinator", "127.0.0.1:1")])
def test_a_busy_port_is_a_conflict(service: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done = periplus(*service, "--listen", address)

    assert done.returncode == 7, done.stderr
    assert address in done.stderr
    assert "add_port" not in done.stderr, "gRPC has no line of its own"
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_a_gateway_that_listens_everywhere_must_say_where_it_is(tmp_path: Path) -> None:
    FleetAuthority.generate("fleet", time.time()).identity(region("here"), time.time()).save(tmp_path / "identity")
    done = periplus("agent", "--state-dir", str(tmp_path), "--listen", "0.0.0.0:0")

    assert done.returncode == 2, done.stderr
    assert "--advertise" in done.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_a_job_that_fits_nowhere_ends_the_demo_with_its_own_code(tmp_path: Path) -> None:
    done = periplus("demo", "--plain", "--work-dir", str(tmp_path), TWO_REGIONS, "regions.trainer=nowhere")

    assert done.returncode == 4, done.stderr
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
