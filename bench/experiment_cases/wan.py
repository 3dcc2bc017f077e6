"""What an ocean costs: the rate of a job whose workers are behind a slow link, over that of the same job without one.

One full copy of the weights in bfloat16 takes `STEPS_A_COPY` steps on the link. So the setting is hard: the third run,
whose trainer publishes every version as a full state, shows what a job without deltas gets there.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.experiment_cases.executed_fleets import tokens_per_s
from bench.experiment_cases.unlike_jobs import CORES, Case

STEPS_A_COPY = 4.0
ROUND_TRIP_MS = 170.0
"""Round trip between the east of the United States and Japan: 152 to 172 ms in `shared/data`'s grids of clouds."""
STEPS = 30
KEYS = {"staleness": 2, "regions.trainer": "a", "regions.rollout": "[b]", "optimizer.lr": 1e-6}

_FULL = """
import importlib.abc, importlib.machinery, sys

class FullStates(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "trainer.publishing.publish":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        made = spec.loader.exec_module

        def exec_module(module):
            made(module)
            module.delta_pays = lambda base, state: False

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, FullStates())
"""
"""A `sitecustomize` with which a trainer finds that no delta pays."""


def wan_figures() -> tuple[dict[str, float], dict[str, Any]]:
    """Return `wan_on_vs_off` and `full_broadcast_vs_off`, and what each run gave."""
    off = _run(None)
    copy_bytes = off["copy_bytes"]
    rate = copy_bytes / (STEPS_A_COPY * off["step_s"])
    link = (rate * 8 / 1e9, ROUND_TRIP_MS)
    on = _run(link)
    with _full_states():
        full = _run(link)
    told = {"off": off, "on": on, "full broadcast": full, "link_gbit_per_s": link[0]}
    figures = {
        "wan_on_vs_off": on["tokens_per_s"] / off["tokens_per_s"],
        "full_broadcast_vs_off": full["tokens_per_s"] / off["tokens_per_s"],
    }
    return figures, told


def _run(link: tuple[float, float] | None) -> dict[str, Any]:
    case = Case(regions={"a": CORES, "b": CORES}, steps=STEPS, model="4.7M", link=link, keys=KEYS)
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as models:
        job = case.job(Path(models))
        return tokens_per_s(job, case.regions, "", case.grid(), STEPS)


@contextmanager
def _full_states() -> Iterator[None]:
    """Have every trainer that is started meanwhile publish full states alone."""
    before = os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        Path(folder, "sitecustomize.py").write_text(_FULL)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before)))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before
