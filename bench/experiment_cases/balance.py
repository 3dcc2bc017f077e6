"""How well leases are divided over workers of unlike speed: a step's generation against that of the best division.

Two regions of emulated devices generate, of which one is slower by a factor; the trainer is on cores in a third one.
The paces of the devices are known, so the least time is too: all samples over the sum of both speeds.
"""

import json
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from bench.experiment_cases.executed_fleets import by_hand, emulated, new_home, row, run_whole
from bench.experiment_cases.unlike_jobs import CORES, Case
from planner.plan import Plan, TaskKind
from tests.support.processes.declared_fleet import DeclaredRegion

FIRST, COUNTED = 8, 8
"""Steps in which leases come to follow the speeds, and those that are measured then."""
SLOWDOWN = 800.0
"""How many times slower than an L4 the faster devices are. Two cores then compute what they pretend to compute in a
tenth of the time; with 200, half of what was lost was the cores' own work."""


def balance(factor: float, staleness: int) -> tuple[float, dict[str, Any]]:
    """Return the least seconds of a step over those that were measured, and what was measured.

    A step of a synchronous job waits for the weights, generates, and then trains; of others, the slower of generation
    and training counts.
    """
    keys = {
        "staleness": staleness,
        "sampling.max_new_tokens": 48,
        "train.groups_per_step": 32,
        "algorithm.group_size": 4,
    }
    case = Case(regions={}, steps=FIRST + COUNTED, model="0.8M", keys=keys)
    regions: Mapping[str, DeclaredRegion] = {
        "home": CORES,
        "fast": DeclaredRegion(devices=emulated("L4", 1, SLOWDOWN)),
        "slow": DeclaredRegion(devices=emulated("L4", 1, factor * SLOWDOWN)),
    }
    plan = by_hand(
        "home",
        row("trainer", "home", ""),
        row("rollout", "fast", f"emulated-L4-{SLOWDOWN:g}"),
        row("rollout", "slow", f"emulated-L4-{factor * SLOWDOWN:g}"),
    )
    with new_home() as folder:
        job = case.job(folder)
        ended, _ = run_whole(folder, job, regions, plan)
        (metrics,) = folder.glob("runs/*/runs/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"][FIRST:]
    measured = {
        name: fmean(step.get(name, 0.0) for step in steps) for name in steps[0] if name.endswith("_s") or "/" in name
    }
    paces = [
        each.pace for each in Plan.from_json(ended.plan_json).assignments if each.task is TaskKind.ROLLOUT and each.pace
    ]
    tokens = sum(value for name, value in measured.items() if name.startswith("tokens_per_s_region/"))
    samples = job.train.groups_per_step * job.algorithm.group_size
    length = tokens * measured["step_s"] / samples
    speeds = [1 / (job.sampling.prompt_tokens * each.prefill_s + length * each.decode_s) for each in paces]
    least_s = samples / sum(speeds)
    weights_s = min(value for name, value in measured.items() if name.startswith("weights_s_region/"))
    in_turn_s = weights_s + least_s + measured["train_s"]
    ideal_s = in_turn_s if job.staleness == 0 else max(least_s, measured["train_s"])
    told = {
        "factor": factor,
        "staleness": job.staleness,
        "least_generation_s": least_s,
        "step_s": measured["step_s"],
        "train_s": measured["train_s"],
        "wait_s": measured["wait_s"],
        "weights_s": weights_s,
        "tokens_per_s": {name: value for name, value in measured.items() if name.startswith("tokens_per_s_region/")},
    }
    return ideal_s / measured["step_s"], told
