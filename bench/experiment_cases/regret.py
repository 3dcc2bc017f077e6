"""How much slower the planner's choice is than the best of many placements that were run.

Fleets are of emulated devices: two regions of which one is slower by 2 and by 4, and two alike with a thin link between
them. Each job runs once with the plan that is found, and once with each of six plans by hand that differ in where the
trainer is, and where workers are. All runs of a fleet are on the same services, one after the other.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.experiment_cases.executed_fleets import by_hand, emulated, ended_job, new_home, row
from bench.experiment_cases.unlike_jobs import Case
from coordinator.client.submission import submission
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet

SLOWDOWN = 800.0
"""How many times slower than an L4 the faster devices are, so that two cores compute what all of them pretend to."""
DEVICES = 3
STEPS = 8
SMALL = {"train.warmup": "null", "train.groups_per_step": 16}


@dataclass(frozen=True, slots=True)
class Setting:
    """Two regions, of which the second is `factor` times slower, and the link between them in Gbit/s and ms."""

    factor: float
    link: tuple[float, float]
    jobs: tuple[str, ...]


JOBS: Mapping[str, Mapping[str, object]] = {
    "asynchronous": {"staleness": 4, "sampling.max_new_tokens": 24},
    "synchronous": {"staleness": 0, "sampling.max_new_tokens": 24},
    "short answers": {"staleness": 1, "train.groups_per_step": 32},
    "reference": {"staleness": 2, "algorithm.kl_coefficient": 0.01, "sampling.max_new_tokens": 12},
}
SETTINGS: Mapping[str, Setting] = {
    "2x": Setting(2.0, (0.2, 100.0), ("asynchronous", "synchronous")),
    "4x": Setting(4.0, (0.2, 100.0), ("short answers", "reference")),
    "thin link": Setting(1.0, (0.002, 150.0), ("asynchronous", "short answers")),
}
PLACEMENTS: Mapping[str, tuple[str, int, int]] = {
    "trainer in a, workers in a": ("a", 2, 0),
    "trainer in a, workers in both": ("a", 2, 3),
    "trainer in a, workers in b": ("a", 0, 3),
    "trainer in b, workers in a": ("b", 3, 0),
    "trainer in b, workers in both": ("b", 3, 2),
    "trainer in b, workers in b": ("b", 0, 2),
}
"""Region of the trainer, and workers in a and in b, with all devices that are left."""
FOUND = "found"


def regret() -> tuple[float, dict[str, Any]]:
    """Return the largest step of a plan that was found over the least of all that were run, and all seconds."""
    told: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        with new_home() as folder:
            told |= asyncio.run(_of_setting(folder, name, setting))
    return max(each["regret"] for each in told.values()), told


async def _of_setting(folder: Path, name: str, setting: Setting) -> dict[str, Any]:
    speeds = {"a": SLOWDOWN, "b": SLOWDOWN * setting.factor}
    regions = {each: DeclaredRegion(devices=emulated("L4", DEVICES, by)) for each, by in speeds.items()}
    grid = folder / "grid.csv"
    grid.write_text(Case(regions=regions, steps=0, link=setting.link).grid())
    told: dict[str, Any] = {}
    async with declared_fleet(folder, regions, grid) as remote:
        for kind in setting.jobs:
            job = Case(regions=regions, steps=STEPS, keys=SMALL | dict(JOBS[kind])).job(folder)
            seconds: dict[str, float] = {}
            plans = {FOUND: ""} | {each: _plan(speeds, *where) for each, where in PLACEMENTS.items()}
            for which, plan in plans.items():
                request = submission(job, f"{name} {kind} {which}")
                request.plan_json = plan
                ended = await ended_job(remote, (await remote.submit(request)).job_id)
                seconds[which] = dict(ended.measured)["step_s"]
                if which == FOUND:
                    rows = json.loads(ended.plan_json)["assignments"]
                print(f"{name}, {kind}, {which}: {seconds[which]:.2f} s", file=sys.stderr, flush=True)
            told[f"{name}, {kind}"] = {
                "regret": seconds[FOUND] / min(seconds.values()),
                "step_s": seconds,
                "found": [_words(each) for each in rows],
            }
    return told


def _plan(speeds: Mapping[str, float], trainer: str, in_a: int, in_b: int) -> str:
    rows = [row("trainer", trainer, f"emulated-L4-{speeds[trainer]:g}")]
    workers: Sequence[tuple[str, int]] = (("a", in_a), ("b", in_b))
    rows += [row("rollout", name, f"emulated-L4-{speeds[name]:g}", number) for name, number in workers if number]
    return by_hand(trainer, *rows)


def _words(each: Mapping[str, Any]) -> str:
    return f"{each['num_workers']} {each['task']} in {each['region']}"
