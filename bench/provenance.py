"""A benchmark's record: the commit and the machine that it was measured on, and which targets are reached."""

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

BEGUN_S = time.monotonic()

Measure = Callable[[], tuple[float, dict[str, Any]]]
"""Returns a figure, and what else was found."""


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


def say(text: str) -> None:
    """Tell how far the benchmark is, and after how many seconds."""
    print(f"[{time.monotonic() - BEGUN_S:5.0f} s] {text}", file=sys.stderr, flush=True)


def reached(name: str, value: float, unit: str, op: str, target: float) -> dict[str, Any]:
    """Return a row of the record: a measured value, its target, and whether the target is met."""
    ok = {"==": value == target, "<=": value <= target, ">=": value >= target}[op]
    return {"name": name, "value": value, "unit": unit, "op": op, "target": target, "ok": ok}


def print_figures(
    bench: str, measures: Mapping[str, Measure], names: Iterable[str], targets: Mapping[str, Any], **more: object
) -> int:
    """Measure figures, print the record on one line, and return the exit code: 1 if a target is missed."""
    about, results, reach = machine(), {}, []
    for name in names:
        value, results[name] = measures[name]()
        op, target, unit = targets[name]
        reach.append(reached(name, value, unit, op, target) | {"value": round(value, 4)})
    line = {"bench": bench, "commit": commit(), "machine": about, **more, "results": results, "reach": reach}
    print(json.dumps(line))
    return 0 if all(each["ok"] for each in reach) else 1
