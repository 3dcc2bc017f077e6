"""Tests of the trainer's process (app.py) with its streams to a real gateway on loopback."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from periplus.audit.findings import Code
from periplus.errors import Denied, Unreachable
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.net import rpc
from periplus.pb.v1 import control_pb2
from periplus.publication import JobAuthority
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from periplus.values.task import Role, TaskState
from periplus.values.weight_state import writing_safetensors
from rollout_worker import app as worker_app
from rollout_worker.config import WorkerConfig
from tests.support.audit.files import audited
from tests.support.gateway import loopback as gateways
from tests.support.gateway.cable import cable_to
from tests.support.gateway.loopback import Gateway, gateway, play, until
from tests.support.keys import AUTHORITY
from tests.support.tiny_job import task_of, tiny_job
from trainer import app
from trainer.checkpointing import checkpoint, export
from trainer.checkpointing.manifest import Manifest
from trainer.config import TrainerConfig
from trainer.intake import gateway as link_module
from trainer.intake.gateway import GatewayLink

WHOLE_RUN_DEADLINE_S = 400.0


def trainer_of(job: JobFile, folder: Path, home: Gateway) -> TrainerConfig:
    task = task_of(job, Role.TRAINER, folder, gateway=home.address)
    return replace(TrainerConfig.of_task(task), cache_dir=folder / "models")


def worker_of(job: JobFile, folder: Path, home: Gateway) -> WorkerConfig:
    return WorkerConfig.of_task(
        task_of(job, Role.ROLLOUT, folder, gateway=home.address, task_id="job-1/home/rollout-0")
    )


def test_a_trainer_that_loses_its_gateway_saves_once_and_fails_with_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    save = checkpoint.save

    def count(*arguments: Any) -> Manifest:
        saved.append(arguments[1].policy)
        return save(*arguments)

    monkeypatch.setattr(checkpoint, "save", count)
    monkeypatch.setattr(link_module, "REDIAL_S", 0.0)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    async def run() -> None:
        job = tiny_job(tmp_path)
        async with gateway() as home:
            running = asyncio.create_task(app.run(trainer_of(job, tmp_path, home), asyncio.Event()))
            await until(lambda: running.done() or any("evaluating" in record.text for record in home.records))
        with pytest.raises(Unreachable):
            await running

    play(run)
    assert saved == [Policy(0, 0)]
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").policy == Policy(0, 0)


def test_a_trainer_whose_key_is_not_certified_keeps_what_it_prepared_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, refused="fork 0 has another trainer")

    monkeypatch.setattr(gateways, "certified", refuse)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    async def run() -> None:
        job = tiny_job(tmp_path)
        async with gateway() as home:
            with pytest.raises(ExceptionGroup) as raised:
                await app.run(trainer_of(job, tmp_path, home), asyncio.Event())
        error = rpc.first_of(raised.value)
        assert isinstance(error, Denied)
        assert "fork 0 has another trainer" in str(error)

    play(run)
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").policy == Policy(0, 0)
    assert b'"failed"' in (tmp_path / "run" / "audit.jsonl").read_bytes().splitlines()[-1]


def test_a_trainer_whose_connection_breaks_at_every_stage_ends_in_the_same_fork_with_a_clean_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = tiny_job(tmp_path, steps=30, staleness=1)
    cuts: list[int] = []

    async def run() -> None:
        async with gateway() as home, cable_to(home.address) as cable, asyncio.TaskGroup() as tasks:
            config = trainer_of(job, tmp_path, home)
            config = replace(config, task=replace(config.task, gateway=cable.address))
            running = tasks.create_task(app.run(config, asyncio.Event()))
            working = tasks.create_task(worker_app.run(worker_of(job, tmp_path, home)))

            async def cut() -> None:
                await until(lambda: home.hub.trainer_slot.trainer is not None)
                while not running.done():
                    await asyncio.sleep(0.3 + 0.07 * len(cuts))
                    cable.cut()
                    cuts.append(len(home.records))
                    await asyncio.sleep(0.1)
                    cable.mend()

            cutting = tasks.create_task(cut())
            assert await running is TaskState.SUCCEEDED
            cutting.cancel()
            await asyncio.wait({working}, timeout=10)
            working.cancel()

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(run(), WHOLE_RUN_DEADLINE_S))
    steps = [record for record in RunDirectory(tmp_path / "run").records() if record.kind is RecordKind.STEP]
    assert [record.values["step"] for record in steps] == [*range(1, 31)]
    assert len(cuts) >= 3
    assert {record.policy.fork for record in steps} == {0}
    report = audited(tmp_path / "run", authorities=[AUTHORITY.public_key])
    assert report.findings == ()
    assert sum(record.values["dropped_samples"] for record in steps) == 0


def journal(folder: Path) -> list[bytes]:
    return (folder / "run" / "audit.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize(
    ("lora", "ratio"),
    [
        pytest.param(None, 1.0, id="all weights"),
        # 4 x 2 adapters of rank 1 beside a model of 0.19 M parameters.
        pytest.param({"rank": 1, "target_modules": ("q_proj", "v_proj")}, 50.0, id="adapters"),
    ],
)
def test_a_worker_behind_a_real_gateway_proves_every_version_and_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, Any] | None, ratio: float
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = tiny_job(tmp_path, steps=4, staleness=1, network={"check_engine_every_versions": 2}, model={"lora": lora})

    async def run() -> None:
        async with gateway() as home:
            working = asyncio.create_task(worker_app.run(worker_of(job, tmp_path, home)))
            assert await app.run(trainer_of(job, tmp_path, home), asyncio.Event()) is TaskState.SUCCEEDED
            await working

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(run(), WHOLE_RUN_DEADLINE_S))
    records = RunDirectory(tmp_path / "run").records()
    steps = [record.values for record in records if record.kind is RecordKind.STEP]
    assert [values["step"] for values in steps] == [1, 2, 3, 4]
    assert sum(values["weight_proofs"] for values in steps) >= 3, "the last proof may come after the last step's record"
    summary = records[-1].values
    assert (summary["weight_digest_mismatches"], summary["weight_fallbacks"]) == (0, 0)
    assert summary["weight_checks"] >= 2
    assert 0 < summary["pause_s"] < WHOLE_RUN_DEADLINE_S
    assert all(values["full_weights_bytes"] > ratio * values["delta_bytes"] for values in steps)
    report = audited(tmp_path / "run", authorities=[AUTHORITY.public_key])
    assert (report.findings, report.notes) == ((), ())
    assert (report.seals.num_lines, report.seals.num_keys) == (report.num_lines, 1), "signed to its last line"
    assert [entry["kind"] for entry in map(json.loads, journal(tmp_path))].count("export") == (lora is not None)
    with (tmp_path / "run" / "final" / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\0")
    assert audited(tmp_path / "run", authorities=[AUTHORITY.public_key]).counts == {Code.FINAL_WRONG: 1}
    other = audited(tmp_path / "run", authorities=[JobAuthority.generate().public_key])
    assert Code.SEAL_WRONG in other.counts


@pytest.mark.parametrize("disk_lies", [False, True])
def test_a_run_has_succeeded_once_its_model_was_read_back_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_lies: bool
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = tiny_job(tmp_path, steps=1)

    @contextmanager
    def lying(path: Path, lines: Any) -> Iterator[Callable[[Any], None]]:
        with writing_safetensors(path, lines) as write:
            yield lambda data: write(np.zeros_like(data))

    if disk_lies:
        monkeypatch.setattr(export, "writing_safetensors", lying)

    async def run() -> None:
        async with gateway() as home:
            working = asyncio.create_task(worker_app.run(worker_of(job, tmp_path, home)))
            try:
                assert await app.run(trainer_of(job, tmp_path, home), asyncio.Event()) is TaskState.SUCCEEDED
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    with asyncio.Runner() as runner:
        timed = asyncio.wait_for(run(), WHOLE_RUN_DEADLINE_S)
        if disk_lies:
            with pytest.raises(ExceptionGroup) as raised:
                runner.run(timed)
            assert "when it is read back" in str(rpc.first_of(raised.value))
        else:
            runner.run(timed)
    end, seal = map(json.loads, (tmp_path / "run" / "audit.jsonl").read_bytes().splitlines()[-2:])
    assert seal["kind"] == "seal"
    assert (end["kind"], end["how"]) == ("end", "failed" if disk_lies else "succeeded")
    assert (tmp_path / "run" / "final").exists() is not disk_lies
    assert (tmp_path / "run" / "summary.json").exists() is not disk_lies


def test_a_gateway_that_is_slow_to_close_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(GatewayLink):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(app, "CLOSE_DEADLINE_S", 0.0)
    asyncio.run(app._close(Slow("nowhere", "job-1", 0, bytes(32), ""), "job-1"))
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.WARNING, "gateway_slow_to_close")
