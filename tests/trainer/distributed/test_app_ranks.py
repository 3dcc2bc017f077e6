"""A whole trainer of several processes, behind a real gateway, with a real worker."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from periplus.errors import RankLost, explained_error
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from periplus.values.task import Role, TaskState
from rollout_worker import app as worker_app
from rollout_worker.config import WorkerConfig
from tests.support.audit.files import audited
from tests.support.gateway.loopback import Gateway, gateway, until
from tests.support.keys import AUTHORITY
from tests.support.processes.followers import followers
from tests.support.tiny_job import task_of, tiny_job
from trainer import app
from trainer.checkpointing import checkpoint
from trainer.config import TrainerConfig

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEADLINE_S = 450.0

FAILED_S = 30.0
"""The promise: a killed rank is a failure within this time."""


def job_of(folder: Path, devices: int, steps: int, sharding: str = "full") -> JobFile:
    train = {"groups_per_step": 4, "devices": devices, "sharding": sharding}
    algorithm = {"name": "ppo", "group_size": 8, "kl_coefficient": 0.05}
    return tiny_job(folder, steps=steps, train=train, algorithm=algorithm, checkpoint={"every_steps": 1})


async def trained(folder: Path, home: Gateway, job: JobFile, *, fork: int = 0) -> TaskState:
    """Run a trainer with a worker to its end; forks after the first resume the run."""
    worker = task_of(job, Role.ROLLOUT, folder, gateway=home.address, task_id="job-1/home/rollout-0")
    task = task_of(job, Role.TRAINER, folder, gateway=home.address, fork=fork)
    config = replace(
        TrainerConfig.of_task(task), cache_dir=folder / "models", resume_from=folder / "run" if fork else None
    )
    working = asyncio.create_task(worker_app.run(WorkerConfig.of_task(worker)))
    try:
        return await app.run(config, asyncio.Event())
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def test_a_trainer_whose_rank_is_killed_fails_at_once_and_other_numbers_of_ranks_finish_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    run = RunDirectory(tmp_path / "run")
    killed_s: list[float] = []

    async def kill_a_rank() -> None:
        saved = run.checkpoints.glob
        await until(lambda: any(saved("0.[1-9]*/manifest.json")), deadline_s=DEADLINE_S)
        (rank,) = followers()
        os.kill(rank, signal.SIGKILL)
        killed_s.append(time.perf_counter())

    async def go() -> None:
        async with gateway() as home:
            killing = asyncio.create_task(kill_a_rank())
            with pytest.raises(ExceptionGroup) as raised:
                await trained(tmp_path, home, job_of(tmp_path, 2, steps=1000))
            await killing
        assert time.perf_counter() - killed_s[0] < FAILED_S
        assert raised.group_contains(RankLost)
        assert "was killed by signal 9" in explained_error(raised.value)
        assert followers() == []
        newest = checkpoint.newest(run.checkpoints).policy
        assert newest.version >= 1
        end = json.loads(run.audit.read_bytes().splitlines()[-2])
        assert (end["kind"], end["how"]) == ("end", "failed")
        for fork, (devices, sharding) in enumerate(((1, "full"), (2, "none"), (2, "full")), 1):
            steps = newest.version + fork
            async with gateway() as home:
                state = await trained(tmp_path, home, job_of(tmp_path, devices, steps, sharding), fork=fork)
            assert state is TaskState.SUCCEEDED
            assert checkpoint.newest(run.checkpoints).policy == Policy(fork, steps)

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(go(), DEADLINE_S))
    assert json.loads((run.final / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    first = next(record for record in run.records() if record.kind is RecordKind.STEP)
    assert first.values["sample_check_tokens"] > 0, "samples are checked whatever the number of ranks"
    summary = run.records()[-1].values
    assert (summary["weight_digest_mismatches"], summary["staleness_violations"]) == (0, 0)
    report = audited(run.root, authorities=[AUTHORITY.public_key])
    assert report.findings == ()
