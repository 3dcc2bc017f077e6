"""What `periplus/schemas/capabilities.json` lists is executed. Each case is made from the file.

A value that no test here can execute fails: a larger degree starts a larger trainer, and a new kind of parallelism,
topology or role is missing in the tables below. Two lists are executed elsewhere, by cases that depend on the file too:
- engines with an environment of their own, in tests/integration/test_engines_demo.py;
- algorithms, in tests/trainer/test_loop.py, which trains with all that a job file can name;
  tests/planner/files/test_capabilities.py checks that the file lists the same ones.
"""

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus import schemas
from periplus.codec.frame import CodecId
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.pb.v1 import common_pb2
from periplus.process.device_turns import HELD
from periplus.publication import PublicationKind
from periplus.values.machine import DeviceFamily, Pace
from periplus.values.record import Record, RecordKind
from periplus.values.task import Role, TaskState
from planner.files.capabilities import read_file
from rollout_worker import app as worker_app
from rollout_worker.config import WorkerConfig
from tests.support.gateway.loopback import Gateway, gateway, remote_gateway, until
from tests.support.processes.followers import followers
from tests.support.tiny_job import task_of, tiny_job
from tests.support.trainer.whole_run import Trainers
from trainer import app
from trainer.config import TrainerConfig
from trainer.distributed.leader import Leader

CAPABILITIES = read_file(Path(schemas.__path__[0]) / "capabilities.json")

DEADLINE_S = 400.0

DEGREES = [("data", 1)] + [
    (kind, degree)
    for kind, most in {**CAPABILITIES.parallelism.model_dump(), "trainers": CAPABILITIES.max_trainers}.items()
    for degree in sorted({min(3, most), most} - {1})
]
"""Degrees of each kind of parallelism: an odd one, and the largest. Two ranks train in distributed/test_app_ranks.py. A
degree of 1 means none: one case stands for all of them."""

JOB_KEYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "data": lambda degree: {"train": {"groups_per_step": 4, "devices": degree}},
}
"""Sections of a job that has this degree, for each kind of parallelism that can be above 1."""

PPO = {"name": "ppo", "group_size": 8, "kl_coefficient": 0.05}
"""An algorithm that needs every role: it has a critic, and a KL penalty against a reference policy."""

EVIDENCE = {
    "generation": "completion_tokens",
    "reward": "reward_mean",
    "actor_training": "grad_norm",
    "critic_training": "critic_grad_norm",
    "critic_inference": "value_loss",
    "reference_inference": "reference_kl",
}
"""A value of a step's record that is above 0 only if this role has been executed."""


@asynccontextmanager
async def star() -> AsyncIterator[tuple[Gateway, Sequence[Gateway]]]:
    """The trainer's gateway, and gateways of two other regions that are connected to it alone."""
    async with (
        gateway() as home,
        remote_gateway(home.address, "east") as east,
        remote_gateway(home.address, "west") as west,
    ):
        yield home, (east, west)


TOPOLOGIES: dict[str, Callable[[], AbstractAsyncContextManager[tuple[Gateway, Sequence[Gateway]]]]] = {"star": star}
"""Connected gateways of each topology: the trainer's, and those behind which workers generate."""


def worker_of(folder: Path, job: JobFile, behind: Gateway, **changes: Any) -> WorkerConfig:
    region = behind.region
    task = task_of(job, Role.ROLLOUT, folder, gateway=behind.address, task_id=f"job-1/{region}/rollout-0")
    return WorkerConfig.of_task(replace(task, region=region, **changes))


def steps_of(folder: Path, job: JobFile, topology: str, *, num_followers: int = 0, **changes: Any) -> list[Record]:
    """Run a trainer, with a worker behind each gateway of the topology, and return the records of its steps.

    The trainer must have had this many processes beside its own. `changes` are of all their tasks.
    """

    async def run() -> TaskState:
        async with TOPOLOGIES[topology]() as (home, others):
            working = [asyncio.create_task(worker_app.run(worker_of(folder, job, each, **changes))) for each in others]
            task = replace(task_of(job, Role.TRAINER, folder, gateway=home.address), **changes)
            training = asyncio.create_task(
                app.run(replace(TrainerConfig.of_task(task), cache_dir=folder / "models"), asyncio.Event())
            )
            await until(lambda: len(followers()) == num_followers or training.done(), deadline_s=DEADLINE_S)
            assert not training.done()
            state = await training
            await asyncio.gather(*working)
            return state

    with asyncio.Runner() as runner:
        assert runner.run(asyncio.wait_for(run(), DEADLINE_S)) is TaskState.SUCCEEDED
    return [record for record in RunDirectory(folder / "run").records() if record.kind is RecordKind.STEP]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("kind", "degree"), DEGREES)
def test_each_degree_of_parallelism_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, degree: int
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = tiny_job(tmp_path, steps=1, algorithm=PPO, **JOB_KEYS[kind](degree))
    steps = steps_of(tmp_path, job, CAPABILITIES.topologies[0], num_followers=degree - 1)
    assert [record.values["step"] for record in steps] == [1]


@pytest.mark.parametrize("topology", CAPABILITIES.topologies)
def test_each_topology_executes_each_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    *_, last = steps_of(tmp_path, tiny_job(tmp_path, algorithm=PPO), topology)
    executed = {role: last.values[EVIDENCE[role]] for role in CAPABILITIES.roles}
    assert min(executed.values()) > 0, executed


@pytest.mark.parametrize("family", CAPABILITIES.turns_on)
@pytest.mark.parametrize("staleness", [0, 2])
def test_workers_use_the_trainers_devices_by_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: DeviceFamily, staleness: int
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    train, shares = Leader.step, list[bool]()

    def watched(self: Leader, *arguments: Any, **more: Any) -> Any:
        with (tmp_path / "run" / HELD).open("r+") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            shares.append(True)
        return train(self, *arguments, **more)

    monkeypatch.setattr(Leader, "step", watched)
    pace = Pace(prefill_s=1e-4, decode_s=1e-4, training_s=1e-5) if family is DeviceFamily.EMULATED else None
    job = tiny_job(tmp_path, steps=4, staleness=staleness)
    steps = steps_of(tmp_path, job, CAPABILITIES.topologies[0], by_turns=True, pace=pace)
    assert [record.values["step"] for record in steps] == [1, 2, 3, 4]
    assert not shares, "a worker could have the devices during a step"


def test_a_run_publishes_weights_in_each_codec_and_no_other(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a")
    openings = [publication.opening for publication in run.link.published]
    used = {opening.codec for opening in openings if opening.kind is not PublicationKind.BUNDLE}
    assert used == {CodecId(common_pb2.Codec.Value(name)) for name in CAPABILITIES.weight_codecs}


def test_a_job_with_the_largest_bound_on_staleness_trains(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", workers=2, staleness=CAPABILITIES.max_staleness, steps=4)
    assert run.state is TaskState.SUCCEEDED
    assert run.summary["staleness_max"] > 0
    assert run.summary["staleness_violations"] == 0
