"""`periplus demo` as a process, small enough for a test: its start, its output, its audit, and its child processes."""

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
TWO_REGIONS = "--regions=aws:us-east-1,azure:westeurope"
"""One region fewer than the demo has: each costs an agent and a worker, 3 CPU seconds."""
DEADLINE_S = 400.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "periplus", "demo", "--plain", *arguments]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


def run_demo(work_dir: Path, *arguments: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Run a demo that succeeds within so many seconds, and return its summary."""
    words = command("--json", "--work-dir", str(work_dir), *arguments)
    summary: dict[str, Any] = json.loads(_output_of(words, environment(work_dir), deadline_s).splitlines()[-1])
    return summary


def resume_demo(work_dir: Path, run: Path) -> dict[str, Any]:
    """Go on with a run to a success, and return the summary."""
    return run_demo(work_dir, "--resume", str(run))


def audit(run: Path) -> dict[str, Any]:
    """Return the report of `periplus job audit`, which must be clean."""
    words = [sys.executable, "-m", "periplus", "job", "audit", str(run), "-o", "json"]
    report: dict[str, Any] = json.loads(_output_of(words, None))
    return report


def _output_of(words: list[str], variables: dict[str, str] | None, deadline_s: float = DEADLINE_S) -> str:
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=deadline_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shorten(run: Path, steps: int) -> None:
    """Let a run of 4000 steps end after fewer, once it is resumed."""
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("steps: 4000", f"steps: {steps}"))


def start_demo(
    work_dir: Path, *arguments: str, home: Path | None = None, stdout: int = subprocess.DEVNULL
) -> "subprocess.Popen[str]":
    """Start a demo, whose model cache lies in `home`, by default in its working directory."""
    return subprocess.Popen(
        command("--work-dir", str(work_dir), *arguments),
        env=environment(home or work_dir),
        stderr=subprocess.PIPE,
        stdout=stdout,
        text=True,
    )


def read_until(demo: "subprocess.Popen[str]", word: str) -> str:
    """Return what the demo said up to the first line with `word`."""
    assert demo.stderr is not None
    seen = ""
    for line in demo.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"the demo ended without {word!r}: {seen}")


def pids_of(work_dir: Path) -> list[tuple[int, str]]:
    """Return ids and command lines of the processes whose home is `work_dir`."""
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
    """Wait until all processes have ended: orphans end once they read the end of their standard input."""
    deadline_s = time.monotonic() + 60
    while processes_of(work_dir) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert processes_of(work_dir) == []
