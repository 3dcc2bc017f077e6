"""`periplus up` as a process of a test, with a home of its own, and scripts and commands that find its fleet."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes.demo import environment

DEADLINE_S = 400.0

SMALL_JOB = """
import periplus

JOB = {
    "name": "small",
    "environment": {"name": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}},
    "sampling": {"max_new_tokens": 6, "prompt_tokens": 8},
    "train": {"groups_per_step": 4},
    "eval": {"num_prompts": 16},
    "data": {"size": 500},
    "checkpoint": {"every_steps": 1},
    "steps": 4000,
}
"""
"""The beginning of a script: a job that makes many steps a second and does not end by itself."""


def own_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user whose fleets, caches and processes are a test's own."""
    found = environment(home)
    found.pop("PERIPLUS_COORDINATOR", None)
    return {**found, "XDG_STATE_HOME": str(home / "state")}


def work_dir(home: Path) -> Path:
    """Return the directory in which the user of `home` works, apart from what programs keep in a home."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    return work


@contextmanager
def starting_fleet(home: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `periplus up`, and yield its process at once. It is killed if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "periplus", "up", "--dir", str(work_dir(home)), "-o", "json", *arguments],
        env=own_environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def local_fleet(home: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """Run `periplus up`, and yield its process and what it said once it served. It is killed if it still runs."""
    with starting_fleet(home, *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)


def run_here(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program or module as the user of `home`, in their working directory."""
    return subprocess.run(
        [sys.executable, *words],
        env=own_environment(home),
        cwd=work_dir(home),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@contextmanager
def started_script(home: Path, text: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a script in the working directory of the user of `home`. It is killed if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**own_environment(home), "PYTHONUNBUFFERED": "1"},
        cwd=work_dir(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(script: "subprocess.Popen[str]") -> str:
    """Return the first line that a script prints. A script that ends before it fails the test with what it said."""
    assert script.stdout is not None
    line = script.stdout.readline().strip()
    assert line, script.communicate()[1]
    return line
