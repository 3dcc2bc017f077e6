"""What a worker, a gateway, an environment or a model does wrong costs no more than it must and fails with a reason."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from periplus.audit.records import EndEntry
from periplus.codec import trajectory as trajectory_codec
from periplus.net.convert import policy_to_pb
from periplus.pb.v1 import common_pb2, gateway_pb2
from periplus.process import task_process
from periplus.publication import Closing, PublicationKind, PublicationRecord
from periplus.values.digest import payload_digest
from periplus.values.record import RecordKind
from periplus.values.task import EXIT_FAILED, TaskOutcome, TaskSpec, TaskState
from periplus.values.trajectory import StopReason
from tests.support.audit.files import audited
from tests.support.publication.signed import payload_parts
from tests.support.trainer.fake_link import FakeLink
from tests.support.trainer.whole_run import Trainers


class Answering(FakeLink):
    """Workers whose results reach the trainer while a publication is still under way."""

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.timeout(60)  # refused results are leased again at once: what fails here spins
def test_a_result_of_the_new_version_that_overtakes_the_end_of_its_publication_is_accepted(
    tmp_path: Path, trainers: Trainers, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainers.train(tmp_path / "a", link_class=Answering, staleness=1, steps=4)
    assert run.state is TaskState.SUCCEEDED
    assert not [r for r in caplog.records if getattr(r, "fields", {}).get("why") == "too_old"]


class Corrupting(FakeLink):
    """A gateway that passes on a frame that holds no trajectory, messages of an unknown worker, and a failed proof."""

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        if not isinstance(record, Closing):
            return
        frame = gateway_pb2.TrajectoryFrame(codec=common_pb2.CODEC_TRAJECTORY_COLUMNS_ZSTD, payload=b"no frame")
        for up in (
            gateway_pb2.RolloutUp(worker_id="w0", frame=frame),
            gateway_pb2.RolloutUp(worker_id="w0", frame=gateway_pb2.TrajectoryFrame(payload=b"of no codec")),
            gateway_pb2.RolloutUp(worker_id="nobody", capacity=gateway_pb2.Capacity(num_samples=1)),
            gateway_pb2.RolloutUp(worker_id="stranger", hello=gateway_pb2.WorkerHello(bundle_digest=b"of another job")),
            gateway_pb2.RolloutUp(worker_id="w0", proof=gateway_pb2.WeightProof(state_digest=b"wrong", ok=False)),
            gateway_pb2.RolloutUp(worker_id="w0"),
        ):
            await self.brings(up)


def test_what_a_gateway_gets_wrong_is_counted_and_stops_nobody(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", link_class=Corrupting)
    assert run.state is TaskState.SUCCEEDED
    assert run.digest == trainers.train(tmp_path / "b").digest
    steps = [record.values["weight_digest_mismatches"] for record in run.of_kind(RecordKind.STEP)]
    assert run.summary["weight_digest_mismatches"] == 4
    duplicates = [record.values["duplicate_samples"] for record in run.of_kind(RecordKind.STEP)]
    assert duplicates == [8 + 32, 32], "the fake workers send each result twice"
    assert [record.values["refused_samples"] for record in run.of_kind(RecordKind.STEP)] == [0, 0]
    assert sum(steps) == 4, "a step's record counts its own, since they are added up"


class Dying(FakeLink):
    """A worker that abandons a sample half-way, and has left when its frame arrives."""

    sent = False

    def up(self, **message: Any) -> None:
        if "frame" in message and not self.sent:
            self.sent = True
            decoded = trajectory_codec.decode(message["frame"].payload, max_content_bytes=1 << 20)
            given_up = replace(decoded[0], stop_reason=StopReason.ABANDONED, worker_id="gone")
            frame = gateway_pb2.TrajectoryFrame()
            frame.CopyFrom(message["frame"])
            frame.payload, frame.sequence = trajectory_codec.encode([given_up]), 1 << 20
            super().up(worker_id="gone", frame=frame)
        super().up(**message)


def test_a_sample_given_up_by_a_worker_that_is_gone_is_counted_and_stops_nobody(
    tmp_path: Path, trainers: Trainers
) -> None:
    run = trainers.train(tmp_path / "a", link_class=Dying)
    assert run.state is TaskState.SUCCEEDED
    assert run.digest == trainers.train(tmp_path / "b").digest


class Extreme(FakeLink):
    """An environment whose reward for one group is far out of range; the others of its frames are as they were."""

    bad_group = 1

    def up(self, **message: Any) -> None:
        if "frame" in message:
            decoded = trajectory_codec.decode(message["frame"].payload, max_content_bytes=1 << 20)
            rewards = [1e200 if t.group == self.bad_group else t.reward for t in decoded]
            changed = [replace(t, reward=reward) for t, reward in zip(decoded, rewards, strict=True)]
            message["frame"].payload = trajectory_codec.encode(changed)
        super().up(**message)


@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus"])
def test_a_reward_out_of_range_costs_its_group_after_its_attempts_and_the_job_succeeds(
    tmp_path: Path, trainers: Trainers, name: str
) -> None:
    run = trainers.train(tmp_path / "a", link_class=Extreme, algorithm={"name": name, "group_size": 8})
    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert sum(record.values["failed_groups"] for record in steps) == 1
    assert sum(record.values["refused_samples"] for record in steps) >= 3
    kinds = [(line["kind"], line.get("why"), line.get("group")) for line in run.journal()]
    assert kinds.count(("drop", "failed", Extreme.bad_group)) == 1
    assert sum(kind[:2] == ("lost", "refused") for kind in kinds) >= 3
    assert audited(tmp_path / "a" / "run").findings == ()


class Killed(FakeLink):
    """A worker whose process dies over one item, each time at once, and is started again."""

    bad_group = 2
    num_deaths = 0

    def _reply(self) -> None:
        queue = self._queues["w0"]
        policy = self.policy
        if policy is None or not queue.has_startable(policy):
            return
        leases = queue.take(policy, 8, is_idle=True)
        started = gateway_pb2.LeasesStarted(lease_ids=[x.lease_id for x in leases], policy=policy_to_pb(policy))
        self.up(worker_id="w0", started=started)
        if any(lease.group == self.bad_group for lease in leases):
            self.num_deaths += 1
            queue.clear()
            self.up(worker_id="w0", gone=gateway_pb2.WorkerGone(reason="its stream ended"))
            digest = payload_digest(self.bundle_payload)
            hello = gateway_pb2.WorkerHello(region="far", bundle_digest=digest, epoch=self.num_deaths)
            self.up(worker_id="w0", hello=hello)
            self.up(worker_id="w0", capacity=gateway_pb2.Capacity(num_samples=16))
            return
        for lease in leases:
            queue.put_back(lease, lease.start_at)
        super()._reply()

    def _take(self, publication: Any) -> None:
        if publication.opening.kind is PublicationKind.BUNDLE:
            self.bundle_payload = b"".join(payload_parts(publication))
        super()._take(publication)


def test_a_sample_that_kills_its_worker_each_time_costs_its_group_and_the_job_succeeds(
    tmp_path: Path, trainers: Trainers
) -> None:
    run = trainers.train(tmp_path / "a", link_class=Killed)
    assert run.state is TaskState.SUCCEEDED
    assert isinstance(run.link, Killed)
    assert run.link.num_deaths == 3
    steps = run.of_kind(RecordKind.STEP)
    assert sum(record.values["failed_groups"] for record in steps) == 1
    kinds = [(line["kind"], line.get("why")) for line in run.journal()]
    assert ("lost", "worker_died") in kinds
    assert ("drop", "failed") in kinds
    assert audited(tmp_path / "a" / "run").findings == ()


def test_nothing_is_granted_after_the_last_line_of_the_audit(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.start(tmp_path / "a")
    ledger_service = run.running.ledger_service
    asyncio.run(ledger_service.close(EndEntry(how="stopped")))
    before = run.config.task.run_dir, (run.run_dir / "audit.jsonl").read_bytes()
    hello = gateway_pb2.WorkerHello(region="far", bundle_digest=run.prepared.bundle.digest)
    for up in (
        gateway_pb2.RolloutUp(worker_id="w", hello=hello),
        gateway_pb2.RolloutUp(worker_id="w", capacity=gateway_pb2.Capacity(num_samples=8)),
    ):
        asyncio.run(run.link.brings(up))
    assert (run.config.task.run_dir, (run.run_dir / "audit.jsonl").read_bytes()) == before


class Breaking(FakeLink):
    """A link that corrupts the trainer's own weights once they were published."""

    model: Any

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        if not isinstance(record, Closing):
            return
        with torch.no_grad():
            next(self.model.parameters()).fill_(float("nan"))


def test_a_loss_that_is_not_finite_is_a_failed_task_that_says_so(tmp_path: Path, trainers: Trainers) -> None:
    def make_work(_: TaskSpec) -> task_process.Work:
        async def work(_: asyncio.Event) -> TaskState:
            return await run.serve(asyncio.Event())

        return work

    run = trainers.start(tmp_path / "a", link_class=Breaking)
    assert isinstance(run.link, Breaking)
    run.link.model = run.prepared.model
    assert task_process.run(run.config.task, make_work) == EXIT_FAILED
    outcome = TaskOutcome.of_exit(EXIT_FAILED, Path(run.config.task.status_file).read_text())
    assert outcome.state is TaskState.FAILED
    assert "not applied" in outcome.message
