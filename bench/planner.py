"""Claim: the planner proves its placements, from one rack to ten thousand GPUs, faster than others find theirs.

The sections (`--only`) are modules of `bench/planner_cases/`, whose docstrings say what is measured and how:

- `bruteforce` (optimum.py) compares the exact method with a search of all placements, on 300 small problems.
- `hetrl` (hetrl.py) plans HetRL's 64 GPUs in four networks: gap, ratios over static families, heuristics, simulation.
- `areal_hex` (areal_hex.py) plans H800 and H20 at equal money and at equal speed, against the best of one kind.
- `speed` (speed.py) times the first plan and the proof within one percent at 64, 1,024 and 10,000 GPUs, with memory.
- `real` (real.py) plans twenty fleets of measured links and listed prices: proof, seconds, dollars.
- `oracle` (oracle.py) counts the placements that the cost oracle evaluates per second, in batches.
- `limits` (limits.py) simulates plans under a limit of seconds or dollars, and counts those that miss it.
- `simulation` and `cost` (others.py) compare predictions with simulations, and with held-out measurements.

HetRL and AReaL-Hex are re-implemented from their publications, verl's and StreamRL's layouts from their code and paper.
Our cost oracle evaluates all of them, and no figure here is from a real cluster. Times are those of this machine.

Each piece runs in a process of its own. With `--keep FOLDER` its row is kept there, and a later run continues where
this one ended. With `--limit-s` no new piece begins after that many seconds. A section that cannot be imported, or
whose pieces failed, is named in `results.not_measured` with the reason, and has no row in `reach`. The last line is one
JSON object.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bench import provenance
from bench.planner_cases.cells import Row, Rows, Section, Settings, Store, measured, run_section
from bench.provenance import BEGUN_S, say

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SECTIONS = {
    "bruteforce": ("optimum", "section"),
    "hetrl": ("hetrl", "section"),
    "areal_hex": ("areal_hex", "section"),
    "speed": ("speed", "section"),
    "real": ("real", "section"),
    "oracle": ("oracle", "section"),
    "limits": ("limits", "section"),
    "simulation": ("others", "simulation"),
    "cost": ("others", "cost"),
}
"""Sections by name: the module in `bench.planner_cases`, and its function that makes the section."""


def measure(
    names: list[str], store: Store, *, limit_s: float, wanted: Callable[[str], bool], jobs: int = 1
) -> tuple[Row, list[Row]]:
    """Run the sections. Return the results by section, and all rows of `reach` (measured values and targets)."""
    results: Row = {}
    reach: list[Row] = []
    missing: dict[str, str] = {}
    for name in names:
        section = _section(name)
        if isinstance(section, str):
            missing[name] = section
            say(f"{name}: not measured: {section}")
            continue
        rows, left = run_section(section, store, until_s=BEGUN_S + limit_s, say=say, wanted=wanted, jobs=jobs)
        failed = [f"{cell}: {row['error']}" for cell, row in rows.items() if "error" in row]
        if left or failed:
            missing[name] = "; ".join([*failed, *([f"no time for {len(left)} pieces"] if left else [])])
            say(f"{name}: not measured: {missing[name]}")
        if measured(rows):
            reach += [] if left or failed else section.reach(rows)
            results[name] = {"rows": rows, **_summary(name, rows)}
    return results | {"not_measured": missing}, reach


def _section(name: str) -> Section | str:
    """Return the section, or the reason why it cannot be made."""
    module, function = SECTIONS[name]
    try:
        made: Section = getattr(importlib.import_module(f"bench.planner_cases.{module}"), function)()
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return made


def _summary(name: str, rows: Rows) -> Row:
    module = importlib.import_module(f"bench.planner_cases.{SECTIONS[name][0]}")
    summary = getattr(module, "summary", None)
    return {"summary": summary(rows)} if summary else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller pieces; each section within a minute")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder of network_skyplane, gpu_prices, gpu_profiles..."
    )
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="this section; may be repeated")
    parser.add_argument("--cell", default="", help="pieces whose name contains this")
    parser.add_argument("--keep", type=Path, help="folder in which rows are kept between runs")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no piece after so many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="pieces at once; 1 where seconds are measured")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    settings = Settings(data=arguments.data, quick=arguments.quick, seed=arguments.seed)
    commit = provenance.commit()
    store = Store(folder=arguments.keep, settings=settings, commit=commit)
    names = arguments.only or list(SECTIONS)
    results, reach = measure(
        names, store, limit_s=arguments.limit_s, wanted=lambda name: arguments.cell in name, jobs=arguments.jobs
    )
    record = {
        "bench": "planner",
        "commit": commit,
        "machine": provenance.machine(load),
        "config": {"quick": arguments.quick, "seed": arguments.seed, "sections": names, "jobs": arguments.jobs},
        "results": results,
        "reach": reach,
    }
    for row in reach:
        say(f"{row['name']} {row['value']:.4g} {row['unit']} (target {row['op']} {row['target']:g}): {row['ok']}")
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
