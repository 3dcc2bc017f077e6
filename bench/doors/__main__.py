"""Claim: who has no right to something gets nothing done at a door of Periplus, and the doors cost nothing.

- `attacks_refused`: the attacks of docs/security.md, each made for real (`bench/doors/attacks.py`); how many are
  refused.
- `fuzz_calls_without_effect`: seeded calls of every method of a coordinator and two gateways (`bench/doors/fuzz.py`)
  while jobs run there. They count if each of the jobs made all of its steps with a clean audit, no other job or region
  appeared, each service is the process that it was and has not grown by more than `GROWTH_KIB`, and no log tells of an
  exception that nobody expected; otherwise none counts.
- `recheck_cost`: completion tokens of the demo in a second without scoring samples again over with a hundredth of
  them. Runs alternate, and medians are compared.

`python -m bench.doors --only NAME` measures one of them. The last line is one JSON object, and everything else goes to
stderr.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.doors.attacks import ATTACKS, attacks_refused
from bench.doors.fleet import REGIONS, Doors, doors_of_a_fleet
from bench.doors.fuzz import Fuzz
from bench.provenance import Measure, print_figures, say
from periplus.net import rpc
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc
from tests.support.processes.demo import command, environment

CALLS, IN_FLIGHT = 20_000, 12
FUZZED_STEPS = 1000
"""Steps of each job beside the fuzz: some minutes, so that most calls meet a running job."""
GROWTH_KIB = 96 << 10
"""Most KiB that a service may grow by: what an idle one does with its caches, and a few times that. Chosen by hand."""
PAIRS = 5
"""Runs with and without, of each cost."""
DEMO = ("--steps=60", "train.warmup.max_steps=12", "eval.num_prompts=32", "eval.every_steps=0")

TARGETS: Mapping[str, tuple[str, float, str]] = {
    "attacks_refused": ("==", len(ATTACKS), "attacks"),
    "fuzz_calls_without_effect": (">=", CALLS, "calls"),
    "recheck_cost": ("<=", 1.02, "ratio"),
}
"""Operator, target and unit of each figure."""


async def _records(doors: Doors) -> list[gateway_pb2.PublicationRecord]:
    """Return the first records that a reader with the job's secret is sent."""
    async with rpc.channel(doors.gateways[0], doors.worker()) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        request = gateway_pb2.SubscribeRequest(job_id=doors.job_id)
        call = stub.Subscribe(request, metadata=metadata_of_job(doors.secret))
        found = [await call.read() for _ in range(12)]
        call.cancel()
    return found


async def _fuzz(seed: int, num_calls: int) -> tuple[float, dict[str, Any]]:
    async with doors_of_a_fleet() as doors:
        fuzz, wrong, job_ids, done = Fuzz(doors, seed), list[str](), list[str](), 0
        before, began_s = dict[str, int](), time.monotonic()
        try:
            while done < num_calls and not wrong:
                await asyncio.wait_for(doors.start(FUZZED_STEPS, f"r{len(job_ids)}"), 300)
                job_ids.append(doors.job_id)
                await fuzz.come_as_processes()
                fuzz.records = await _records(doors)
                fuzz.texts = [each.task_id for each in (await doors.remote.job(doors.job_id)).processes]
                before = before or doors.services()
                ending = asyncio.create_task(doors.checked(FUZZED_STEPS))
                while not ending.done() and done < num_calls:
                    numbers = range(done, min(done + IN_FLIGHT, num_calls))
                    await asyncio.gather(*(fuzz.call(index) for index in numbers))
                    done += len(numbers)
                    if done % 600 == 0:
                        say(f"{done} calls in {time.monotonic() - began_s:.0f} s; {doors.services()}")
                wrong += await ending
        finally:
            await fuzz.close()
        after = doors.services()
        if set(after) != set(before):
            wrong.append(f"services were {before} and are {after}")
        wrong += [f"{name} grew" for name in after if after[name] - before.get(name, 0) > GROWTH_KIB]
        wrong += doors.tracebacks()[:10]
        wrong += [f"job {job.job_id}" for job in await doors.remote.jobs() if job.job_id not in job_ids]
        wrong += [f"region {each.name}" for each in (await doors.remote.fleet()).regions if each.name not in REGIONS]
        told = {"calls": done, "jobs": len(job_ids), "wrong": wrong, "kib": [before, after]}
        told |= {"seconds": time.monotonic() - began_s, "ends": dict(fuzz.counts.most_common())}
        return (0 if wrong else done), told


def _demo_tokens_per_s(*arguments: str) -> float:
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        words = [sys.executable, "-m", "periplus", *command("--json", "--work-dir", folder, *DEMO, *arguments)[3:]]
        done = subprocess.run(words, env=environment(Path(folder)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_s"])


def _cost(without: Callable[[], float], having: Callable[[], float]) -> tuple[float, dict[str, Any]]:
    pairs = []
    for number in range(PAIRS):
        order = (without, having) if number % 2 else (having, without)  # neither is always first
        found = {each: each() for each in order}
        pairs.append([found[without], found[having]])
        say(f"tokens/s without and with: {pairs[-1]}")
    left, right = zip(*pairs, strict=True)
    return statistics.median(left) / statistics.median(right), {"tokens_per_s": pairs}


def recheck_cost() -> tuple[float, dict[str, Any]]:
    share = "reward.recheck_share="
    return _cost(partial(_demo_tokens_per_s, f"{share}0"), partial(_demo_tokens_per_s, f"{share}0.01"))


def main() -> int:
    """Measure, and print the figures against their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(TARGETS))
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of the fuzz")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fuzz")
    options = parser.parse_args()
    measures: Mapping[str, Measure] = {
        "attacks_refused": attacks_refused,
        "fuzz_calls_without_effect": lambda: asyncio.run(_fuzz(options.seed, options.calls)),
        "recheck_cost": recheck_cost,
    }
    names = [options.only] if options.only else measures
    return print_figures("doors", measures, names, TARGETS, seed=options.seed)


if __name__ == "__main__":
    sys.exit(main())
