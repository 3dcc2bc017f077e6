"""A whole run of a real trainer with a tracker."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from periplus.job.run_directory import RunDirectory
from periplus.values.record import RecordKind
from periplus.values.task import Role, TaskState
from rollout_worker import app as worker_app
from rollout_worker.config import WorkerConfig
from tests.support.gateway.loopback import gateway
from tests.support.tiny_job import task_of, tiny_job
from trainer import app
from trainer.config import TrainerConfig
from trainer.tracking import feeds

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WHOLE_RUN_DEADLINE_S = 400.0


def test_a_run_leaves_every_step_in_its_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(feeds, "FINISH_S", 120.0)  # a busy machine imports torch slowly
    monkeypatch.setenv("PYTHONPATH", str(Path(feeds.__file__).parents[2]))
    job = tiny_job(tmp_path, steps=3, output={"trackers": ("tensorboard",)})

    async def run() -> None:
        async with gateway() as home:
            task = task_of(job, Role.ROLLOUT, tmp_path, gateway=home.address, task_id="job-1/home/rollout-0")
            working = asyncio.create_task(worker_app.run(WorkerConfig.of_task(task)))
            trainer = TrainerConfig.of_task(task_of(job, Role.TRAINER, tmp_path, gateway=home.address))
            trainer = replace(trainer, cache_dir=tmp_path / "models")
            assert await app.run(trainer, asyncio.Event()) is TaskState.SUCCEEDED
            await working

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(run(), WHOLE_RUN_DEADLINE_S))
    records = [each for each in RunDirectory(tmp_path / "run").records() if each.kind is RecordKind.STEP]
    found = EventAccumulator(str(tmp_path / "run" / "trackers" / "tensorboard" / "tiny"))
    found.Reload()
    for name in ("loss", "reward_mean", "grad_norm"):
        tracked = [(scalar.step, scalar.value) for scalar in found.Scalars(name)]
        assert tracked == [(each.policy.version, pytest.approx(each.values[name])) for each in records]
    assert len(found.Scalars("accuracy")) == 2
    assert len(found.Scalars("summary/accuracy_after")) == 1
