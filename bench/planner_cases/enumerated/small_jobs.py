"""Small jobs by chance: `auto`, which enumerates them, against the exact method and against all placements.

    python -m bench.planner_cases.enumerated.small_jobs --num 80

A case is one question of a job: its problem with the trainer in one region. Regions have cores or one or two types of
accelerators, with prices or without; links are unlike, and some are missing. What a case is follows from its number.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from bench.planner_cases import brute_force
from periplus.config.loading import validate
from periplus.job.job_file import JobFile, resolve
from planner.answer.outcome import Incumbent, Infeasible, Outcome
from planner.cost.tables.cost_tables import CostTables
from planner.devices.catalogue import architecture, gpu_types
from planner.files.capabilities import load_capabilities
from planner.jobs import hosts
from planner.jobs.job_workload import workload_of_job
from planner.jobs.needs import needs_of
from planner.methods import portfolio
from planner.methods.enumeration import small_space
from planner.methods.exact.method import search as exact
from planner.methods.portfolio import auto
from planner.problem.fleet import Fleet, Link, Machines, Region
from planner.problem.goal import Objective, Problem

MODELS = (("builtin:qwen3-tiny", 382_080), ("Qwen3-0.6B", 1_192_000_000), ("Qwen3-1.7B", 3_441_000_000))
TYPES = ("L4", "A100-80GB-SXM", "H100-SXM")


def problems(number: int) -> list[Problem]:
    """The questions of the job of that number; none if it is refused without a search."""
    rng = np.random.default_rng(number)
    fleet, (name, size) = _fleet(rng), MODELS[rng.integers(len(MODELS))]
    names = [region.name for region in fleet.regions]
    regions: dict[str, Any] = {"min": int(rng.integers(1, len(names) + 1)) if rng.random() < 0.25 else 1}
    if rng.random() < 0.2:
        regions["trainer"] = str(rng.choice(names))
    if rng.random() < 0.2:
        regions["rollout"] = [str(each) for each in rng.choice(names, rng.integers(1, len(names) + 1), replace=False)]
    if rng.random() < 0.2:
        regions["max"] = max(regions["min"], len(regions.get("rollout", ())), int(rng.integers(1, 4)))
    algorithm = str(rng.choice(["grpo", "ppo"]))
    job = {
        "name": "case",
        "environment": {"name": "chain_sum"},
        "algorithm": {
            "name": algorithm,
            "group_size": 1 if algorithm == "ppo" else int(rng.choice([4, 8])),
            "kl_coefficient": float(rng.choice([0.0, 0.01])),
        },
        "sampling": {"max_new_tokens": int(rng.choice([16, 256, 2048])), "prompt_tokens": 64},
        "train": {"groups_per_step": int(rng.choice([4, 16, 64])), "devices": int(rng.integers(1, 4))},
        "staleness": int(rng.integers(4)),
        "regions": regions,
        "plan": {"workers_per_region": int(rng.integers(1, 3))} if rng.random() < 0.3 else {},
    }
    made: JobFile = resolve(validate(JobFile, job, "job"))
    shape, needs = architecture(name), needs_of(made, size)
    workload = workload_of_job(made, shape)
    found = [each for _, each in hosts.problems(fleet, needs, workload, load_capabilities().limits)]
    return [_with_goal(each, rng) for each in found]


def _fleet(rng: np.random.Generator) -> Fleet:
    regions, caps = [], (None, None, 2e7)
    for name in "abc"[: rng.integers(1, 4)]:
        types = rng.choice(TYPES, rng.integers(1, 3), replace=False) if rng.random() < 0.7 else ()
        machines = tuple(
            Machines(
                gpu=str(gpu),
                gpus_per_machine=int(rng.integers(1, 4)),
                num_machines=1,
                usd_per_gpu_hour=round(float(rng.uniform(0.3, 4.0)), 2) if rng.random() < 0.9 else None,
            )
            for gpu in types
        )
        region = Region(
            name=name,
            machines=machines,
            fabric_bytes_per_s=1e10,
            num_cores=int(rng.choice([2, 4, 16])),
            memory_bytes=int(rng.choice([8, 64])) * 10**9 if not machines else 256 * 10**9,
            wan_up_bytes_per_s=caps[rng.integers(3)],
            wan_down_bytes_per_s=caps[rng.integers(3)],
        )
        regions.append(region)
    links = [
        Link(
            src_region=a.name,
            dst_region=b.name,
            rtt_s=float(rng.choice([0.002, 0.1, 0.3])),
            bytes_per_s=float(10 ** rng.uniform(5.5, 9)),
            usd_per_gbyte=float(rng.choice([0.0, 0.02, 0.09])),
        )
        for a, b in permutations(regions, 2)
        if rng.random() < 0.95
    ]
    return Fleet(regions=tuple(regions), links=tuple(links), gpu_types=dict(gpu_types()))


def _with_goal(problem: Problem, rng: np.random.Generator) -> Problem:
    """Some problems get a limit near what the best plan without it has, so that it matters."""
    kind = rng.random()
    if kind < 0.6 or not small_space(CostTables(problem)):
        return problem
    free = auto(CostTables(problem), seed=0, budget_s=20.0, now_s=time.monotonic)
    if isinstance(free, Infeasible) or free.best is None:
        return problem
    evaluation, factor = free.best.evaluation, float(rng.uniform(0.7, 1.5))
    if kind < 0.8 and evaluation.usd_per_hour > 0:
        goal = replace(problem.goal, max_usd_per_hour=evaluation.usd_per_hour * factor)
    else:
        goal = replace(
            problem.goal, objective=Objective.COST_AT_THROUGHPUT, max_step_s=evaluation.step_s * (1 + factor)
        )
    return replace(problem, goal=goal)


def numbered(first: int, num: int) -> Iterator[tuple[int, Problem]]:
    """One small question of each of so many jobs, with the job's number."""
    number = first
    while num:
        some = [each for each in problems(number) if small_space(CostTables(each)) is not None]
        if some:
            yield number, some[number % len(some)]
            num -= 1
        number += 1


def main() -> None:
    """Print a line for each case, then how many agreed and how long each took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=80)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most", type=int, default=20_000, help="placements to try at most; others are not compared")
    args = parser.parse_args()
    rows = []
    for number, problem in numbered(args.first, args.num):
        row = compared(problem, args.most)
        rows.append(row)
        print(json.dumps({"case": number} | row), flush=True)
    tried = [row for row in rows if row["brute"] != "not tried"]
    feasible = [row for row in rows if row["auto"] is not None]
    summary = {
        "cases": len(rows),
        "as_exact": sum(row["as_exact"] for row in rows),
        "tried": len(tried),
        "as_brute_force": sum(row["as_brute"] for row in tried),
        "infeasible": len(rows) - len(feasible),
        "tried_feasible": sum(row["auto"] is not None for row in tried),
        "placements": [median(row["rows"] for row in feasible), max(row["rows"] for row in feasible)],
    }
    # Median and longest, of the questions that have a plan.
    summary |= {
        key: [round(median(row[key] for row in feasible), 4), max(row[key] for row in feasible)]
        for key in ("auto_s", "before_s", "exact_s")
    }
    print(json.dumps(summary))


def compared(problem: Problem, most: int) -> dict[str, Any]:
    """What each finds, and whether these are equal."""
    auto_s, mine = _timed(auto, problem)
    # `auto` as it was before small problems were enumerated.
    with mock.patch.object(portfolio, "small_space", return_value=None):
        before_s, _ = _timed(auto, problem)
    exact_s, theirs = _timed(exact, problem, gap=0.0)
    brute = brute_force.best(problem, most=most)
    value = _value(problem, mine)
    return {
        "auto": value,
        "exact": _value(problem, theirs),
        "brute": "not tried" if brute is None else brute.value,
        # The exact method proves 2e-5; a placement that it lacks must be within that.
        "as_exact": _is_equal(value, _value(problem, theirs), 3e-5),
        "as_brute": brute is not None and _is_equal(value, brute.value, 1e-9),
        "auto_s": round(auto_s, 4),
        "before_s": round(before_s, 4),
        "exact_s": round(exact_s, 4),
        "rows": 0 if isinstance(mine, Infeasible) else mine.num_evaluations,
    }


def _timed(method: Any, problem: Problem, **options: Any) -> tuple[float, Outcome]:
    began_s = time.monotonic()
    found = method(CostTables(problem), seed=0, budget_s=30.0, now_s=time.monotonic, **options)
    return time.monotonic() - began_s, found


def _value(problem: Problem, found: Outcome) -> float | None:
    best: Incumbent | None = None if isinstance(found, Infeasible) else found.best
    return None if best is None else best.value(problem.goal)


def _is_equal(a: float | None, b: float | None, tolerance: float) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= tolerance * b


if __name__ == "__main__":
    main()
