"""The whole training loop in one process, with real sampling and real steps of a small Qwen3 (tests/support)."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from periplus.audit.auditor import Report, audit
from periplus.audit.read import read_run
from periplus.audit.records import EndEntry
from periplus.codec import trajectory as trajectory_codec
from periplus.job.algorithm import AlgorithmSection
from periplus.job.run_directory import RunDirectory
from periplus.net.convert import policy_to_pb
from periplus.pb.v1 import common_pb2, gateway_pb2
from periplus.process import task_process
from periplus.publication import Closing, PublicationKind, PublicationRecord
from periplus.values.digest import payload_digest, state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import NUM_LOGPROBS
from periplus.values.record import Record, RecordKind
from periplus.values.task import EXIT_FAILED, Role, TaskOutcome, TaskSpec, TaskState
from periplus.values.trajectory import StopReason
from tests.support.dying import GONE, in_a_child
from tests.support.fake_link import FakeLink
from tests.support.tiny_job import task_of, tiny_job
from trainer.assembly import Running, assembled
from trainer.checkpointing import checkpoint
from trainer.config import TrainerConfig
from trainer.disk_wait import DiskWait
from trainer.publishing import publish
from trainer.setup import Prepared, prepare

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread: results are equal bit by bit only then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OPENED = ExitStack()
"""Journals and stores of the runs that a test has started."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    OPENED.close()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


PREPARED_S = 5.0
"""What the preparation of a trainer takes on the tests' clock, at least."""


@dataclass
class Run:
    """One trainer that runs over fake workers, and what it left behind."""

    config: TrainerConfig
    link: FakeLink
    prepared: Prepared
    running: Running
    records: tuple[Record, ...] = ()
    state: TaskState | None = None

    @property
    def digest(self) -> bytes:
        return self.running.publisher.digest

    def of_kind(self, kind: RecordKind) -> list[Record]:
        return [record for record in self.records if record.kind is kind]

    @property
    def summary(self) -> dict[str, float]:
        return dict(self.of_kind(RecordKind.SUMMARY)[-1].values)


def start(
    folder: Path,
    cache_dir: Path,
    *,
    workers: int = 1,
    order: int = 0,
    fork: int = 0,
    resume_from: Path | None = None,
    link_class: type[FakeLink] = FakeLink,
    say: Callable[[str], None] = lambda phase: None,
    **overrides: Any,
) -> Run:
    folder.mkdir(exist_ok=True)
    job = tiny_job(folder, **overrides)
    task = task_of(job, Role.TRAINER, folder, fork=fork)
    config = TrainerConfig(task=task, job=job, cache_dir=cache_dir, resume_from=resume_from)
    run_directory = RunDirectory(folder / "run")
    run_directory.create()
    clock = iter(range(1, 1_000_000))
    prepared = prepare(config, lambda *_: None, lambda: next(clock) / 1000)
    for _ in range(int(PREPARED_S * 1000)):
        next(clock)
    link = link_class(job, folder, workers, order, fork)
    disk = DiskWait(asyncio.Event(), say)
    running = OPENED.enter_context(
        assembled(config, prepared, link, link.key, run_directory, disk, lambda: next(clock) / 1000, 0.0)
    )
    link.on_message = running.on_message
    return Run(config, link, prepared, running)


async def serve(run: Run, stop: asyncio.Event) -> TaskState:
    """Run the parts of a trainer together, as app.py does."""
    async with asyncio.TaskGroup() as tasks:
        serving = [tasks.create_task(run.running.ledger_service.run()), tasks.create_task(run.running.publisher.run())]
        try:
            return await run.running.loop.run(stop)
        finally:
            for task in serving:
                task.cancel()


def finish(run: Run, *, stop_after: int | None = None) -> Run:
    async def go() -> None:
        stop = asyncio.Event()

        def watch(record: Record) -> None:
            if record.kind is RecordKind.STEP and record.policy.version == stop_after:
                stop.set()

        run.link.on_record = watch
        async with asyncio.timeout(DEADLINE_S):
            run.state = await serve(run, stop)

    asyncio.run(go())
    OPENED.close()
    run.records = RunDirectory(Path(run.config.task.run_dir)).records()
    return run


def train(folder: Path, cache_dir: Path, **settings: Any) -> Run:
    return finish(start(folder, cache_dir, **settings))


def test_a_synchronous_run_has_one_result_whoever_answered_and_in_whichever_order(
    tmp_path: Path, cache_dir: Path
) -> None:
    runs = [
        train(tmp_path / "once", cache_dir),
        train(tmp_path / "again", cache_dir),
        train(tmp_path / "shuffled", cache_dir, workers=3, order=1),
    ]
    assert len({run.digest for run in runs}) == 1
    assert [run.state for run in runs] == [TaskState.SUCCEEDED] * 3
    first_policy = checkpoint_free_digest(tmp_path, cache_dir)
    assert runs[0].digest != first_policy, "nothing was learnt: the test would prove nothing"
    for run in runs:
        assert run.link.policy == Policy(0, 2)
        assert (run.summary["steps"], run.summary["staleness_max"], run.summary["staleness_violations"]) == (2, 0, 0)
        assert run.summary["weight_digest_mismatches"] == 0
        assert run.summary["dropped_samples"] == 0


def checkpoint_free_digest(folder: Path, cache_dir: Path) -> bytes:
    """Return the digest of the untrained model."""
    return model_digest(start(folder / "untrained", cache_dir))


def model_digest(run: Run) -> bytes:
    """Return the digest of the weights that a trainer will publish first."""
    return state_digest(publish.bf16_state(run.prepared.model))


def test_every_version_is_signed_probed_and_told_of_with_what_it_cost(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, steps=3, staleness=1)
    openings = [publication.opening for publication in run.link.published]
    assert [f"{opening.kind} {opening.policy}" for opening in openings] == [
        "bundle 0.0",
        "anchor 0.0",
        "delta 0.1",
        "delta 0.2",
        "delta 0.3",
    ]
    assert all(len(p.closing.probe_logprobs) == NUM_LOGPROBS for p in run.link.published[1:])
    steps = run.of_kind(RecordKind.STEP)
    assert [record.policy for record in steps] == [Policy(0, 1), Policy(0, 2), Policy(0, 3)]
    for record, publication in zip(steps, run.link.published[2:], strict=True):
        values = record.values
        assert values["delta_bytes"] == publication.payload_bytes
        assert 0 < values["delta_density"] <= 1
        assert 0 < values["delta_bits_per_change"] < 16
        assert min(values["publish_s"] - values["encode_s"], values["snapshot_s"], values["encode_s"]) > 0
    sent_bytes = sum(publication.payload_bytes for publication in run.link.published[1:])
    assert run.summary["wan_delta_bytes"] == sent_bytes, "one remote region"
    assert 0 < run.summary["delta_density"] <= 1


def test_what_readers_report_of_their_swaps_stands_in_the_steps_record(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Reporting)
    first = run.of_kind(RecordKind.STEP)[0].values
    assert (first["transfer_s"], first["apply_s"], first["pause_s"]) == (1.5, 0.75, 0.25)
    assert (first["weight_proofs"], first["weight_fallbacks"], first["weight_checks"]) == (2, 1, 1)
    assert first["probe_max_difference"] == 2e-5
    second = run.of_kind(RecordKind.STEP)[1].values
    assert (second["weight_proofs"], second["weight_fallbacks"], second["weight_checks"]) == (1, 1, 0)
    assert "probe_max_difference" not in second
    assert (run.summary["weight_fallbacks"], run.summary["weight_checks"], run.summary["pause_s"]) == (2, 1, 0.25)


class Reporting(FakeLink):
    """A reader that proves each state before its closing is out: as a fallback, then with a check, in turn."""

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        if not isinstance(record, Closing) or not record.state_digest:
            return
        policy = self.published[-1].opening.policy
        checked = policy.version % 2 == 1
        proof = gateway_pb2.WeightProof(
            policy=policy_to_pb(policy),
            state_digest=record.state_digest,
            ok=True,
            engine_checked=checked,
            fallback=not checked,
            probe_max_difference=2e-5 if checked else 0.0,
            transfer_s=1.5,
            apply_s=0.75,
            pause_s=0.25,
        )
        await self.brings(gateway_pb2.RolloutUp(worker_id="w0", proof=proof))


def test_another_seed_is_another_run(tmp_path: Path, cache_dir: Path) -> None:
    runs = [train(tmp_path / str(seed), cache_dir, seed=seed, steps=1) for seed in (1, 2)]
    assert runs[0].digest != runs[1].digest


def test_a_learning_rate_of_zero_changes_neither_weights_nor_accuracy(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, optimizer={"lr": 0.0})
    assert run.digest == checkpoint_free_digest(tmp_path, cache_dir)
    assert run.summary["accuracy_after"] == run.summary["accuracy_before"]


def test_an_asynchronous_run_stays_within_its_bound(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, workers=2, staleness=2, steps=4)
    assert run.state is TaskState.SUCCEEDED
    assert 0 < run.summary["staleness_max"] <= 2
    assert run.summary["staleness_violations"] == 0
    consumed = [sum(record.staleness_tokens.values()) for record in run.of_kind(RecordKind.STEP)]
    assert consumed == [record.values["completion_tokens"] for record in run.of_kind(RecordKind.STEP)]


def test_shuffled_rewards_train_on_the_same_samples_and_end_elsewhere(tmp_path: Path, cache_dir: Path) -> None:
    straight = train(tmp_path / "a", cache_dir, steps=1)
    shuffled = train(tmp_path / "b", cache_dir, steps=1, reward={"name": "shuffled"})
    means = [run.of_kind(RecordKind.STEP)[0].values["reward_mean"] for run in (straight, shuffled)]
    assert means[0] == means[1] > 0
    assert straight.digest != shuffled.digest


def test_a_stopped_run_saves_and_a_resumed_one_goes_on_from_there_in_the_next_fork(
    tmp_path: Path, cache_dir: Path
) -> None:
    stopped = finish(start(tmp_path / "a", cache_dir, steps=3), stop_after=1)
    assert stopped.state is TaskState.STOPPED
    assert not stopped.of_kind(RecordKind.SUMMARY)
    run_dir = Path(stopped.config.task.run_dir)
    assert checkpoint.newest(run_dir / "checkpoints").policy == Policy(0, 1)

    resumed = start(tmp_path / "b", cache_dir, steps=3, fork=1, resume_from=run_dir)
    assert model_digest(resumed) == stopped.digest, "it continues with what readers last held"
    finish(resumed)
    assert resumed.state is TaskState.SUCCEEDED
    assert [record.policy for record in resumed.of_kind(RecordKind.STEP)] == [Policy(1, 2), Policy(1, 3)]
    assert resumed.summary["steps"] == 3
    assert resumed.summary["accuracy_before"] == stopped.of_kind(RecordKind.EVAL)[0].values["accuracy"]
    assert resumed.digest == train(tmp_path / "whole", cache_dir, steps=3).digest, "as if it had never stopped"


@pytest.mark.parametrize(("at_resumption", "at_end", "in_all"), [(120, 150, 150), (0, 50, 150)])
def test_a_resumed_run_sums_the_bytes_between_regions_also_over_a_gateway_that_restarted(
    tmp_path: Path, cache_dir: Path, at_resumption: int, at_end: int, in_all: int
) -> None:
    stopped = start(tmp_path / "a", cache_dir, steps=2)
    stopped.link.wan_bytes_counted = 100
    finish(stopped, stop_after=1)
    resumed = start(tmp_path / "b", cache_dir, steps=2, fork=1, resume_from=Path(stopped.config.task.run_dir))
    resumed.link.wan_bytes_counted = at_resumption

    def count_on(record: Record) -> None:
        resumed.link.wan_bytes_counted = at_end

    resumed.link.on_record = count_on
    asyncio.run(serve(resumed, asyncio.Event()))
    OPENED.close()
    [summary] = [r for r in RunDirectory(tmp_path / "b" / "run").records() if r.kind is RecordKind.SUMMARY]
    assert summary.values["wan_bytes"] == in_all


def test_a_run_whose_gateway_never_told_its_bytes_has_no_sum_of_them(tmp_path: Path, cache_dir: Path) -> None:
    assert "wan_bytes" not in train(tmp_path / "a", cache_dir, steps=1).summary


def test_records_count_their_time_from_the_start_of_the_process(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, steps=1)
    times_s = [record.time_s for record in run.records]
    assert times_s == sorted(times_s)
    assert times_s[0] > PREPARED_S, "what came before the first lease counts"


def audited(folder: Path) -> Report:
    return audit(read_run(folder, (), lambda *_: None))


def die(folder: Path, cache_dir: Path, at: int, **settings: Any) -> None:
    """A trainer in a process of its own, which is gone without a word at its `at`-th message to its gateway."""
    assert in_a_child(_dies, folder, cache_dir, at, settings) == GONE, "it ended before it could be killed"


def _dies(folder: Path, cache_dir: Path, at: int, settings: dict[str, Any]) -> None:
    run = start(folder, cache_dir, **settings)
    calls = count(1)

    def tick(*_: object) -> None:
        if next(calls) == at:
            os._exit(GONE)

    run.link.before_each = tick
    finish(run)


def messages_of(folder: Path, cache_dir: Path, **settings: Any) -> tuple[int, Run]:
    """Return the number of messages that a whole run sends, and the run."""
    run, calls = start(folder, cache_dir, **settings), count()
    run.link.before_each = calls.__next__
    finish(run)
    return next(calls), run


KILLED: dict[str, Any] = {"steps": 3, "checkpoint": {"every_steps": 1, "keep": 2}, "eval": {"num_prompts": 4}}


@pytest.mark.parametrize("share", [0.25, 0.4, 0.55, 0.7, 0.85, 0.97])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_trainer_killed_anywhere_resumes_in_a_new_fork_and_the_audit_is_clean(
    tmp_path: Path, cache_dir: Path, staleness: int, share: float
) -> None:
    settings = KILLED | {"staleness": staleness}
    num_messages, whole = messages_of(tmp_path / "whole", cache_dir, **settings)
    folder = tmp_path / "killed"
    die(folder, cache_dir, max(1, int(num_messages * share)), **settings)
    run_dir = folder / "run"
    if not list((run_dir / "checkpoints").glob("*/manifest.json")):
        assert audited(run_dir).findings == (), "killed before there was anything to resume"
        return

    resumed = finish(start(folder, cache_dir, fork=1, resume_from=run_dir, **settings))

    assert resumed.state is TaskState.SUCCEEDED
    assert resumed.summary["steps"] == 3
    assert resumed.summary["staleness_violations"] == 0
    assert audited(run_dir).findings == ()
    if staleness == 0:
        assert resumed.digest == whole.digest, "not a bit differs from the run that was never killed"


def test_checkpoints_come_as_often_as_asked_and_the_last_step_has_one(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, steps=3, checkpoint={"every_steps": 1, "keep": 2})
    root = Path(run.config.task.run_dir) / "checkpoints"
    assert sorted(path.name for path in root.iterdir()) == ["0.2", "0.3"]


def test_the_warm_up_counts_the_examples_that_it_trained_on(tmp_path: Path, cache_dir: Path) -> None:
    warmup = {"num_examples": 20, "batch_size": 4, "max_steps": 3}
    run = start(tmp_path / "a", cache_dir, train={"groups_per_step": 1, "warmup": warmup})
    assert run.prepared.progress.warmup_examples == 12
    run = start(tmp_path / "b", cache_dir, train={"groups_per_step": 1, "warmup": warmup | {"batch_size": 16}})
    assert run.prepared.progress.warmup_examples == 20


def test_evaluations_during_training_do_not_change_what_is_learnt(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, eval={"num_prompts": 8, "every_steps": 1})
    assert [record.text for record in run.of_kind(RecordKind.EVAL)] == ["before", "during", "after"]
    assert run.digest == train(tmp_path / "b", cache_dir).digest


class Answering(FakeLink):
    """Workers whose results reach the trainer while a publication is still under way."""

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.timeout(60)  # refused results are leased again at once: what fails here spins
def test_a_result_of_the_new_version_that_overtakes_the_end_of_its_publication_is_accepted(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Answering, staleness=1, steps=4)
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


def test_what_a_gateway_gets_wrong_is_counted_and_stops_nobody(tmp_path: Path, cache_dir: Path) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Corrupting)
    assert run.state is TaskState.SUCCEEDED
    assert run.digest == train(tmp_path / "b", cache_dir).digest
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
    tmp_path: Path, cache_dir: Path
) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Dying)
    assert run.state is TaskState.SUCCEEDED
    assert run.digest == train(tmp_path / "b", cache_dir).digest


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
    tmp_path: Path, cache_dir: Path, name: str
) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Extreme, algorithm={"name": name, "group_size": 8})
    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert sum(record.values["failed_groups"] for record in steps) == 1
    assert sum(record.values["refused_samples"] for record in steps) >= 3
    lines = (Path(run.config.task.run_dir) / "audit.jsonl").read_text().splitlines()
    kinds = [(line["kind"], line.get("why"), line.get("group")) for line in map(json.loads, lines)]
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
        leases = queue.take(policy, 8)
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
            queue.add(lease)
        super()._reply()

    def _take(self, publication: Any) -> None:
        if publication.opening.kind is PublicationKind.BUNDLE:
            self.bundle_payload = b"".join(publication.payload_parts)
        super()._take(publication)


def test_a_sample_that_kills_its_worker_each_time_costs_its_group_and_the_job_succeeds(
    tmp_path: Path, cache_dir: Path
) -> None:
    run = train(tmp_path / "a", cache_dir, link_class=Killed)
    assert run.state is TaskState.SUCCEEDED
    assert isinstance(run.link, Killed)
    assert run.link.num_deaths == 3
    steps = run.of_kind(RecordKind.STEP)
    assert sum(record.values["failed_groups"] for record in steps) == 1
    lines = (Path(run.config.task.run_dir) / "audit.jsonl").read_text().splitlines()
    kinds = [(line["kind"], line.get("why")) for line in map(json.loads, lines)]
    assert ("lost", "worker_died") in kinds
    assert ("drop", "failed") in kinds
    assert audited(tmp_path / "a" / "run").findings == ()


def test_nothing_is_granted_after_the_last_line_of_the_audit(tmp_path: Path, cache_dir: Path) -> None:
    run = start(tmp_path / "a", cache_dir)
    ledger_service = run.running.ledger_service
    asyncio.run(ledger_service.close(EndEntry(how="stopped")))
    before = run.config.task.run_dir, (Path(run.config.task.run_dir) / "audit.jsonl").read_bytes()
    hello = gateway_pb2.WorkerHello(region="far", bundle_digest=run.prepared.bundle.digest)
    for up in (
        gateway_pb2.RolloutUp(worker_id="w", hello=hello),
        gateway_pb2.RolloutUp(worker_id="w", capacity=gateway_pb2.Capacity(num_samples=8)),
    ):
        asyncio.run(run.link.brings(up))
    assert (run.config.task.run_dir, (Path(run.config.task.run_dir) / "audit.jsonl").read_bytes()) == before


class Breaking(FakeLink):
    """A link that corrupts the trainer's own weights once they were published."""

    model: Any

    async def publish(self, record: PublicationRecord) -> None:
        await super().publish(record)
        if not isinstance(record, Closing):
            return
        with torch.no_grad():
            next(self.model.parameters()).fill_(float("nan"))


def test_a_loss_that_is_not_finite_is_a_failed_task_that_says_so(tmp_path: Path, cache_dir: Path) -> None:
    def make_work(_: TaskSpec) -> task_process.Work:
        async def work(_: asyncio.Event) -> TaskState:
            return await serve(run, asyncio.Event())

        return work

    run = start(tmp_path / "a", cache_dir, link_class=Breaking)
    assert isinstance(run.link, Breaking)
    run.link.model = run.prepared.model
    assert task_process.run(run.config.task, make_work) == EXIT_FAILED
    outcome = TaskOutcome.of_exit(EXIT_FAILED, Path(run.config.task.status_file).read_text())
    assert outcome.state is TaskState.FAILED
    assert "not applied" in outcome.message


def test_the_task_of_a_resumed_run_names_its_fork(tmp_path: Path, cache_dir: Path) -> None:
    run = start(tmp_path / "a", cache_dir)
    task = replace(run.config.task, fork=4)
    config = replace(run.config, task=task)
    assert prepare(config, lambda *_: None, lambda: 0.0).policy == Policy(4, 0)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("name", get_args(AlgorithmSection.model_fields["name"].annotation))
def test_every_algorithm_that_a_job_can_name_trains(tmp_path: Path, cache_dir: Path, name: str, staleness: int) -> None:
    run = train(tmp_path / "a", cache_dir, staleness=staleness, algorithm={"name": name, "group_size": 8})
    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert [record.policy for record in steps] == [Policy(0, 1), Policy(0, 2)]
    assert all(record.values["grad_norm"] > 0 for record in steps)
    assert all(("value_loss" in record.values) == (name == "ppo") for record in steps)
    assert run.digest != checkpoint_free_digest(tmp_path, cache_dir)


def test_critic_reference_and_their_optimizers_survive_a_resume(tmp_path: Path, cache_dir: Path) -> None:
    settings: dict[str, Any] = {
        "steps": 3,
        "algorithm": {"name": "ppo", "group_size": 8, "kl_coefficient": 0.1},
        "train": {"groups_per_step": 4, "minibatches": 2, "epochs": 2},
    }
    stopped = finish(start(tmp_path / "a", cache_dir, **settings), stop_after=1)
    resumed = start(tmp_path / "b", cache_dir, fork=1, resume_from=Path(stopped.config.task.run_dir), **settings)
    assert finish(resumed).digest == train(tmp_path / "whole", cache_dir, **settings).digest
