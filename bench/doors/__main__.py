"""Claim: who has no right to something gets nothing done at a door of Periplus, and the doors cost nothing.

- `attacks_refused`: the attacks of docs/security.md, each made for real (`bench/doors/attacks.py`); how many are
  refused.
- `fuzz_calls_without_effect`: seeded calls of every method of a coordinator and two gateways (`bench/doors/fuzz.py`)
  while jobs run there. They count if each of the jobs made all of its steps with a clean audit, no other job or region
  appeared, each service is the process that it was and has not grown by more than `GROWTH_KIB`, and no log tells of an
  exception that nobody expected; otherwise none counts.
- `token_cost`, `recheck_cost`: completion tokens of the demo in a second without the token of its fleet over with
  it, and without scoring samples again over with a hundredth of them. Runs alternate, and medians are compared.

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

from bench import provenance
from bench.doors.attacks import ATTACKS, attacks_refused
from bench.doors.fleet import REGIONS, Doors, checked, doors_of_a_fleet
from bench.doors.fuzz import Fuzz, Known
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
    "token_cost": ("<=", 1.02, "ratio"),
    "recheck_cost": ("<=", 1.02, "ratio"),
}
"""Operator, target and unit of each figure."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _records(gateway: str, job_id: str, secret: str) -> list[gateway_pb2.PublicationRecord]:
    """Return the first records that a reader with the job's secret is sent."""
    found: list[gateway_pb2.PublicationRecord] = []
    async with rpc.channel(gateway) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        call = stub.Subscribe(gateway_pb2.SubscribeRequest(job_id=job_id), metadata=metadata_of_job(secret))
        async for record in call:
            found.append(record)
            if len(found) == 12:
                call.cancel()
                break
    return found


async def _fuzzed(doors: Doors, seed: int, num_calls: int, steps: int) -> tuple[list[str], dict[str, Any]]:
    fuzz, wrong, job_ids = Fuzz(doors, Known(job_id="", secret=""), seed), list[str](), list[str]()
    done, began_s = 0, time.monotonic()
    await asyncio.wait_for(_next_job(doors, fuzz.known, job_ids, steps), 300)
    before = doors.services()
    try:
        while done < num_calls and not wrong:
            ending = asyncio.create_task(checked(doors, job_ids[-1], steps))
            while not ending.done() and done < num_calls:
                numbers = range(done, min(done + IN_FLIGHT, num_calls))
                await asyncio.gather(*(fuzz.call(index) for index in numbers))
                done += len(numbers)
                if done % 600 == 0:
                    say(f"{done} calls in {time.monotonic() - began_s:.0f} s; {doors.services()}")
            wrong += await ending
            if done < num_calls and not wrong:
                await _next_job(doors, fuzz.known, job_ids, steps)
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
    return wrong, told | {"seconds": time.monotonic() - began_s, "ends": dict(fuzz.counts.most_common())}


async def _next_job(doors: Doors, known: Known, job_ids: list[str], steps: int) -> None:
    known.job_id, known.secret = await doors.start(doors.job(steps), f"r{len(job_ids)}")
    job_ids.append(known.job_id)
    known.records = await _records(doors.gateways[0], known.job_id, known.secret)
    processes = (await doors.remote.job(known.job_id)).processes
    known.texts = [each.task_id for each in processes]


async def _fuzz(seed: int, num_calls: int) -> tuple[float, dict[str, Any]]:
    async with doors_of_a_fleet() as doors:
        wrong, told = await _fuzzed(doors, seed, num_calls, FUZZED_STEPS)
        return 0 if wrong else told["calls"], told


def fuzz_calls_without_effect(seed: int = 0, num_calls: int = CALLS) -> tuple[float, dict[str, Any]]:
    return asyncio.run(_fuzz(seed, num_calls))


def _demo_tokens_per_s(*arguments: str, module: str = "periplus") -> float:
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        words = [sys.executable, "-m", module, *command("--json", "--work-dir", folder, *DEMO, *arguments)[3:]]
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


def token_cost() -> tuple[float, dict[str, Any]]:
    return _cost(partial(_demo_tokens_per_s, module="bench.doors.without_token"), _demo_tokens_per_s)


def recheck_cost() -> tuple[float, dict[str, Any]]:
    share = "reward.recheck_share="
    return _cost(partial(_demo_tokens_per_s, f"{share}0"), partial(_demo_tokens_per_s, f"{share}0.01"))


MEASURES: Mapping[str, Callable[[], tuple[float, dict[str, Any]]]] = {
    "attacks_refused": attacks_refused,
    "fuzz_calls_without_effect": fuzz_calls_without_effect,
    "token_cost": token_cost,
    "recheck_cost": recheck_cost,
}


def main() -> int:
    """Measure, and print the figures against their targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of the fuzz")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fuzz")
    options = parser.parse_args()
    fuzz = partial(fuzz_calls_without_effect, options.seed, options.calls)
    measures: dict[str, Callable[[], tuple[float, dict[str, Any]]]] = {**MEASURES, "fuzz_calls_without_effect": fuzz}
    machine, results, reach = provenance.machine(), {}, []
    for name in [options.only] if options.only else measures:
        value, results[name] = measures[name]()
        op, target, unit = TARGETS[name]
        held = value == target if op == "==" else value <= target if op == "<=" else value >= target
        reach.append({"name": name, "value": round(value, 4), "unit": unit, "op": op, "target": target, "ok": held})
    line = {"bench": "doors", "commit": provenance.commit(), "machine": machine, "seed": options.seed}
    print(json.dumps(line | {"results": results, "reach": reach}))
    return 0 if all(each["ok"] for each in reach) else 1


if __name__ == "__main__":
    sys.exit(main())
