"""The trainer beside its streams, over a real gateway on loopback."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus.errors import Unreachable
from periplus.policy import Policy
from periplus.task import Role
from tests.support.gateways import gateway, play, until
from tests.support.tiny_job import task_of, tiny_job
from trainer import app, checkpoint
from trainer.config import TrainerConfig
from trainer.gateway import GatewayLink


def test_a_trainer_that_loses_its_gateway_saves_once_and_fails_with_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    save = checkpoint.save

    def count(*arguments: Any) -> checkpoint.Manifest:
        saved.append(arguments[1].policy)
        return save(*arguments)

    monkeypatch.setattr(checkpoint, "save", count)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    async def run() -> None:
        job = tiny_job(tmp_path)
        async with gateway() as home:
            task = task_of(job, Role.TRAINER, tmp_path, gateway=home.address)
            config = TrainerConfig(task=task, job=job, cache_dir=tmp_path / "models", resume_from=None)
            running = asyncio.create_task(app.run(config, asyncio.Event()))
            await until(lambda: running.done() or any("evaluating" in record.text for record in home.records))
        with pytest.raises(Unreachable):
            await running

    play(run)
    assert saved == [Policy(0, 0)]
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").policy == Policy(0, 0)


def test_a_gateway_that_is_slow_to_close_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(GatewayLink):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(app, "CLOSE_DEADLINE_S", 0.0)
    asyncio.run(app._close(Slow("nowhere", "job-1", 0, 1 << 10), "job-1"))
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.WARNING, "gateway_slow_to_close")
