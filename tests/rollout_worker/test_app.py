"""A real worker with a real small model behind a real gateway on loopback; the trainer's side is driven by hand."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from periplus.codec.registry import trajectory_decoder
from periplus.environment.job_environment import trainer_environment
from periplus.errors import PeriplusError
from periplus.job.job_file import JobFile
from periplus.net import rpc
from periplus.publication import Publication
from periplus.values.machine import Pace
from periplus.values.policy import Policy
from periplus.values.probe_prompts import PROBE_LIMITS_FLOAT32, probe_prompts
from periplus.values.task import Role
from periplus.values.trajectory import Purpose, Trajectory
from region_agent.gateway.frames import FrameSpool
from rollout_worker import app
from rollout_worker.app import Worker
from rollout_worker.config import WorkerConfig
from rollout_worker.engines.bundle import LoadedBundle, load_bundle
from rollout_worker.engines.engine import EngineDied
from rollout_worker.engines.slot_decoder import SlotDecoder
from rollout_worker.engines.torch_engine import TorchEngine
from rollout_worker.episodes.episode import EpisodeDesk, FailedLease
from rollout_worker.episodes.sampler import MAX_FAILURES_IN_A_ROW
from tests.support.cases.tiers import rest_is_slow
from tests.support.gateway.loopback import JOB, frame_spool, gateway, play
from tests.support.gateway.spool_disk import SpoolDisk
from tests.support.keys import AUTHORITY, JOB_SECRET
from tests.support.publication.trainer import Author, published_by
from tests.support.tiny_job import task_of, tiny_job
from trainer.data.model import load_model, resolve_model_dir
from trainer.intake.gateway import GatewayLink
from trainer.intake.messages import (
    EngineDoubted,
    FailureReceived,
    FrameReceived,
    FramesAcknowledged,
    HelloReceived,
    JobFinished,
    ProofReceived,
    UpMessage,
)
from trainer.ledger.values import Granted, Lease, LeasesStarted, Revoked, RoomOffered
from trainer.publishing import publish, reference_logprobs
from trainer.publishing.publish import Published

T = TypeVar("T")


@dataclass
class Scene:
    """The trainer by hand, and the model of every engine that a worker built."""

    job: JobFile
    model_dir: Path
    folder: Path
    address: str
    link: GatewayLink
    messages: "asyncio.Queue[UpMessage]" = field(default_factory=asyncio.Queue)
    models: list[Any] = field(default_factory=list)
    num_leases: int = 0

    def __post_init__(self) -> None:
        self.author = Author(JOB)
        self.model: Any = load_model(self.model_dir)[0]
        self.published = self.version(Policy(0, 0))

    def version(self, policy: Policy) -> Published:
        """With the trainer's own probe, which the worker's must agree with."""
        found = reference_logprobs.logprobs(self.model, probe_prompts(self.job.seed, self.model.config.vocab_size))
        return published_by(self.model, policy, tuple(found.reshape(-1).tolist()))

    async def publish(self, publication: Publication) -> None:
        for record in publication.records():
            await self.link.publish(record)

    async def publish_first(self) -> None:
        await self.publish(self.author.bundle(publish.bundle(self.model_dir, trainer_environment(self.job).file)))
        await self.publish_anchor()

    async def publish_anchor(self) -> None:
        await self.publish(self.author.anchor(self.published))

    async def publish_delta(self, *, times: int = 1) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(-1)[self.published.policy.version] += 0.5
        base, self.published = self.published, self.version(self.published.policy.next())
        for _ in range(times):
            await self.publish(self.author.delta(base, self.published))

    def lease(self, worker_id: str, version: int) -> None:
        self.num_leases += 1
        lease = Lease(
            lease_id=self.num_leases,
            group=self.num_leases,
            sample=0,
            item=3,
            start_at=Policy(0, version),
            consume_by_version=0,
            purpose=Purpose.TRAIN,
        )
        self.link.send(Granted(worker_id, (lease,)))

    async def next(self, *kinds: type[T]) -> T:
        """The next message of one of these kinds; others are passed over."""
        while True:
            message = await self.messages.get()
            if isinstance(message, kinds):
                return message

    async def proof(self) -> tuple[int, bool]:
        proof = (await self.next(ProofReceived)).proof
        assert not proof.ok or proof.policy <= self.published.policy
        return proof.policy.version, proof.ok

    async def proven(self) -> None:
        """Until the worker has proven the newest version."""
        while (await self.proof()) != (self.published.policy.version, True):
            pass

    @asynccontextmanager
    async def worker(self, worker_id: str = "w", pace: Pace | None = None) -> AsyncIterator[None]:
        task = task_of(self.job, Role.ROLLOUT, self.folder, gateway=self.address, task_id=worker_id)
        task = replace(task, pace=pace)
        running = asyncio.create_task(Worker(WorkerConfig(task=task, job=self.job), epoch=1).run())
        try:
            yield
            assert not running.done(), running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny", tmp_path_factory.mktemp("models"), 0)


@asynccontextmanager
async def scene(
    model_dir: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    frames: FrameSpool | None = None,
    *,
    check_every: int = 10,
    **overrides: Any,
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(app, "RETRY_S", 0.005)
    async with gateway(frames=frames) as home:
        link = GatewayLink(home.address, JOB, 0, AUTHORITY.public_key, JOB_SECRET)
        changes = {"engine": {"max_requests": 4}} | overrides
        job = tiny_job(folder, network={"check_engine_every_versions": check_every}, **changes)
        it = Scene(job=job, model_dir=model_dir, folder=folder, address=home.address, link=link)

        async def load(*arguments: Any, **more: Any) -> LoadedBundle:
            loaded = await load_bundle(*arguments, **more)
            assert isinstance(loaded.engine, TorchEngine)
            it.models.append(loaded.engine._model)
            return loaded

        monkeypatch.setattr(app, "load_bundle", load)
        running = asyncio.create_task(link.run(it.messages.put))
        try:
            yield it
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def trajectories(received: FrameReceived) -> tuple[Trajectory, ...]:
    frame = received.frame
    return trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=1 << 20)


@pytest.mark.parametrize("bit", [23, 0])
def test_a_flipped_bit_of_the_engine_is_reported_repaired_and_generates_nothing_in_between(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    """Bit 23 makes another bfloat16; bit 0 makes a value that no bfloat16 is."""

    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch, check_every=1) as it, it.worker():
            await it.publish_first()
            first = (await it.next(ProofReceived)).proof
            assert (first.ok, first.engine_checked) == (True, True)
            assert first.probe_mean_difference < PROBE_LIMITS_FLOAT32.first_nats / 4
            assert it.published.probe
            it.lease("w", 0)
            assert trajectories(await it.next(FrameReceived))[0].policies[0].policy == Policy(0, 0)

            q_proj = it.models[0].get_parameter("model.layers.0.self_attn.q_proj.weight")
            q_proj.view(torch.int32)[3, 4] ^= 1 << bit
            it.lease("w", 1)
            await it.publish_delta()
            assert await it.proof() == (1, False)
            again = await it.next(ProofReceived, LeasesStarted, FrameReceived)
            assert isinstance(again, ProofReceived), "it generated with weights that it had not proven"
            assert (again.proof.ok, again.proof.engine_checked) == (True, True)
            assert again.proof.digest == it.published.digest
            assert trajectories(await it.next(FrameReceived))[0].policies[0].policy == Policy(0, 1)
            for name, parameter in it.model.named_parameters():
                assert torch.equal(it.models[0].get_parameter(name).bfloat16(), parameter.detach().bfloat16())

    play(run)


LONG: Any = {"max_new_tokens": 400, "prompt_tokens": 8}
"""Completions that last for a large part of a second, if they do not end by chance."""


@pytest.mark.parametrize("on_swap", rest_is_slow(["keep_kv", "reprefill", "drain"]))
def test_weights_change_within_completions_and_each_token_is_of_the_policy_that_its_run_names(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_swap: str
) -> None:
    async def run() -> None:
        engine = {"on_swap": on_swap}
        async with scene(model_dir, tmp_path, monkeypatch, sampling=LONG, engine=engine) as it, it.worker():
            await it.publish_first()
            await it.proven()
            models = {Policy(0, 0): deepcopy(it.model)}
            for _ in range(8):
                it.lease("w", 0)
            found: list[Trajectory] = []
            while len(found) < 8:
                match await it.next(LeasesStarted, ProofReceived, FrameReceived):
                    case FrameReceived() as frame:
                        found += trajectories(frame)
                    case _ if it.published.policy.version < 4:
                        # Leases have begun, or the engine has taken the version before.
                        await it.publish_delta()
                        models[it.published.policy] = deepcopy(it.model)
                    case _:
                        pass
            mixed = [each for each in found if len(each.policies) > 1]
            if on_swap == "drain":
                assert not mixed
                return
            assert mixed, "no completion lasted long enough"
            for each in mixed:
                assert [r.kept_kv for r in each.policies[1:]] == [on_swap == "keep_kv"] * (len(each.policies) - 1)
                if on_swap == "reprefill":
                    _check_logprobs(each, models)

    play(run)


def _check_logprobs(trajectory: Trajectory, models: dict[Policy, Any]) -> None:
    """Check that the tokens of each run have the log-probabilities that its policy alone gives them."""
    ids = torch.tensor([[*trajectory.prompt_ids.tolist(), *trajectory.completion_ids.tolist()]])
    at, start = 0, len(trajectory.prompt_ids)
    for run in trajectory.policies:
        model = deepcopy(models[run.policy])
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        of_run = ids[0, start + at : start + at + run.num_tokens]
        expected = logprobs[start + at - 1 : start + at - 1 + run.num_tokens].gather(1, of_run[:, None])[:, 0]
        got = torch.from_numpy(trajectory.logprobs[at : at + run.num_tokens].copy())
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        at += run.num_tokens


def test_no_token_of_a_version_that_failed_its_check_leaves_the_worker_and_no_lease_is_lost(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's memory is damaged while it generates: what is under way is generated again with sound weights."""

    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch, check_every=1, sampling=LONG) as it, it.worker():
            await it.publish_first()
            await it.proven()
            for _ in range(8):
                it.lease("w", 0)
            await it.next(LeasesStarted)
            q_proj = it.models[0].get_parameter("model.layers.0.self_attn.q_proj.weight")
            await it.publish_delta()
            while (await it.proof()) != (1, True):
                pass
            q_proj.view(torch.int32)[3, 4] ^= 1 << 23
            await it.publish_delta()
            again: list[int] = []
            found: list[Trajectory] = []
            while len(found) < 8:
                match await it.next(ProofReceived, LeasesStarted, FrameReceived):
                    case ProofReceived() as received if not received.proof.ok:
                        assert received.proof.policy == Policy(0, 2)
                        found_before = len(found)
                    case LeasesStarted(_, lease_ids):
                        again += lease_ids
                    case FrameReceived() as frame:
                        found += trajectories(frame)
            assert found_before < 8, "everything was done before the fault"
            assert sorted(each.lease_id for each in found) == list(range(1, 9))
            # What has a token of the version that failed was generated with the repaired engine from its first token
            # on. The others had ended before that version came, and waited for a frame.
            mended = [each for each in found if each.policies[-1].policy == Policy(0, 2)]
            assert mended, "everything was done before the fault"
            assert all(each.policies[0].policy == Policy(0, 2) for each in mended)
            assert set(again) >= {each.lease_id for each in mended}

    play(run)


def test_a_worker_on_an_emulated_device_says_so_and_samples_at_its_pace(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        pace = Pace(prefill_s=0.02, decode_s=0.1, training_s=9.0)
        async with scene(model_dir, tmp_path, monkeypatch) as it, it.worker(pace=pace):
            await it.publish_first()
            await it.proven()
            began_s = time.monotonic()
            for _ in range(3):
                it.lease("w", 0)
            found: list[Trajectory] = []
            while len(found) < 3:
                found += trajectories(await it.next(FrameReceived))
            took_s = time.monotonic() - began_s
            assert took_s >= sum(0.02 * len(each.prompt_ids) + 0.1 * len(each.completion_ids) for each in found)

    with caplog.at_level("INFO", logger="rollout_worker.app"):
        play(run)
    said = [vars(record)["fields"] for record in caplog.records if record.message == "emulated_device"]
    assert said == [{"prefill_s": 0.02, "decode_s": 0.1, "training_s": 9.0}]


def test_a_worker_that_joins_late_catches_up_and_generates_with_the_newest_weights(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it:
            await it.publish_first()
            for _ in range(3):
                await it.publish_delta()
            async with it.worker("late"):
                await it.proven()
                it.lease("late", 3)
                (sampled,) = trajectories(await it.next(FrameReceived))
                assert sampled.policies[0].policy == Policy(0, 3)
                assert sampled.worker_id == "late"

    play(run)


def test_a_lease_of_the_next_version_waits_for_its_weights(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it, it.worker():
            await it.publish_first()
            await it.next(RoomOffered)
            it.lease("w", 1)
            assert await it.proof() == (0, True)
            await it.publish_delta()
            up = await it.next(ProofReceived, FrameReceived)
            assert isinstance(up, ProofReceived)
            assert up.proof.policy == Policy(0, 1)
            assert trajectories(await it.next(FrameReceived))[0].policies[0].policy == Policy(0, 1)

    play(run)


def test_what_is_published_twice_is_applied_once(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it, it.worker():
            await it.publish_first()
            # One after the other: a worker that is slow would begin with the anchor.
            assert await it.proof() == (0, True)
            await it.publish_delta(times=2)
            assert await it.proof() == (1, True)
            await it.publish_anchor()
            await it.publish_delta(times=2)
            assert await it.proof() == (2, True)

    play(run)


def test_the_worker_ends_when_the_trainer_says_that_the_job_is_done(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it:
            task = task_of(it.job, Role.ROLLOUT, tmp_path, gateway=it.address, task_id="w")
            working = asyncio.create_task(Worker(WorkerConfig(task=task, job=it.job), epoch=1).run())
            await it.publish_first()
            await it.next(RoomOffered)
            it.link.send(JobFinished("w", "done"))
            await working

    play(run)


def test_a_worker_that_the_trainer_doubts_writes_its_engine_anew_and_then_ends(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it:
            task = task_of(it.job, Role.ROLLOUT, tmp_path, gateway=it.address, task_id="w")
            working = asyncio.create_task(Worker(WorkerConfig(task=task, job=it.job), epoch=1).run())
            await it.publish_first()
            assert await it.proof() == (0, True)
            it.link.send(EngineDoubted(worker_id="w", why="odd"))
            assert [await it.proof() for _ in range(2)] == [(0, False), (0, True)]
            it.link.send(EngineDoubted(worker_id="w", why="odd", starts_anew=True))
            assert await it.proof() == (0, False)
            with pytest.raises(ExceptionGroup, match="unhandled errors") as raised:
                await working
            assert raised.group_contains(PeriplusError, match="the trainer found again")

    play(run)


def test_a_worker_outlives_its_gateway_and_goes_on_with_the_next_one(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its streams break in the middle of calls; it keeps its weights and says hello again."""

    async def run() -> None:
        async with AsyncExitStack() as worker:
            async with scene(model_dir, tmp_path, monkeypatch) as first:
                await first.publish_first()
                await worker.enter_async_context(first.worker())
                await first.proven()
            async with gateway(address=first.address) as home:
                link = GatewayLink(home.address, JOB, 0, AUTHORITY.public_key, JOB_SECRET)
                serving = asyncio.create_task(link.run(first.messages.put))
                first.link = link
                await first.next(HelloReceived)
                await first.publish_anchor()
                await first.publish_delta()
                await first.proven()
                assert len(first.models) == 1, "it loaded the bundle again"
                serving.cancel()

    play(run)


def test_what_the_gateway_had_not_spooled_comes_again_over_the_next_one(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first gateway reads nothing into its spool: its disk is full."""

    async def run() -> None:
        disk = SpoolDisk()
        async with AsyncExitStack() as worker:
            async with scene(model_dir, tmp_path, monkeypatch, frames=frame_spool(disk)) as first:
                await first.publish_first()
                await worker.enter_async_context(first.worker())
                await first.proven()
                disk.is_full = True
                first.lease("w", 0)
                await first.next(LeasesStarted)
                await asyncio.sleep(0.2)
                assert first.messages.empty(), "a frame that is not spooled went up"
            async with gateway(address=first.address) as home:
                link = GatewayLink(home.address, JOB, 1, AUTHORITY.public_key, JOB_SECRET)
                serving = asyncio.create_task(link.run(first.messages.put))
                up = await first.next(FrameReceived)
                assert [t.lease_id for t in trajectories(up)] == [1]
                assert (up.key.epoch, up.key.sequence) == (1, 0)
                link.send(FramesAcknowledged(region="home", worker_id="w", epoch=1, sequences=(0,)))
                while home.frames.pending:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.002)
                serving.cancel()

    play(run)


def test_a_lease_that_is_revoked_is_not_worked_on_and_one_that_cannot_be_is_reported(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = EpisodeDesk.requests

    def moody(self: EpisodeDesk, leases: Any) -> Any:
        return tuple(
            FailedLease(lease, "KeyError: 'no such item'") if lease.lease_id == 3 else request
            for lease, request in zip(leases, requests(self, leases), strict=True)
        )

    async def run() -> None:
        monkeypatch.setattr(EpisodeDesk, "requests", moody)
        async with scene(model_dir, tmp_path, monkeypatch) as it, it.worker():
            await it.publish_first()
            await it.proven()
            for version in (1, 1, 1, 1):
                it.lease("w", version)
            it.link.send(Revoked("w", (2,)))
            await asyncio.sleep(0.1)  # it has come before the weights, which take another stream
            await it.publish_delta()
            started = await it.next(LeasesStarted)
            assert started == LeasesStarted("w", (1, 3, 4), Policy(0, 1))
            # The failure overtakes the frame of the others.
            failed = await it.next(FailureReceived)
            assert (failed.lease_id, failed.why) == (3, "KeyError: 'no such item'")
            assert sorted(t.lease_id for t in trajectories(await it.next(FrameReceived))) == [1, 4]

    play(run)


def test_a_worker_that_can_produce_nothing_ends_instead_of_failing_every_lease(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EpisodeDesk, leases: Any) -> Any:
        return tuple(FailedLease(lease, "the device is lost") for lease in leases)

    async def run() -> None:
        monkeypatch.setattr(EpisodeDesk, "requests", broken)
        async with scene(model_dir, tmp_path, monkeypatch) as it:
            task = task_of(it.job, Role.ROLLOUT, tmp_path, gateway=it.address, task_id="w")
            config = WorkerConfig(task=task, job=it.job)
            working = asyncio.create_task(Worker(config, epoch=1).run())
            await it.publish_first()
            await it.next(RoomOffered)
            for _ in range(MAX_FAILURES_IN_A_ROW):
                it.lease("w", 0)
            with pytest.raises(ExceptionGroup) as caught:
                await working
            error = rpc.first_of(caught.value)
            assert "the device is lost" in str(error)

    play(run)


def test_a_worker_whose_engine_died_ends_at_once_with_a_typed_error(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with scene(model_dir, tmp_path, monkeypatch) as it:
            task = task_of(it.job, Role.ROLLOUT, tmp_path, gateway=it.address, task_id="w")
            working = asyncio.create_task(Worker(WorkerConfig(task=task, job=it.job), epoch=1).run())
            await it.publish_first()
            await it.proven()
            monkeypatch.setattr(SlotDecoder, "step", lambda *_, **__: 1 // 0)
            it.lease("w", 0)
            with pytest.raises(ExceptionGroup) as caught:
                await working
            assert isinstance(rpc.first_of(caught.value), EngineDied)

    play(run)
