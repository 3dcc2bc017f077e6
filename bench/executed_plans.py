"""Claim: plans are of the models that people train, can be run, and are there in a second.

- `hub_jobs_planned`: jobs whose model the coordinator has no file of, one for each architecture of
  docs/architectures.md, planned by the `config.json` that travels with them; how many a search planned.
- `stalled_plans`: plans of `auto` for one region, over 6 accelerators, 3 numbers of them, 2 models and 3 staleness
  bounds, each simulated for 24 steps; how many stalled.
- `job_plan_s_p95`: seconds that the coordinator's planning of a job takes on 6 regions with 40 accelerators of 4 types,
  over 20 jobs.

- `processes_as_planned`: jobs on five declared fleets, each run for real; the fraction of processes whose role, region,
  visible devices, engine, degrees and pace are those of the plan (`bench/experiment_cases/executed_fleets.py`).
- `hetero_vs_static`: an emulated fleet of two regions, four fast devices and four at a quarter of their speed, with a
  thin link; completion tokens trained on in a second under the plan that is found, over those of the better of two
  layouts in the manner of other systems, each run for real as a plan by hand. Like verl: one cluster, whose devices are
  shared equally between training and generation. Like StreamRL: training on all devices of the best region, generation
  on those of the other one.

`--only NAME` measures one of them. The last line is one JSON object, and everything else goes to stderr.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.experiment_cases.executed_fleets import by_hand, emulated, processes_as_planned, row, tokens_per_s
from bench.provenance import Measure, print_figures, say
from coordinator.app import plan_request
from coordinator.state import JobRequest
from periplus.config.loading import validate
from periplus.job.architectures import ARCHITECTURES
from periplus.job.job_file import JobFile, resolve
from periplus.values.machine import DeviceCount
from planner.devices.catalogue import architectures, gpu_types
from planner.plan import Plan
from planner.plan_of_placement import idle_pools, limited_pools
from planner.problem import lengths
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Link, Machines, Region
from planner.problem.goal import Problem
from planner.problem.workload import Task, Workload
from planner.simulate.simulator import simulate
from planner.solve import Thinking, plan
from tests.support.engines.architectures import CASES
from tests.support.processes.declared_fleet import DeclaredRegion

TARGETS: Mapping[str, tuple[str, float, str]] = {
    "hub_jobs_planned": ("==", 18, "architectures"),
    "stalled_plans": ("==", 0, "plans"),
    "job_plan_s_p95": ("<=", 1.0, "s"),
    "processes_as_planned": ("==", 1.0, "fraction"),
    "hetero_vs_static": (">=", 1.3, "ratio"),
}
"""Operator, target and unit of each figure."""

ACCELERATORS = ("RTX-4090", "L4", "A100-80GB-SXM", "H100-SXM", "H20", "A10G")
REGIONS = (("H100-SXM", 8), ("A100-80GB-SXM", 8), ("A100-80GB-SXM", 8), ("L4", 8), ("L4", 4), ("A10G", 4))
"""Accelerators of the fleet of `job_plan_s_p95`, by region."""
NUM_STEPS, BUDGET_S = 24, 1.0
SLOWDOWNS = (1600.0, 6400.0)
"""How many times slower than an L4 the devices of the emulated fleet are, by region. Two cores then compute what all
eight of them pretend to compute in a fraction of the time."""
HETERO_STEPS = 10
HETERO_JOB = {
    "name": "bench",
    "environment": {"name": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}},
    "data": {"size": 12000},
    "algorithm": {"group_size": 8},
    "sampling": {"max_new_tokens": 48, "prompt_tokens": 8},
    "optimizer": {"lr": 1e-4},
    "train": {"groups_per_step": 32, "devices": 4},
    "staleness": 8,
    "eval": {"num_prompts": 8, "every_steps": 0},
    "checkpoint": {"every_steps": 0},
    "regions": {"min": 2},
}


def job(**changes: object) -> JobFile:
    """Return a job whose model is a name on the Hub."""
    tree = {"name": "bench", "environment": {"name": "chain_sum"}, "model": {"path": "SomeBody/SomeModel"}} | changes
    return resolve(validate(JobFile, tree, "job"))


def fleet_of(machines: Mapping[str, tuple[Machines, ...]], num_cores: int = 16) -> Fleet:
    """Return a fleet with links of 1 Gbit/s and a round trip of 80 ms between all regions."""
    regions = tuple(
        Region(
            name=name,
            machines=owned,
            fabric_bytes_per_s=ONE_HOST_BYTES_PER_S,
            num_cores=num_cores,
            memory_bytes=256 << 30,
            engines=("torch",),
        )
        for name, owned in machines.items()
    )
    pairs = itertools.permutations(machines, 2)
    links = tuple(Link(src_region=a, dst_region=b, rtt_s=0.08, bytes_per_s=1.25e8) for a, b in pairs)
    return Fleet(regions=regions, links=links, gpu_types=gpu_types())


def hub_jobs_planned() -> tuple[float, dict[str, Any]]:
    fleet = fleet_of({"a": (), "b": (), "c": ()})
    free = dict.fromkeys("abc", DeviceCount(16, 16))
    methods = {}
    for name in (each.model_type for each in ARCHITECTURES):
        config = CASES[name if name in CASES else f"{name} tied"](vocab_size=70, pad_token_id=0)
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            text = (Path(folder) / "config.json").read_text()
        request = JobRequest(
            name="j", min_regions=1, job_json=job().to_json(), model_config=text, model_bytes=1_000_000
        )
        made = getattr(plan_request(fleet, free, request), "best", None)
        methods[name] = made.method if isinstance(made, Plan) else "none"
        say(f"{name}: {methods[name]}")
    return sum(method not in ("static", "none") for method in methods.values()), {"methods": methods}


def stalled_plans() -> tuple[float, dict[str, Any]]:
    stalled, off = [], []
    cells = list(itertools.product(ACCELERATORS, (8, 64, 128), ("Qwen3-0.6B", "Qwen3-4B"), (1, 2, 4)))
    for gpu, number, model, eta in cells:
        made = getattr(plan(study(gpu, number, model, eta), _thinking()), "best", None)
        if not isinstance(made, Plan) or made.placement is None or made.evaluation is None:
            continue
        played = simulate(
            study(gpu, number, model, eta),
            made.placement,
            seed=1,
            num_steps=NUM_STEPS,
            idle=idle_pools(made),
            at_most=limited_pools(made),
        )
        if played.stalled:
            stalled.append([gpu, number, model, eta, played.stalled])
        else:
            off.append(played.step_s / made.evaluation.step_s - 1)
        say(f"{gpu} x {number}, {model}, eta {eta}: {played.stalled or f'{off[-1]:+.1%} of the prediction'}")
    return len(stalled), {"plans": len(off) + len(stalled), "stalled": stalled, "error_median": float(np.median(off))}


def job_plan_s_p95() -> tuple[float, dict[str, Any]]:
    machines = {
        f"r{i}": (Machines(gpu=gpu, gpus_per_machine=number, num_machines=1),)
        for i, (gpu, number) in enumerate(REGIONS)
    }
    fleet = fleet_of(machines)
    free = {f"r{i}": DeviceCount(number, number) for i, (_, number) in enumerate(REGIONS)}
    config = json.dumps(
        {
            "model_type": "qwen3",
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        }
    )
    seconds = []
    for eta, workers in itertools.product((0, 1, 2, 4), (None, 1, 2, 4, 6)):
        wanted = job(staleness=eta, plan={"workers_per_region": workers}).to_json()
        request = JobRequest(name="j", min_regions=1, job_json=wanted, model_config=config, model_bytes=1_192_000_000)
        began_s = time.perf_counter()
        made = getattr(plan_request(fleet, free, request), "best", None)
        seconds.append(time.perf_counter() - began_s)
        shown = made.trainer_region if isinstance(made, Plan) else "none"
        say(f"eta {eta}, {workers or 'any'} workers a region: {seconds[-1]:.2f} s, trainer in {shown}")
    return float(np.percentile(seconds, 95)), {"seconds": [round(each, 3) for each in seconds]}


def hetero_vs_static() -> tuple[float, dict[str, Any]]:
    fast, slow = (f"emulated-L4-{slowdown:g}" for slowdown in SLOWDOWNS)
    regions = {
        name: DeclaredRegion(devices=emulated("L4", 4, slowdown))
        for name, slowdown in zip(("fast", "slow"), SLOWDOWNS, strict=True)
    }
    grid = "src_region,dst_region,throughput_gbps,rtt_ms\nfast,slow,0.02,100\nslow,fast,0.02,100\n"
    wanted = resolve(validate(JobFile, HETERO_JOB, "job"))
    plans = {
        "found": "",
        "like verl": by_hand("fast", row("trainer", "fast", fast, data=2), row("rollout", "fast", fast, 2)),
        "like StreamRL": by_hand("fast", row("trainer", "fast", fast, data=4), row("rollout", "slow", slow, 4)),
    }
    found = {}
    for name, made in plans.items():
        found[name] = tokens_per_s(wanted, regions, made, grid, HETERO_STEPS)
        say(f"{name}: {json.dumps(found[name])}")
    best = max(found[name]["tokens_per_s"] for name in ("like verl", "like StreamRL"))
    return found["found"]["tokens_per_s"] / best, found


def _thinking() -> Thinking:
    return Thinking(budget_s=BUDGET_S, now_s=time.monotonic)


def study(gpu: str, number: int, model: str, eta: int) -> Problem:
    machines = Machines(gpu=gpu, gpus_per_machine=8, num_machines=number // 8)
    region = Region(name="r", machines=(machines,), fabric_bytes_per_s=12.5e9)
    shape = architectures()[model]
    workload = Workload(
        algorithm="grpo",
        models={Task.GENERATION: shape, Task.ACTOR_TRAINING: shape},
        eta=eta,
        prompts_per_step=64,
        group_size=8,
        prompt_tokens=lengths.constant(512),
        completion_tokens=lengths.lognormal(median_tokens=1500, sigma=0.8, cap_tokens=8192),
    )
    return Problem(fleet=Fleet(regions=(region,), links=(), gpu_types=gpu_types()), workload=workload)


MEASURES: Mapping[str, Measure] = {
    "hub_jobs_planned": hub_jobs_planned,
    "stalled_plans": stalled_plans,
    "job_plan_s_p95": job_plan_s_p95,
    "processes_as_planned": processes_as_planned,
    "hetero_vs_static": hetero_vs_static,
}


def main() -> int:
    """Measure, and print the figures against their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(MEASURES))
    options = parser.parse_args()
    return print_figures("executed_plans", MEASURES, [options.only] if options.only else MEASURES, TARGETS)


if __name__ == "__main__":
    sys.exit(main())
