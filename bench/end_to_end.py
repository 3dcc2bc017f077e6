"""Claim: a plan says how long a step will take, and a job that runs says how far off it was.

- `profiled_step_error_demo`, `profiled_step_error_4.7M`, `profiled_step_error_mean`: |predicted / measured - 1| of a
  step's seconds, for the job of the demo, the job of 4.7 M parameters, and the mean over ten unlike jobs
  (`bench/experiment_cases/unlike_jobs.py`). Each runs to its end on a new fleet, whose regions are profiled for its
  model before it is planned, and it is planned with the mean length of completions of a run of three steps before.
- `balanced_vs_ideal_min`: with one process 2 and 4 times slower, the least seconds of a step, with work divided in
  proportion to speed, over those measured; the worst of generation with staleness 0 and 1 (two workers) and of
  training (two ranks), which `balanced_vs_ideal_generation` and `balanced_vs_ideal_training` tell apart.
- `wan_on_vs_off`, `full_broadcast_vs_off`: completion tokens a second of a job whose workers are behind an ocean, with
  deltas and with full states, over those without one (`bench/experiment_cases/wan.py`).
- `plan_regret_max`: the step of the plan that is found over the least of seven placements that are run, for six pairs
  of an emulated fleet and a job (`bench/experiment_cases/regret.py`); the largest.
- Without a figure: reward curves and accuracies of jobs over regions, at bounds on staleness, with workers of unlike
  speed and with both engines (`quality`), and steps by turns on the trainer's devices (`turns`).
- `profile_s`: seconds that the profile of the demo's model takes on one machine.

`--only NAME` runs one of the ten jobs, `balance`, `wan`, `regret`, `quality` or `turns`. `--unprofiled` plans with the
packaged figures. The last line is one JSON object, and everything else goes to stderr.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.experiment_cases.balance import balance
from bench.experiment_cases.by_turns import by_turns
from bench.experiment_cases.executed_fleets import new_home, run_whole
from bench.experiment_cases.quality import quality
from bench.experiment_cases.rank_balance import rank_balance
from bench.experiment_cases.regret import regret
from bench.experiment_cases.unlike_jobs import CASES
from bench.experiment_cases.wan import wan_figures
from bench.provenance import commit, machine, reached, say
from periplus.view.terms import STEP, terms_of
from planner.plan import Plan

BALANCE, WAN, REGRET = "balance", "wan", "regret"
OTHERS = {"quality": quality, "turns": by_turns}
"""Measurements without a target."""

TRIAL_STEPS = 3
"""Steps of the short run that tells the mean length of a job's completions before the job is planned."""

TARGETS: Mapping[str, tuple[str, float, str]] = {
    "profiled_step_error_demo": ("<=", 0.15, "fraction"),
    "profiled_step_error_4.7M": ("<=", 0.15, "fraction"),
    "profiled_step_error_mean": ("<=", 0.15, "fraction"),
    "profile_s": ("<=", 300.0, "s"),
    "balanced_vs_ideal_min": (">=", 0.9, "ratio"),
    "balanced_vs_ideal_generation": (">=", 0.9, "ratio"),
    "balanced_vs_ideal_training": (">=", 0.9, "ratio"),
    "plan_regret_max": ("<=", 1.10, "ratio"),
    "wan_on_vs_off": (">=", 0.95, "ratio"),
    "full_broadcast_vs_off": ("<=", 0.6, "ratio"),
}
"""Operator, target and unit of each figure."""


def measured_case(name: str, *, profiles: bool) -> dict[str, Any]:
    """Run one of the ten jobs, with `profiles` of its machines, and return the terms and the error of its steps."""
    case, keys = CASES[name], list[str]()
    if profiles:
        with new_home() as folder:
            trial, _ = run_whole(folder, case.job(folder, f"steps={TRIAL_STEPS}"), case.regions, grid=case.grid())
            keys = [f"sampling.expected_tokens={_mean_tokens(trial.files.run_dir)}"]
    with new_home() as folder:
        job = case.job(folder, *keys)
        ended, profile_s = run_whole(folder, job, case.regions, grid=case.grid(), profiles=profiles)
        mean_tokens = _mean_tokens(ended.files.run_dir)
    plan = Plan.from_json(ended.plan_json)
    terms = terms_of(plan.to_tree(), dict(ended.measured))
    (step,) = (each for each in terms if each.name == STEP)
    if not step.predicted or not step.measured:
        raise SystemExit(f"{name}: nothing to compare: {step}; the job ended with {ended.reason or 'no reason'}")
    return {
        "step_error": abs(step.predicted / step.measured - 1),
        "profile_s": profile_s,
        "completion_tokens_mean": {"expected": job.sampling.expected_tokens, "measured": mean_tokens},
        "terms": [asdict(each) for each in terms],
        "binding": plan.binding,
        "figures": plan.figures,
        "processes": [
            {"task": each.task, "region": each.region, "num_workers": each.num_workers} for each in plan.assignments
        ],
    }


def _mean_tokens(run_dir: str) -> float:
    """Return the mean length of the completions of a run."""
    lines = (Path(run_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    return statistics.fmean(record["completion_tokens_mean"] for record in steps)


def main() -> int:
    """Measure, print the record on one line, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, BALANCE, WAN, REGRET, *OTHERS], action="append")
    parser.add_argument("--unprofiled", action="store_true")
    options = parser.parse_args()
    names, about = options.only or [*CASES, BALANCE, WAN, REGRET, *OTHERS], machine()
    results: dict[str, Any] = {}
    figures: dict[str, float] = {}
    for name in names:
        if name == BALANCE:
            found = {f"{by:g}x, staleness {bound}": balance(by, bound) for by in (2.0, 4.0) for bound in (0, 1)}
            results[name] = {case: told | {"ratio": ratio} for case, (ratio, told) in found.items()}
            figures["balanced_vs_ideal_generation"] = min(ratio for ratio, _ in found.values())
            figures["balanced_vs_ideal_training"], results[name]["training"] = rank_balance()
            parts = ("balanced_vs_ideal_generation", "balanced_vs_ideal_training")
            figures["balanced_vs_ideal_min"] = min(figures[part] for part in parts)
        elif name == WAN:
            ratios, results[name] = wan_figures()
            figures |= ratios
        elif name == REGRET:
            figures["plan_regret_max"], results[name] = regret()
        elif name in OTHERS:
            results[name] = OTHERS[name]()
        else:
            results[name] = measured_case(name, profiles=not options.unprofiled)
        say(f"{name}: {json.dumps(results[name])}")
    errors = {name: results[name]["step_error"] for name in names if name in CASES}
    figures |= {f"profiled_step_error_{name}": errors[name] for name in ("demo", "4.7M") if name in errors}
    if errors.keys() == CASES.keys():
        figures["profiled_step_error_mean"] = sum(errors.values()) / len(errors)
    if "demo" in errors and not options.unprofiled:
        figures["profile_s"] = results["demo"]["profile_s"]
    reach = []
    for name, value in figures.items():
        op, target, unit = TARGETS[name]
        reach.append(reached(name, value, unit, op, target) | {"value": round(value, 4)})
    line = {"bench": "end_to_end", "commit": commit(), "machine": about, "results": results, "reach": reach}
    print(json.dumps(line))
    return 0 if all(each["ok"] for each in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
