"""One region of Periplus on this machine, as an operator starts it: a coordinator, an agent and a submitted job.

No emulated network is in between. The processes are the project's own commands; the standard input of each ends with
this program, and then they leave.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_S = 60.0
"""Seconds within which a service must be ready. Chosen by hand."""

STOP_S = 60.0
"""Seconds that a service gets to stop. Chosen by hand, longer than an agent gives its tasks."""


def run_job(job: dict[str, Any], folder: Path, agent_arguments: Sequence[str] = (), limit_s: float = 600.0) -> Path:
    """Run the job to its end in one region, and return its run directory.

    Raises: RuntimeError with the end of the logs if a process fails; TimeoutExpired after `limit_s` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.yaml"
    file.write_text(json.dumps(job))  # JSON is YAML
    environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    with _service(
        "coordinator", ["coordinator", "run", "--plaintext", "--listen", "127.0.0.1:0"], folder, environment
    ) as ready:
        address = ready["coordinator"]
        agent = ["agent", "run", "--plaintext", "--region", "here", "--coordinator", address, "--work-dir", str(folder)]
        with _service("agent", [*agent, *agent_arguments], folder, environment):
            submit = [sys.executable, "-m", "periplus", "job", "submit", str(file), "--wait", "-o", "name"]
            done = subprocess.run(
                [*submit, "--coordinator", address],
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
    runs = sorted((folder / "runs").iterdir()) if (folder / "runs").is_dir() else []
    if done.returncode or len(runs) != 1:
        raise RuntimeError(f"the job ended with exit code {done.returncode}: {done.stderr[-2000:]}{_log_ends(folder)}")
    return runs[0]


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the record of each training step of a run, in order: `time_s`, and its values by name."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "step"]


@contextmanager
def _service(
    name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]
) -> Iterator[dict[str, str]]:
    ready_file, log = folder / f"{name}.ready.json", folder / f"{name}.log"
    command = [sys.executable, "-m", "periplus", *arguments, "--ready-file", str(ready_file), "--stop-on-stdin-eof"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + READY_S
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{name} was not ready: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield json.loads(ready_file.read_text())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _log_ends(folder: Path) -> str:
    return "".join(f"\n{log}: {log.read_text(errors='replace')[-1500:]}" for log in sorted(folder.rglob("*.log")))
