"""The problem of docs/planner-exact.md and the tool that prints the search of it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_the_traced_search_proves_the_placement_of_the_walk() -> None:
    files = [f"examples/exact-method/{name}.yaml" for name in ("fleet", "workload")]
    command = [sys.executable, "tools/trace_exact.py", *files]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    page = (ROOT / "docs" / "planner-exact.md").read_text(encoding="utf-8")
    outcome = done.stdout.partition("outcome: ")[2].splitlines()
    assert outcome[0] == "Found"
    # Placement, step and windows are those of the page; the bound follows from the gap and the step.
    assert all(line.strip() in page for line in outcome[1:6])
