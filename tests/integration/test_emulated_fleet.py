"""A job on a fleet of unlike emulated devices runs the plan that was made, and at its pace."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.submission import submission
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, running_tasks, until_running
from tests.support.processes.demo import audit
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_S = 400.0
STEPS = 4
PLAN = {
    "schema": "periplus.plan/1",
    "method": "by hand",
    "trainer_region": "fast",
    "assignments": [
        {"task": "trainer", "region": "fast", "num_workers": 1, "device": "emulated-L4-500", "data": 2},
        {"task": "rollout", "region": "fast", "num_workers": 1, "device": "emulated-L4-500"},
        {"task": "rollout", "region": "slow", "num_workers": 2, "device": "emulated-L4-2000"},
    ],
}


def emulated(number: int, slowdown: int) -> DeclaredRegion:
    return DeclaredRegion(devices=({"kind": "emulated", "model": "L4", "slowdown": slowdown},) * number)


def test_a_plan_by_hand_runs_process_by_process_at_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = tiny_job(tmp_path, steps=STEPS, staleness=1, algorithm={"group_size": 4}, train={"groups_per_step": 8})
    request = submission(job, "r")
    request.plan_json = json.dumps(PLAN)

    async def scene() -> dict[str, float]:
        async with declared_fleet(tmp_path, {"fast": emulated(3, 500), "slow": emulated(2, 2000)}) as remote:
            job_id = (await remote.submit(request)).job_id
            placed = await until_running(remote, job_id, DEADLINE_S)
            tasks = {name.partition("/")[2]: task for name, task in running_tasks(tmp_path).items()}
            assert {each.task_id.partition("/")[2]: list(each.devices) for each in placed.processes} == {
                "trainer": [0, 1],
                "rollout-fast-0": [2],
                "rollout-slow-0": [0],
                "rollout-slow-1": [1],
            }
            assert {name: (task["data"], task["engine"], task["tensor"]) for name, task in tasks.items()} == {
                "trainer": (2, "", 0),
                **dict.fromkeys(("rollout-fast-0", "rollout-slow-0", "rollout-slow-1"), (0, "torch", 1)),
            }
            paces = {name: task["pace"] for name, task in tasks.items()}
            assert paces["rollout-slow-0"]["decode_s"] == pytest.approx(4 * paces["rollout-fast-0"]["decode_s"])
            async with asyncio.timeout(DEADLINE_S):
                async for _ in remote.watch(job_id):
                    pass
            assert (await remote.job(job_id)).reason == ""
            pace: dict[str, float] = paces["trainer"]
            return pace

    pace = asyncio.run(scene())
    (run,) = (tmp_path / "runs" / "fast").glob("runs/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == STEPS
    # A prompt has two or three tokens here, and a completion one.
    assert all(step["train_s"] >= step["num_samples"] * 3 * pace["training_s"] for step in steps)
    assert any(line["kind"] == "notice" and "emulated" in line["text"] for line in lines)
    assert audit(run)["clean"]


def test_a_trainer_and_a_worker_on_one_emulated_device_have_half_of_its_pace_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = tiny_job(tmp_path, steps=STEPS, staleness=1, algorithm={"group_size": 4}, train={"groups_per_step": 8})

    async def scene() -> tuple[dict[str, Any], dict[str, Any]]:
        async with declared_fleet(tmp_path, {"only": emulated(1, 2000)}) as remote:
            job_id = (await remote.submit(submission(job, "r"))).job_id
            placed = await until_running(remote, job_id, DEADLINE_S)
            assert [list(each.devices) for each in placed.processes] == [[0], [0]]
            planned = {each["task"]: each["pace"] for each in json.loads(placed.plan_json)["assignments"]}
            seen = {task["role"]: task["pace"] for task in running_tasks(tmp_path).values()}
            async with asyncio.timeout(DEADLINE_S):
                async for _ in remote.watch(job_id):
                    pass
            assert (await remote.job(job_id)).reason == ""
            return planned, seen

    planned, seen = asyncio.run(scene())
    for role in ("trainer", "rollout"):
        assert seen[role] == pytest.approx({key: 2 * value for key, value in planned[role].items()})
    (run,) = (tmp_path / "runs" / "only").glob("runs/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == STEPS
    # A prompt in its frame has four tokens at least, and a completion one.
    training_s = 2 * planned["trainer"]["training_s"]
    assert all(step["train_s"] >= step["num_samples"] * 5 * training_s for step in steps)
