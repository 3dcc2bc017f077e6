"""Two engines sample for one job: torch in one region and vLLM in another, as a plan says."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from coordinator.client.submission import submission
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, running_tasks, until_running
from tests.support.processes.demo import audit
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.vllm]

DEADLINE_S = 300.0
PLAN = {
    "schema": "periplus.plan/1",
    "method": "by hand",
    "trainer_region": "a",
    "assignments": [
        {"task": "trainer", "region": "a", "num_workers": 1},
        {"task": "rollout", "region": "a", "num_workers": 1},
        {"task": "rollout", "region": "b", "num_workers": 1, "engine": "vllm"},
    ],
}


@pytest.mark.timeout(DEADLINE_S * 2)
def test_samples_of_both_engines_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cores = ({"kind": "cpu"}, {"kind": "cpu"})
    with_vllm = ("--engine", os.environ["PERIPLUS_ENGINES"])
    regions = {"a": DeclaredRegion(devices=cores), "b": DeclaredRegion(devices=cores, options=with_vllm)}
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
