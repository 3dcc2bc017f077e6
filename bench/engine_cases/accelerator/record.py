"""What the scripts of this folder share: their arguments, a device's clock, and the JSON line that they end with.

Each script has a function `main` and is run as `python -m bench.engine_cases.accelerator.NAME`. Its record is called
`gpu_NAME`. A script that cannot measure says why on standard error and ends with an exit code other than 0.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from bench import provenance
from bench.engine_cases.accelerator.shapes import SHAPES

ROOM = "bench.engine_cases.accelerator"
"""Import path of this folder."""


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--shape` and `--device`, which every script has."""
    parser = argparse.ArgumentParser(prog=f"python -m {ROOM}.{name}", description=about)
    parser.add_argument("--shape", choices=SHAPES, default="0.5B")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the program with --shape tiny")
    return parser


def device_of(arguments: argparse.Namespace) -> torch.device:
    """Return the device that was asked for. It ends the program if this machine does not have it."""
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no accelerator at hand; --device cpu --shape tiny tries the program without one")
    return device


def print_record(
    name: str,
    arguments: argparse.Namespace,
    device: torch.device,
    results: Mapping[str, Any],
    reach: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print the record as one JSON line. `reach` has a row for each figure with a target (`at_most`)."""
    record = {
        "bench": f"gpu_{name}",
        "commit": provenance.commit(),
        "machine": provenance.machine(torch=torch.__version__) | {"device": _device_name(device)},
        "config": {key: str(value) if isinstance(value, os.PathLike) else value for key, value in _shown(arguments)},
        "results": dict(results),
        "reach": list(reach),
    }
    print(json.dumps(record), flush=True)


def at_most(name: str, value: float, target: float, unit: str) -> dict[str, Any]:
    """Return the row of a figure that should not be larger than its target."""
    return {"name": name, "value": value, "unit": unit, "op": "<=", "target": target, "ok": value <= target}


def now_s(device: torch.device) -> float:
    """Return the time in seconds when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run_again_as_command(name: str) -> NoReturn:
    """Replace this process by one that runs the script's `main`, but has no main module.

    vLLM's processes import the main module of the process that starts them, and with these scripts numba. Beside numba,
    vLLM 0.32 does not start on CPUs.
    """
    code = f"from bench.engine_cases.ending import run_and_end; from {ROOM}.{name} import main; run_and_end(main)"
    os.execv(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]])


def _shown(arguments: argparse.Namespace) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in vars(arguments).items() if key != "device"]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
