"""Programs that a model or a user wrote, against the worker that runs them: `python -m bench.doors.programs NAME`.

It says whether the program was refused what it wants. The worker's environment holds `HIDDEN`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from periplus.environment.rewards.completions import ScoredText
from rollout_worker.rewards.functions import code
from rollout_worker.rewards.sandbox.run import RunLimits, run_program
from tests.support.processes.rewards import Answered, reward, scores, scoring

HIDDEN = "d00r-secret-of-the-worker"
"""Secret in the environment of the worker."""

ESCAPES = """
import os, socket
for attempt in (lambda: socket.socket(40, socket.SOCK_STREAM), lambda: os.memfd_create("x")):
    try:
        attempt()
        print("done")
    except OSError:
        print("refused")
"""
"""A socket to the host of a virtual machine, and a file in memory that can be executed."""

LIAR = """
class Liar(int):
    __eq__ = lambda *_: True
    __hash__ = int.__hash__
def f(): return Liar(7)
"""

SPY = f"""
import os, pathlib
def score(completions):
    found, pid = 0.0, os.getpid()
    while pid > 1:
        try:
            pid = int(pathlib.Path(f"/proc/{{pid}}/status").read_text().split("PPid:")[1].split()[0])
            found += {HIDDEN!r}.encode() in pathlib.Path(f"/proc/{{pid}}/environ").read_bytes()
        except OSError:
            break
    return [found for _ in completions]
"""
"""It reads the environment of each process above its own."""


def leave_the_sandbox() -> bool:
    done = run_program(ESCAPES, b"", RunLimits(time_s=10, memory_bytes=256 << 20))
    return done.output.split() == [b"refused", b"refused"]


def equal_everything() -> bool:
    columns = {"tests": ["assert f() == 4", "assert 4 == f()", "assert f() in (4, 5)", "assert [f()] == [4]"]}
    settings: dict[str, Any] = {"tests_column": "tests", "partial": True, "time_limit_s": 5.0, "memory_mib": 256}
    score = code.build(settings | {"timeout_s": 20.0, "may_run_unsandboxed": False})
    return score(ScoredText(prompt="", completion=LIAR, answer="", num_tokens=1, columns=columns)) == 0.0


def read_the_environment_of_the_worker() -> bool:
    async def scored(folder: Path) -> float | None:
        async with scoring(reward({"path": "spy:score"}), "", code_folder=folder) as scorer:
            found: float | None = (await scores(scorer, Answered("").item(0), ["a"]))[0].reward
            return found

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spy.py").write_text(SPY)
        return asyncio.run(scored(Path(folder))) == 0.0


PROGRAMS = {each.__name__: each for each in (leave_the_sandbox, equal_everything, read_the_environment_of_the_worker)}

if __name__ == "__main__":
    print("refused" if PROGRAMS[sys.argv[1]]() else "done")
