"""Claims about a user's own experiments: samples, rewards, environments, evaluation. Each case is a module of its own.

A case checks first that what it times is right, then measures, and returns figures with their targets
(bench/experiment_cases/). The last line is one JSON object, and everything else goes to stderr. The exit code is 1 if a
target is missed.

    python -m bench.experiments [--quick] [--only samples_first_page ...]

`--quick` measures smaller cases, for a first look; its record says so in `config`, and is no proof of the claims.
"""

import argparse
import importlib
import json
import os
import sys

from bench import provenance
from bench.experiment_cases.case import CaseResult

CASES = ("samples_first_page", "rewards", "tools", "recipe_lines", "cases_right", "eval_slowdown")
"""The cases in the order in which they run. Each names a module of bench/experiment_cases with `measure(quick)`."""


def run_case(name: str, *, quick: bool) -> CaseResult:
    """Import and run a case. Only what the chosen cases need is imported."""
    result = importlib.import_module(f"bench.experiment_cases.{name}").measure(quick=quick)
    assert isinstance(result, CaseResult)
    return result


def main() -> int:
    """Run the chosen cases and print their record. Return exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller cases, within a minute each")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="run these cases alone")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found = {name: run_case(name, quick=arguments.quick) for name in arguments.only}
    figures = [figure for result in found.values() for figure in result.figures]
    record = {
        "bench": "experiments",
        "commit": provenance.commit(),
        "machine": provenance.machine(load),
        "config": {"quick": arguments.quick} | {name: dict(result.config) for name, result in found.items()},
        "results": {name: dict(result.results) for name, result in found.items()},
        "reach": [figure.entry() for figure in figures],
    }
    print(json.dumps(record))
    return 0 if all(figure.is_reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
