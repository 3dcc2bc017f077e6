"""Whether a job learns as well over regions, with older samples, and with unlike workers, as it does in one region.

Each setting runs the recipe of examples/spelling.yaml, shortened, once for each seed, on a real fleet of this machine.
A curve has the mean reward of each tenth of the steps; the last figure is the share of held-out problems that are
solved after training. Intervals are those of Student's t at 95 % over the seeds. A setting differs from the reference,
which is synchronous and has one region, if the interval of the difference of the means excludes 0.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from bench.experiment_cases.executed_fleets import VLLM, by_hand, emulated, new_home, row, run_whole
from bench.experiment_cases.unlike_jobs import CORES, Case
from tests.support.processes.declared_fleet import DeclaredRegion

SEEDS = (0, 1, 2)
T_OF_MEAN, T_OF_DIFFERENCE = 4.303, 2.776
"""Student's t at 95 % for the mean of three values, and for the difference of the means of three and three."""
STEPS = 60
PARTS = 10
"""Points of a reward curve."""
REFERENCE = "one region, bound 0"
LEARNING = {"eval.num_prompts": 512}

THREE = {"a": CORES, "b": CORES, "c": CORES}
HEADS = {"model.path": "builtin:qwen3-tiny-h32"}
"""A model whose attention heads are wide enough for vLLM's build for CPUs."""
FAST, SLOW = 400.0, 1600.0
"""How many times slower than an L4 the workers of unlike speed are."""
UNLIKE = {"home": CORES, "fast": DeclaredRegion(devices=emulated("L4", 1, FAST))} | {
    "slow": DeclaredRegion(devices=emulated("L4", 1, SLOW))
}
UNLIKE_PLAN = by_hand(
    "home",
    row("trainer", "home", ""),
    row("rollout", "fast", f"emulated-L4-{FAST:g}"),
    row("rollout", "slow", f"emulated-L4-{SLOW:g}"),
)


def _case(regions: Mapping[str, DeclaredRegion], staleness: int, **keys: object) -> Case:
    link = (0.2, 150.0) if len(regions) > 1 else None
    wanted = {"staleness": staleness, "regions.min": len(regions)} | LEARNING | keys
    return Case(regions=regions, steps=STEPS, link=link, keys=wanted)


CASES: Mapping[str, tuple[Case, str]] = {
    REFERENCE: (_case({"a": CORES}, 0), ""),
    **{f"three regions, bound {bound}": (_case(THREE, bound), "") for bound in (0, 1, 2, 4, 16)},
    "workers of unlike speed, bound 2": (_case(UNLIKE, 2), UNLIKE_PLAN),
    "wide heads, torch, bound 2": (_case({"a": CORES}, 2, **HEADS), ""),
    "wide heads, vLLM, bound 2": (
        _case(
            {"a": DeclaredRegion(options=("--engine", f"vllm={VLLM}"))},
            2,
            **HEADS | {"engine.name": "vllm", "engine.kv_cache_gib": 0.25},
        ),
        "",
    ),
}
"""Each setting with its plan by hand, or an empty text for a search. The engines have a pair of their own, because the
demo's model is too narrow for vLLM."""
ENGINE_REFERENCE = "wide heads, torch, bound 2"


def quality() -> dict[str, Any]:
    """Run all settings with all seeds, and return of each its curves, its accuracies and how they differ."""
    found = {name: [_learned(name, case, plan, seed) for seed in SEEDS] for name, (case, plan) in CASES.items()}
    told: dict[str, Any] = {}
    for name, runs in found.items():
        beside = ENGINE_REFERENCE if name.startswith("wide heads") else REFERENCE
        last = [each["accuracy"] for each in runs]
        told[name] = {
            "accuracy": last,
            "accuracy_mean": fmean(last),
            "accuracy_interval": _half_width(last),
            "staleness_mean": fmean(each["staleness_mean"] for each in runs),
            "oldest": max(each["oldest"] for each in runs),
            "curve": [fmean(part) for part in zip(*(each["curve"] for each in runs), strict=True)],
            "curve_interval": [_half_width(part) for part in zip(*(each["curve"] for each in runs), strict=True)],
            "beside": beside,
            "difference": _difference(last, [each["accuracy"] for each in found[beside]]) if name != beside else None,
        }
    return told


def _learned(name: str, case: Case, plan: str, seed: int) -> dict[str, Any]:
    with new_home() as folder:
        job = case.job(folder).model_copy(update={"seed": seed})
        run_whole(folder, job, case.regions, plan, case.grid())
        (metrics,) = folder.glob("runs/*/runs/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    rewards = np.asarray([line["reward_mean"] for line in steps])
    found = {
        "curve": [float(part.mean()) for part in np.array_split(rewards, PARTS)],
        "accuracy": next(line["accuracy"] for line in reversed(lines) if line["kind"] == "eval"),
        "staleness_mean": fmean(line["staleness_mean"] for line in steps),
        "oldest": max(line["staleness_max"] for line in steps),
    }
    print(f"{name}, seed {seed}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def _half_width(values: Sequence[float]) -> float:
    return float(T_OF_MEAN * np.std(values, ddof=1) / np.sqrt(len(values)))


def _difference(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval of the mean of `values` less that of the reference."""
    middle = fmean(values) - fmean(reference)
    width = T_OF_DIFFERENCE * np.sqrt((np.var(values, ddof=1) + np.var(reference, ddof=1)) / len(values))
    return middle - float(width), middle + float(width)
