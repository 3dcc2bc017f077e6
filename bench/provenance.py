"""Origin of a benchmark's record: the commit and the machine that it was measured on."""

import multiprocessing
import os
import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """Return the commit of the source tree, or `unknown` outside of a repository."""
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def machine(load: float | None = None, **versions: str) -> dict[str, object]:
    """Return the processor, the number of cores, the versions of software, and the machine's load.

    `load` is the one-minute load average from before the measurement; without it, the current one is taken.
    """
    about_cpu = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in about_cpu if "model name" in line]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": multiprocessing.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "load_1min_before": os.getloadavg()[0] if load is None else load,
    }
