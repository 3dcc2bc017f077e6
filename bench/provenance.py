"""What every benchmark says of itself in its record: the commit and the machine."""

import multiprocessing
import os
import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """Of the tree that is run; `unknown` outside a repository."""
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def machine(load: float | None = None, **versions: str) -> dict[str, object]:
    """`load`: the one-minute average before anything was measured, where that is not now."""
    about_cpu = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in about_cpu if "model name" in line]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": multiprocessing.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "load_1min_before": os.getloadavg()[0] if load is None else load,
    }
