"""A real region is measured by order, says so, and the next plan of the job counts with what was measured there."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.client import listing
from coordinator.client.profiling import profile_tree, profiled_regions
from coordinator.client.submission import submission
from periplus.errors import Conflict
from tests.support.processes.declared_fleet import DeclaredRegion, declared_fleet, until_running
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

DEADLINE_S = 500.0
"""A profile takes 30 s on a free machine, and the job after it 10."""


def test_what_was_measured_is_kept_shown_and_planned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = tiny_job(tmp_path, steps=1_000_000, staleness=1, sampling={"max_new_tokens": 4, "prompt_tokens": 8})
    told: list[str] = []

    async def scene() -> None:
        async with declared_fleet(tmp_path, {"home": DeclaredRegion()}) as remote, asyncio.timeout(DEADLINE_S):
            ((region, profile),) = await profiled_regions(remote, job, ["home"], told.append)
            assert (region, profile.problem, profile.is_complete) == ("home", "", True)
            assert len(profile.generation) + len(profile.training) == profile.num_rows > 5
            assert {row.num_samples for row in profile.generation} > {1}
            assert profile.host.sample_s > 0
            tree = profile_tree(region, profile, job)
            assert tree["error_after"] < tree["error_before"]
            shown = listing.region_tree((await remote.fleet()).regions[0])
            assert [each["model"] for each in shown["profiles"]] == ["builtin:qwen3-tiny"]
            job_id = (await remote.submit(submission(job, "r"))).job_id
            placed = await until_running(remote, job_id, DEADLINE_S)
            (figures,) = json.loads(placed.plan_json)["figures"]
            assert figures.startswith(f"cores of home: {profile.num_rows} rows on ")
            with pytest.raises(Conflict, match="home cannot be profiled: it has tasks of"):
                await profiled_regions(remote, job, ["home"], told.append)
            await remote.cancel(job_id)

    asyncio.run(scene())
    assert told[-1].startswith("home: done in ")
    assert [line for line in told if line.endswith("rows measured")]
    assert (tmp_path / "state" / "home" / "profiles" / "builtin:qwen3-tiny-torch.json").exists()
