"""Steps of jobs that generate with the trainer's devices by turns, beside the best division of the same devices.

One region has four emulated devices. Each job runs once with all of them by turns, and once with each division of them
between the trainer and rollout workers.
"""

import sys
from typing import Any

from bench.experiment_cases.executed_fleets import by_hand, emulated, new_home, row, run_whole
from bench.experiment_cases.unlike_jobs import Case
from planner.plan import Plan
from tests.support.processes.declared_fleet import DeclaredRegion

SLOWDOWN = 800.0
DEVICES = 4
STEPS = 8
DEVICE = f"emulated-L4-{SLOWDOWN:g}"
KEYS: dict[str, object] = {"train.groups_per_step": 16, "sampling.max_new_tokens": 48, "train.devices": DEVICES}
TURNS = "by turns"


def by_turns() -> dict[str, Any]:
    """Return the seconds of a step of each division for each staleness bound, and those of the best over by turns."""
    told: dict[str, Any] = {}
    rows = {
        f"{trainer} + {DEVICES - trainer}": (
            row("trainer", "a", DEVICE, data=trainer),
            row("rollout", "a", DEVICE, DEVICES - trainer),
        )
        for trainer in range(1, DEVICES)
    }
    rows[TURNS] = row("trainer", "a", DEVICE, data=DEVICES), row("rollout", "a", DEVICE, DEVICES, by_turns=True)
    for bound in (0, 1):
        keys = KEYS | {"staleness": bound}
        found = {name: _step_s(keys, by_hand("a", *each)) for name, each in rows.items()} | {"found": _step_s(keys, "")}
        apart_s = min(seconds["measured"] for name, seconds in found.items() if name not in (TURNS, "found"))
        told[f"staleness {bound}"] = found | {"apart_over_turns": apart_s / found[TURNS]["measured"]}
        print(f"staleness {bound}: {told[f'staleness {bound}']}", file=sys.stderr, flush=True)
    return told


def _step_s(keys: dict[str, object], plan: str) -> dict[str, Any]:
    regions = {"a": DeclaredRegion(devices=emulated("L4", DEVICES, SLOWDOWN))}
    with new_home() as folder:
        job = Case(regions=regions, steps=STEPS, model="0.8M", keys=keys).job(folder)
        ended, _ = run_whole(folder, job, regions, plan)
    made = Plan.from_json(ended.plan_json)
    found: dict[str, Any] = {"measured": dict(ended.measured)["step_s"]}
    if made.evaluation is not None:
        found |= {"predicted": made.evaluation.step_s, "by_turns": any(each.by_turns for each in made.assignments)}
    return found
