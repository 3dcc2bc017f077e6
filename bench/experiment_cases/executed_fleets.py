"""Jobs on real fleets of declared devices: whether each process is the one that was planned, and how fast plans run.

`processes_as_planned` compares the plan of a job with the operating system: which processes run, what they see of the
machine, and what their task files say. `tokens_per_s` runs a job under a plan and measures the completion tokens that
it trains on in a second.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

from coordinator.client.connection import Coordinator
from coordinator.client.profiling import profiled_regions
from coordinator.client.submission import submission
from periplus import clock
from periplus.job.job_file import JobFile
from periplus.pb.v1 import control_pb2
from tests.support.processes.declared_fleet import (
    DeclaredRegion,
    declared_fleet,
    running_tasks,
    until_running,
)
from tests.support.tiny_job import tiny_job

START_S = 240.0
"""Seconds for all processes of a job to start. Chosen by hand: each imports torch, on two cores."""

VLLM = Path(".venv-vllm/bin/python").absolute()
"""Interpreter with vLLM's build for CPUs; `make test-vllm` makes it."""

Expected = tuple[str, str, str, int, int]
"""What a process must be: role, region, engine, tensor, data."""


def cards(model: str, number: int, first: int = 0, **more: object) -> tuple[Mapping[str, object], ...]:
    """Accelerators that the machine does not have: processes that are given them compute on its cores."""
    return tuple(
        {"kind": "cuda", "index": first + i, "model": model, "memory_gib": 22, "uuid": f"GPU-{first + i}"} | more
        for i in range(number)
    )


def emulated(model: str, number: int, slowdown: float) -> tuple[Mapping[str, object], ...]:
    return ({"kind": "emulated", "model": model, "slowdown": slowdown},) * number


def by_hand(trainer_region: str, *rows: Mapping[str, object]) -> str:
    plan = {"schema": "periplus.plan/1", "method": "by hand", "trainer_region": trainer_region}
    return json.dumps(plan | {"assignments": list(rows)})


def row(task: str, region: str, device: str, number: int = 1, **more: object) -> dict[str, object]:
    return {"task": task, "region": region, "device": device, "num_workers": number} | more


def fleets() -> Iterator[tuple[str, dict[str, DeclaredRegion], dict[str, Any], str]]:
    """Yield (name, regions, changes of the job, plan by hand or an empty text) of each case."""
    unlike = cards("NVIDIA L4", 2) + cards("NVIDIA H100 80GB HBM3", 1, first=2, memory_gib=79)
    yield "unlike types", {"a": DeclaredRegion(devices=unlike)}, {}, ""
    counts = {
        "a": DeclaredRegion(devices=cards("NVIDIA L4", 3)),
        "b": DeclaredRegion(devices=cards("NVIDIA L4", 1)),
    }
    yield "unlike counts in two regions", counts, {"regions": {"min": 2}}, ""
    engines = {
        "a": DeclaredRegion(devices=cards("NVIDIA L4", 2)),
        "b": DeclaredRegion(devices=cards("NVIDIA L4", 1), options=("--engine", f"vllm={VLLM}")),
        "c": DeclaredRegion(devices=cards("NVIDIA L4", 2)),
    }
    mixed = by_hand("a", row("trainer", "a", "L4"), row("rollout", "a", "L4"), row("rollout", "b", "L4", engine="vllm"))
    heads = {"model": {"path": "builtin:qwen3-tiny-h32"}, "regions": {"min": 3}}
    yield "an engine that only one region has", engines, heads, mixed
    paced = {
        "a": DeclaredRegion(devices=emulated("L4", 3, 300)),
        "b": DeclaredRegion(devices=emulated("L4", 2, 1200)),
    }
    split = by_hand(
        "a",
        row("trainer", "a", "emulated-L4-300", data=2),
        row("rollout", "a", "emulated-L4-300"),
        row("rollout", "b", "emulated-L4-1200", 2),
    )
    yield "emulated devices", paced, {"regions": {"min": 2}}, split
    second = DeclaredRegion(devices=cards("NVIDIA L4", 2), others={"node-2": cards("NVIDIA L4", 8)})
    yield "a machine without a launcher", {"a": second}, {"train": {"groups_per_step": 64}}, ""


def processes_as_planned() -> tuple[float, dict[str, Any]]:
    """Return the fraction of processes that are as planned, over all cases, and what each case gave."""
    right = total = 0
    told: dict[str, Any] = {}
    for name, regions, changes, plan in fleets():
        with new_home() as folder:
            found = asyncio.run(_executed(folder, regions, changes, plan))
        right, total = right + found["right"], total + found["planned"]
        told[name] = found
        print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return right / total, told


async def _executed(
    folder: Path, regions: Mapping[str, DeclaredRegion], changes: Mapping[str, Any], plan: str
) -> dict[str, Any]:
    job = tiny_job(folder, steps=1_000_000, staleness=1, **changes)
    request = submission(job, "r")
    request.plan_json = plan
    async with declared_fleet(folder, regions) as remote:
        job_id = (await remote.submit(request)).job_id
        placed = await until_running(remote, job_id, START_S)
        tasks = running_tasks(folder)
        await remote.cancel(job_id)
        await ended_job(remote, job_id)
    rows = json.loads(placed.plan_json)["assignments"]
    planned = Counter[Expected]()
    for each in rows:
        planned[_planned(each)] += each["num_workers"]
    real = Counter(_real(tasks[each.task_id], each, regions) for each in placed.processes if each.task_id in tasks)
    return {
        "planned": planned.total(),
        "right": (planned & real).total(),
        "notice": placed.notice,
        "processes": {" ".join(map(str, key)): number for key, number in sorted(real.items())},
    }


def _planned(each: Mapping[str, Any]) -> Any:
    trains = each["task"] == "trainer"
    engine = "" if trains else each["engine"]
    tensor, data = (0, each.get("data", 1)) if trains else (each.get("tensor", 1), 0)
    return each["task"], each["region"], engine, tensor, data, each.get("device", ""), bool(each.get("pace"))


def _real(task: Mapping[str, Any], shown: control_pb2.JobProcess, regions: Mapping[str, DeclaredRegion]) -> Any:
    """Return what a process is by its task file and its environment; the device by what it sees."""
    role = {"trainer": "trainer", "rollout_worker": "rollout"}[task["module"]]
    there = list(regions[task["region"]].devices)
    held = [there[index] for index in shown.devices]
    if held[0]["kind"] == "emulated":
        sees_own = task["visible"] == "" and task["pace"] is not None
        name = f"emulated-{held[0]['model']}-{held[0]['slowdown']:g}"
    else:
        sees_own = task["visible"] == ",".join(str(each["uuid"]) for each in held)
        name = "L4" if "L4" in str(held[0]["model"]) else "H100-SXM"
    paced = task["pace"] is not None
    device = name if sees_own else f"wrong: {task['visible']}"
    return role, task["region"], task["engine"], task["tensor"], task["data"], device, paced


def tokens_per_s(
    job: JobFile, regions: Mapping[str, DeclaredRegion], plan: str, grid: str, steps: int, *, plaintext: bool = False
) -> dict[str, Any]:
    """Run a job of `steps` steps under a plan, or under the best that is found, and measure it from the third step."""
    with new_home() as folder:
        changed = job.model_copy(update={"steps": steps})
        placed, _ = run_whole(folder, changed, regions, plan, grid, plaintext=plaintext)
        (metrics,) = folder.glob("runs/*/runs/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    done = [line for line in lines if line["kind"] == "step"]
    begin, counted = done[1], done[2:]
    seconds = counted[-1]["time_s"] - begin["time_s"]
    tree = json.loads(placed.plan_json)
    return {
        "tokens_per_s": sum(each["completion_tokens"] for each in counted) / seconds,
        "step_s": seconds / len(counted),
        "predicted_step_s": (tree.get("evaluation") or {}).get("step_s"),
        "train_s": sum(each["train_s"] for each in counted) / len(counted),
        "wait_s": sum(each["wait_s"] for each in counted) / len(counted),
        "copy_bytes": counted[-1]["full_weights_bytes"],
        "delta_bytes": sum(each["delta_bytes"] for each in counted) / len(counted),
        "staleness_mean": sum(each["staleness_mean"] for each in counted) / len(counted),
        "processes": [
            {key: each[key] for key in ("task", "region", "num_workers", "device", "data") if key in each}
            for each in tree["assignments"]
        ],
    }


def run_whole(
    folder: Path,
    job: JobFile,
    regions: Mapping[str, DeclaredRegion],
    plan: str = "",
    grid: str = "",
    *,
    profiles: bool = False,
    plaintext: bool = False,
) -> tuple[control_pb2.Job, float]:
    """Run a job to its end on a new fleet below `folder`. Return it as the coordinator shows it then, and the seconds
    that the profile of one region took, on average.

    `plan` is one by hand, or empty for a search; `grid` is the text of a file of links, or empty for no emulation. With
    `profiles`, the regions are profiled for the job first; with `plaintext`, nobody in the fleet has an identity.
    """
    file = folder / "grid.csv" if grid else None
    if file is not None:
        file.write_text(grid)
    fleet = declared_fleet(folder, regions, file, plaintext=plaintext)
    return asyncio.run(_run_whole(fleet, job, regions, plan, profiles))


async def _run_whole(
    fleet: AbstractAsyncContextManager[Coordinator],
    job: JobFile,
    regions: Mapping[str, DeclaredRegion],
    plan: str,
    profiles: bool,
) -> tuple[control_pb2.Job, float]:
    request = submission(job, "r")
    request.plan_json = plan
    async with fleet as remote:
        begun_s = clock.monotonic_s()
        if profiles:
            await profiled_regions(remote, job, tuple(regions), lambda text: print(text, file=sys.stderr, flush=True))
        profile_s = (clock.monotonic_s() - begun_s) / len(regions)
        job_id = (await remote.submit(request)).job_id
        await until_running(remote, job_id, START_S)
        ended = await ended_job(remote, job_id)
        assert ended.reason == "", ended.reason
    return ended, profile_s


async def ended_job(remote: Coordinator, job_id: str) -> control_pb2.Job:
    """Wait until a job has ended, and return it."""
    async for _ in remote.watch(job_id):
        pass
    return await remote.job(job_id)


@contextmanager
def new_home() -> Iterator[Path]:
    """A new folder that is the home of all processes that are started meanwhile."""
    before = os.environ.get("HOME", "")
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        os.environ["HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ["HOME"] = before
