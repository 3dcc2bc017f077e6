"""`periplus demo` as a process, small enough for a test, and who runs beneath it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TINY = (
    "train.warmup.max_steps=12",
    "train.groups_per_step=8",
    "eval.num_prompts=32",
    "eval.every_steps=0",
    "optimizer.warmup_steps=0",
)
DEADLINE_S = 150.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "periplus", "demo", "--plain", *arguments]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


def run_demo(work_dir: Path, *arguments: str) -> dict[str, Any]:
    """A demo that succeeds, and its summary."""
    done = subprocess.run(
        command("--json", "--work-dir", str(work_dir), *arguments),
        env=environment(work_dir),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def start_demo(work_dir: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("--work-dir", str(work_dir), *arguments),
        env=environment(work_dir),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def read_until(demo: "subprocess.Popen[str]", word: str) -> str:
    """What it said up to the line with `word`."""
    assert demo.stderr is not None
    seen = ""
    for line in demo.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"the demo ended without {word!r}: {seen}")


def pids_of(work_dir: Path) -> list[tuple[int, str]]:
    """Process ids and command lines of those whose environment points into `work_dir`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes()
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"HOME={work_dir}".encode() in variables.split(b"\0"):
            found.append((int(entry.name), " ".join(words)))
    return found


def processes_of(work_dir: Path) -> list[str]:
    return [words for _, words in pids_of(work_dir)]


def assert_all_gone(work_dir: Path) -> None:
    """Orphans leave by themselves once they read the end of their standard input."""
    deadline_s = time.monotonic() + 60
    while processes_of(work_dir) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert processes_of(work_dir) == []
