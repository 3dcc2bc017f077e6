"""Runs all measurements on a GPU one after the other, and writes what they found into a folder.

    python -m bench.engine_cases.accelerator --out DIR [--shape 0.5B] [--python-vllm PATH]

Each script is a process of its own with a limit of time. One that fails, or takes too long, does not stop the rest. The
folder gets NAME.json (the record, or why there is none), NAME.log (standard error) and summary.md. The exit code is 0
if all have measured. `--device cpu --shape tiny` tries the programs without a GPU; sleep_wake measures nothing there.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engine_cases.accelerator.summary import ScriptOutcome, markdown

ROOT = Path(__file__).parents[3]
MAIN, VLLM = "main", "vllm"
SCRIPTS = {
    "training": MAIN,
    "encode_vs_read": MAIN,
    "vllm_updates": VLLM,
    "vllm_pause": VLLM,
    "vllm_mismatch": VLLM,
    "prefill_decode": VLLM,
    "sleep_wake": VLLM,
}
"""Scripts in the order in which they run, and the environment that each of them needs."""

SMALL = {
    "training": ("--samples", "8", "--prompt-tokens", "8", "--new-tokens", "16", "--steps", "2"),
    "vllm_updates": ("--slots", "16"),
    "vllm_pause": ("--sequences", "8", "16", "--prompt-tokens", "16", "--new-tokens", "128", "--swaps", "4"),
    "vllm_mismatch": ("--requests", "16", "--prompt-tokens", "16", "--new-tokens", "16"),
    "prefill_decode": ("--batches", "1", "8", "--lengths", "16", "64", "--decode-tokens", "16"),
}
"""Arguments with which the shape `tiny` takes less than a minute a script on one core."""

LIMIT_S = 600.0
"""Seconds that a script may take, unless it is said otherwise. At 0.5 to 1.7 B each is expected to take less."""

NOISE = ("(", "[", "warnings.warn", "Triton ")
"""How lines begin that vLLM's processes and libraries write beside a script's own."""

MAX_REASON = 300
"""Characters of a reason that are kept; the log has all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scripts and write their records. Return exit code 1 if one of them has not measured."""
    own = ROOT / ".venv-vllm" / "bin" / "python"
    parser = argparse.ArgumentParser(prog="python -m bench.engine_cases.accelerator", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for records, logs and the summary")
    parser.add_argument("--shape", default="0.5B", help="as for the scripts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", action="append", choices=SCRIPTS)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds that one script may take")
    parser.add_argument(
        "--python-vllm",
        type=Path,
        default=own if own.exists() else Path(sys.executable),
        help="interpreter of the environment that has vLLM; one environment may hold all",
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    pythons = {MAIN: Path(sys.executable), VLLM: options.python_vllm}
    outcomes = []
    for name in options.only or SCRIPTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        command = [str(pythons[SCRIPTS[name]]), "-m", f"bench.engine_cases.accelerator.{name}"]
        command += ["--shape", options.shape, "--device", options.device]
        command += SMALL.get(name, ()) if options.shape == "tiny" else ()
        outcome = run_script(name, command, options.out / f"{name}.log", options.limit_s)
        (options.out / f"{name}.json").write_text(json.dumps(outcome.as_json(), indent=1) + "\n", encoding="utf-8")
        outcomes.append(outcome)
        # After each script, so that an end of the machine costs one script at most.
        (options.out / "summary.md").write_text(markdown(outcomes), encoding="utf-8")
    print((options.out / "summary.md").read_text(encoding="utf-8"))
    return 0 if all(outcome.record is not None for outcome in outcomes) else 1


def run_script(name: str, command: Sequence[str], log: Path, limit_s: float) -> ScriptOutcome:
    """Run one script for at most `limit_s` seconds, with its standard error in `log`, and return what it found.

    Whatever it has started ends with it: it has a process group of its own, which is killed in the end.
    """
    began_s = time.perf_counter()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _with_root(os.environ.get("PYTHONPATH")), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            ended = f"exit code {process.returncode}" if process.returncode else "it printed no record"
        except subprocess.TimeoutExpired:
            output, ended = b"", f"it took more than {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    record = _record(output) if process.returncode == 0 else None
    reason = "" if record is not None else _reason(ended, log.read_text(encoding="utf-8", errors="replace"))
    return ScriptOutcome(name=name, record=record, reason=reason, wall_s=time.perf_counter() - began_s)


def _with_root(path: str | None) -> str:
    return f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)


def _record(output: bytes) -> dict[str, Any] | None:
    # The last line that is a JSON object; vLLM may print others.
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, Any] = json.loads(line)
                return found
    return None


def _reason(ended: str, log: str) -> str:
    # A script's own last words; after them the interpreter may say what it ignored while it ended.
    lines = [line.strip() for line in log.partition("Exception ignored in")[0].splitlines()]
    said = [line for line in lines if line and not line.startswith(NOISE)]
    return f"{ended}: {said[-1]}"[:MAX_REASON] if said else ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a running script ends too
    sys.exit(main())
