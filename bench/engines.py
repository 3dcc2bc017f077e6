"""Claim: with the field's own engines the runtime trains more tokens a second than TRL, new weights hardly interrupt
generation, and engine and trainer agree on log-probabilities.

- `throughput`: completion tokens trained a second, ours and TRL's, on two cores in all (engine_cases/throughput.py).
- `pause`: seconds without a token while new weights are written, with every slot busy: the gap between two tokens, keys
  and values that are computed again included, less the gap without new weights. The figure is the 95th percentile over
  the swaps of one run with `keep_kv`, of the slower of the engines; `reprefill` and `drain` are reported beside it.
- `mismatch`: vLLM in bfloat16 against the trainer's own scoring of the same tokens, on samples of one version, for
  models of several depths. The figures are those of the first one. Beside them is what the engine's checks allow.

The last line is one JSON object, everything else goes to standard error. `--only` chooses sections. vLLM and TRL run
in environments of their own: `make .venv-vllm/.installed .venv-oracle/.installed`. Without one its figures are left
out, and the record says `not measured`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import provenance
from bench.engine_cases.mismatch import compared
from bench.engine_cases.models import write_model
from bench.engine_cases.throughput import compare
from bench.provenance import say
from trainer.data.pretrained import load_weights

ROOT = Path(__file__).parents[1]
SECTIONS = ("throughput", "pause", "mismatch")
TARGETS = {
    "tokens_per_s_vs_trl": (">=", 1.3, "ratio"),
    "tokens_per_s_vs_trl_small": (">=", 1.0, "ratio"),
    "exposed_pause_s": ("<=", 0.1, "s"),
    "mismatch_kl": ("<=", 1e-3, "nats"),
    "mismatch_mean_nats": ("<=", 0.01, "nats"),
}
"""Comparison, target and unit of each figure."""

STEPS = 16
"""Steps of one run that are counted, and of TRL those at its start that are not."""
RUNS = 3
"""Runs of which the median counts."""
DEPTHS = ("4.7M", "9.4M-12", "18.7M-24")
"""Models of 6, 12 and 24 layers whose log-probabilities are compared."""

PROGRAM = (
    "from bench.engine_cases.ending import run_and_end; from bench.engine_cases.engine_program import main; "
    "run_and_end(main)"
)
"""What an engine's interpreter runs: without a main module, as vLLM's own processes want it."""


def program(python: Path, *arguments: str) -> dict[str, Any]:
    """Run `engine_program` with an interpreter, on one thread, and return what it printed."""
    done = subprocess.run(
        [str(python), "-c", PROGRAM, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def throughput(folder: Path, oracle: Path, *, quick: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what was measured for both sizes, and the two figures."""
    num_steps, num_runs = (5, 1) if quick else (STEPS, RUNS)
    names = ("0.8M",) if quick else ("4.7M", "0.8M")
    found = {
        name: compare(name, folder, oracle, num_steps=num_steps, num_runs=num_runs, settings_tried=not quick, say=say)
        for name in names
    }
    figures = {"tokens_per_s_vs_trl": "4.7M", "tokens_per_s_vs_trl_small": "0.8M"}
    return found, {figure: found[name]["ratio"] for figure, name in figures.items() if name in found}


def pause(model: Path, interpreters: dict[str, Path], *, quick: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Return pauses by engine and by what happens to completions under way, and the figure."""
    swaps, modes = ("5", ("keep_kv",)) if quick else ("20", ("keep_kv", "reprefill", "drain"))
    found: dict[str, Any] = {}
    for engine, python in interpreters.items():
        for mode in modes:
            say(f"pause of {engine}, {mode}")
            found[f"{engine} {mode}"] = program(
                python,
                "pause",
                *("--engine", engine, "--model", str(model), "--new-tokens", "256"),
                *("--swaps", swaps, "--on-swap", mode),
            )
    return found, {"exposed_pause_s": max(found[f"{engine} keep_kv"]["exposed_p95_s"] for engine in interpreters)}


def mismatch(folder: Path, python: Path, *, quick: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the differences of log-probabilities by model, and the figures of the first one."""
    num, found = "64" if quick else "256", {}
    for name in DEPTHS[: 1 if quick else None]:
        say(f"mismatch of vllm and trainer, {name}")
        model = folder / f"mismatch-{name}"
        write_model(name, model)
        sampled = program(
            python, "samples", "--engine", "vllm", "--dtype", "bfloat16", "--model", str(model), "--requests", num
        )
        found[name] = compared(load_weights(model), sampled)
    trainer = found[DEPTHS[0]]["trainer"]
    return found, {"mismatch_kl": trainer["kl"], "mismatch_mean_nats": trainer["mean_nats"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its JSON line. Return exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=SECTIONS)
    parser.add_argument("--quick", action="store_true", help="smaller, within a few minutes; the claim is not measured")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--oracle", type=Path, default=ROOT / ".venv-oracle" / "bin" / "python")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    sections = options.only or SECTIONS
    results: dict[str, Any] = {}
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as name:
        folder = Path(name)
        model = folder / "model"
        write_model("4.7M", model)
        if "throughput" in sections and options.oracle.exists():
            results["throughput"], more = throughput(folder, options.oracle, quick=options.quick)
            figures |= more
        interpreters = {"torch": Path(sys.executable)} | ({"vllm": options.vllm} if options.vllm.exists() else {})
        if "pause" in sections:
            results["pause"], more = pause(model, interpreters, quick=options.quick)
            figures |= more
        if "mismatch" in sections and options.vllm.exists():
            results["mismatch"], more = mismatch(folder, options.vllm, quick=options.quick)
            figures |= more
    reach = [
        provenance.reached(figure, figures[figure], unit, op, target)
        for figure, (op, target, unit) in TARGETS.items()
        if figure in figures
    ]
    record = {
        "bench": "engines",
        "commit": provenance.commit(),
        "machine": provenance.machine(load, torch=torch.__version__),
        "config": {
            "quick": options.quick,
            "sections": list(sections),
            "not_measured": sorted(TARGETS.keys() - figures.keys()),
        },
        "results": results,
        "reach": reach,
    }
    print(json.dumps(record))
    return 0 if all(row["ok"] for row in reach) or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
