"""Regions with unlike engines: a plan that mixes them, and an engine that does not start where it was planned."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from coordinator.client.connection import job_state
from coordinator.client.submission import submission
from periplus.pb.v1 import control_pb2
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, running_tasks, until_running
from tests.support.processes.demo import audit
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.vllm]

DEADLINE_S = 1000.0
PLAN = {
    "schema": "periplus.plan/1",
    "method": "by hand",
    "trainer_region": "a",
    "assignments": [
        {"task": "trainer", "region": "a", "num_workers": 1, "device": "emulated-L4-1000"},
        {"task": "rollout", "region": "a", "num_workers": 1, "device": "emulated-L4-1000"},
        {"task": "rollout", "region": "b", "num_workers": 1, "engine": "vllm"},
    ],
}


@pytest.mark.timeout(DEADLINE_S * 2)
def test_samples_of_both_engines_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # Training keeps the pace of slow devices, so that vLLM starts on an idle machine.
    slow = {"kind": "emulated", "model": "L4", "slowdown": 1000}
    with_vllm = ("--engine", os.environ["PERIPLUS_ENGINES"])
    regions = {
        "a": DeclaredRegion(devices=(slow, slow)),
        "b": DeclaredRegion(devices=({"kind": "cpu"}, {"kind": "cpu"}), options=with_vllm),
    }
    job = tiny_job(
        tmp_path, steps=1_000_000, staleness=1, model={"path": "builtin:qwen3-tiny-h32"}, train={"groups_per_step": 32}
    )
    request = submission(job, "r")
    request.plan_json = json.dumps(PLAN)

    async def scene() -> None:
        async with declared_fleet(tmp_path, regions) as remote, asyncio.timeout(DEADLINE_S):
            job_id = (await remote.submit(request)).job_id
            await until_running(remote, job_id, DEADLINE_S)
            engines = {name.partition("/")[2]: task["engine"] for name, task in running_tasks(tmp_path).items()}
            assert engines == {"trainer": "", "rollout-a-0": "torch", "rollout-b-0": "vllm"}
            async for event in remote.watch(job_id):
                if event.step.values.get("tokens_per_s_region/b", 0) > 0:
                    break
            await remote.cancel(job_id)
            async for _ in remote.watch(job_id):
                pass

    asyncio.run(scene())
    (run,) = (tmp_path / "runs" / "a").glob("runs/*")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    sampled = {region for step in steps for region in ("a", "b") if step.get(f"tokens_per_s_region/{region}", 0) > 0}
    assert sampled == {"a", "b"}, "torch samples from the start, and vLLM once it has started"
    assert sum(step["weight_digest_mismatches"] + step["staleness_violations"] for step in steps) == 0
    assert audit(run)["clean"]


@pytest.mark.timeout(DEADLINE_S * 2)
def test_a_job_is_planned_again_without_an_engine_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    name, _, python = os.environ["PERIPLUS_ENGINES"].partition("=")
    broken, site = tmp_path / "broken-python", tmp_path / "site"
    # Its metadata say that vLLM is there, but a library that it needs is not.
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    broken.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {python} "$@"\n')
    broken.chmod(0o755)
    cores = ({"kind": "cpu"}, {"kind": "cpu"})
    regions = {
        "a": DeclaredRegion(devices=cores, options=("--engine", f"{name}={broken}")),
        "b": DeclaredRegion(devices=cores, options=("--engine", f"{name}={python}")),
    }
    model = {"path": "builtin:qwen3-tiny-h32"}
    job = tiny_job(tmp_path, steps=3, staleness=1, model=model, engine={"name": name}, regions={"rollout": None})

    async def scene() -> control_pb2.Job:
        async with declared_fleet(tmp_path, regions) as remote, asyncio.timeout(DEADLINE_S):
            job_id = (await remote.submit(submission(job, "r"))).job_id
            async for _ in remote.watch(job_id):
                pass
            return await remote.job(job_id)

    ended = asyncio.run(scene())
    assert job_state(ended) == "succeeded", ended.reason
    assert [each.task_id for each in ended.processes] == [f"{ended.job_id}/trainer", f"{ended.job_id}/rollout-b-0"]
    assert ended.policy.fork == 1
    assert ended.policy.version == 3
