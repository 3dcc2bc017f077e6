"""A whole job trains in one process, with real sampling and real steps of a small Qwen3: the loop learns, publishes and
records what the job asks for."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from periplus.errors import NotFound, UnsoundEngine, WrongRewards
from periplus.job.algorithm import AlgorithmSection
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.gallery import gallery_of
from periplus.job.samples.selection import SampleQuery
from periplus.net.convert import policy_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.publication import Closing, Publication, PublicationRecord
from periplus.values.machine import Pace
from periplus.values.policy import Policy
from periplus.values.probe_prompts import NUM_LOGPROBS
from periplus.values.record import RecordKind
from periplus.values.task import Role, TaskState
from periplus.values.trajectory import Purpose, Trajectory
from rollout_worker.episodes.queue import QueuedLease
from tests.support.audit.files import audited
from tests.support.cases.tiers import rest_is_slow
from tests.support.tiny_job import REWARDS, task_of, tiny_job
from tests.support.trainer.fake_link import FakeLink
from tests.support.trainer.whole_run import PREPARED_S, Trainers
from trainer.checks import sample_checks
from trainer.config import TrainerConfig
from trainer.intake.messages import DownMessage, EngineDoubted, JobFinished
from trainer.ledger.values import Granted
from trainer.setup import prepare

ALGORITHMS = rest_is_slow(
    sorted(get_args(AlgorithmSection.model_fields["name"].annotation), key=lambda name: name not in ("grpo", "ppo")),
    quick=2,
)


def test_a_synchronous_run_has_one_result_whoever_answered_and_in_whichever_order(
    tmp_path: Path, trainers: Trainers
) -> None:
    runs = [
        trainers.train(tmp_path / "once"),
        trainers.train(tmp_path / "again"),
        trainers.train(tmp_path / "shuffled", workers=3, order=1),
    ]
    assert len({run.digest for run in runs}) == 1
    assert [run.state for run in runs] == [TaskState.SUCCEEDED] * 3
    first_policy = trainers.untrained_digest(tmp_path)
    assert runs[0].digest != first_policy, "nothing was learnt: the test would prove nothing"
    for run in runs:
        assert run.link.policy == Policy(0, 2)
        assert (run.summary["steps"], run.summary["staleness_max"], run.summary["staleness_violations"]) == (2, 0, 0)
        assert run.summary["weight_digest_mismatches"] == 0
        assert run.summary["dropped_samples"] == 0


def test_a_job_that_was_placed_twice_begins_in_a_later_fork(tmp_path: Path, trainers: Trainers) -> None:
    first, later = trainers.train(tmp_path / "first"), trainers.train(tmp_path / "later", fork=1)
    assert later.link.policy == Policy(1, 2)
    assert later.model_digest == first.model_digest
    assert audited(later.run_dir).findings == ()


def test_every_version_is_signed_probed_and_told_of_with_what_it_cost(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", steps=3, staleness=1)
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


def test_what_readers_report_of_their_swaps_stands_in_the_steps_record(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", link_class=Reporting)
    first = run.of_kind(RecordKind.STEP)[0].values
    assert (first["transfer_s"], first["apply_s"], first["pause_s"]) == (1.5, 0.75, 0.25)
    assert (first["weight_proofs"], first["weight_fallbacks"], first["weight_checks"]) == (2, 1, 1)
    assert first["probe_max_difference"] == 2e-5
    second = run.of_kind(RecordKind.STEP)[1].values
    assert (second["weight_proofs"], second["weight_fallbacks"], second["weight_checks"]) == (1, 1, 0)
    assert "probe_max_difference" not in second
    assert [value for name, value in second.items() if name.startswith("generation_s_region/")] == [2.5]
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
            generation_s=2.5 * policy.version,
        )
        await self.brings(gateway_pb2.RolloutUp(worker_id="w0", proof=proof))


def test_another_seed_is_another_run(tmp_path: Path, trainers: Trainers) -> None:
    runs = [trainers.train(tmp_path / str(seed), seed=seed, steps=1) for seed in (1, 2)]
    assert runs[0].digest != runs[1].digest


def test_a_learning_rate_of_zero_changes_neither_weights_nor_accuracy(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", optimizer={"lr": 0.0})
    assert run.digest == trainers.untrained_digest(tmp_path)
    assert run.summary["accuracy_after"] == run.summary["accuracy_before"]


def test_an_asynchronous_run_stays_within_its_bound(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", workers=2, staleness=2, steps=4)
    assert run.state is TaskState.SUCCEEDED
    assert 0 < run.summary["staleness_max"] <= 2
    assert run.summary["staleness_violations"] == 0
    consumed = [sum(record.staleness_tokens.values()) for record in run.of_kind(RecordKind.STEP)]
    assert consumed == [record.values["completion_tokens"] for record in run.of_kind(RecordKind.STEP)]


def test_shuffled_rewards_train_on_the_same_samples_and_end_elsewhere(tmp_path: Path, trainers: Trainers) -> None:
    straight = trainers.train(tmp_path / "a", steps=1)
    shuffled = trainers.train(tmp_path / "b", steps=1, reward={"name": "shuffled", "functions": REWARDS})
    means = [run.of_kind(RecordKind.STEP)[0].values["reward_mean"] for run in (straight, shuffled)]
    assert means[0] == means[1] > 0
    assert straight.digest != shuffled.digest


def test_a_run_whose_gateway_never_told_its_bytes_has_no_sum_of_them(tmp_path: Path, trainers: Trainers) -> None:
    assert "wan_bytes" not in trainers.train(tmp_path / "a", steps=1).summary


def test_records_count_their_time_from_the_start_of_the_process(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", steps=1)
    times_s = [record.time_s for record in run.records]
    assert times_s == sorted(times_s)
    assert times_s[0] > PREPARED_S, "what came before the first lease counts"


def test_the_warm_up_counts_the_examples_that_it_trained_on(tmp_path: Path, trainers: Trainers) -> None:
    warmup = {"num_examples": 20, "batch_size": 4, "max_steps": 3}
    run = trainers.start(tmp_path / "a", train={"groups_per_step": 1, "warmup": warmup})
    assert run.prepared.progress.warmup_examples == 12
    run = trainers.start(tmp_path / "b", train={"groups_per_step": 1, "warmup": warmup | {"batch_size": 16}})
    assert run.prepared.progress.warmup_examples == 20


def test_evaluations_during_training_do_not_change_what_is_learnt(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", eval={"num_prompts": 8, "every_steps": 1})
    assert [record.text for record in run.of_kind(RecordKind.EVAL)] == ["before", "during", "after"]
    assert run.digest == trainers.train(tmp_path / "b").digest


def test_filtered_groups_are_not_trained_on_when_they_cannot_be_replaced_either(
    tmp_path: Path, trainers: Trainers
) -> None:
    never_right = {"functions": REWARDS, "correct": 2.0}
    run = trainers.train(tmp_path / "a", reward=never_right, train={"groups_per_step": 4, "filter_groups": True})
    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert [record.values["uniform_samples"] for record in steps] == [32, 32]
    assert all(record.values["filtered_samples"] == 4 * 32 for record in steps)
    assert run.digest == trainers.untrained_digest(tmp_path)
    assert audited(run.run_dir).findings == ()


def test_samples_of_evaluations_can_be_looked_at(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.train(tmp_path / "a", eval={"num_prompts": 8})
    for version in (0, 2):
        query = SampleQuery(step=version, evaluation="held-out", size=100)
        samples = gallery_of(RunDirectory(run.run_dir), query).samples
        assert {(sample.step, sample.evaluation, sample.staleness) for sample in samples} == {(version, "held-out", 0)}
        assert len(samples) == 8
        assert all(sample.prompt and sample.pieces and not sample.problem for sample in samples)
        assert {piece.staleness for sample in samples for piece in sample.pieces} == {0}
    assert len(gallery_of(RunDirectory(run.run_dir), SampleQuery(evaluation="held-out")).samples) == 8
    with pytest.raises(NotFound, match="has held-out at version 0, held-out at version 2"):
        gallery_of(RunDirectory(run.run_dir), SampleQuery(evaluation="gsm8k"))


def test_a_step_on_an_emulated_device_takes_its_pace_and_changes_nothing_else(
    tmp_path: Path, trainers: Trainers
) -> None:
    pace, epochs = Pace(prefill_s=9.0, decode_s=9.0, training_s=1e-3), {"groups_per_step": 4, "epochs": 2}
    paced = trainers.train(tmp_path / "paced", pace=pace, now=time.monotonic, train=epochs)
    plain = trainers.train(tmp_path / "plain", now=time.monotonic, train=epochs)
    assert paced.digest == plain.digest
    most_compute_s = max(record.values["train_s"] for record in plain.of_kind(RecordKind.STEP))
    for record in paced.of_kind(RecordKind.STEP):
        query = SampleQuery(step=record.policy.version, size=100)
        trained = [sample.trajectory for sample in gallery_of(RunDirectory(paced.run_dir), query).samples]
        num_tokens = sum(len(each.prompt_ids) + len(each.completion_ids) for each in trained if each is not None)
        pace_s = 2 * num_tokens * pace.training_s
        assert len(trained) == 32
        # A machine that does other work besides may be late.
        assert pace_s <= record.values["train_s"] <= pace_s + most_compute_s + 0.5
        assert record.values["train_s"] <= record.values["step_s"]


def test_a_stop_ends_the_wait_for_an_emulated_device_and_the_step_is_kept(tmp_path: Path, trainers: Trainers) -> None:
    run = trainers.start(tmp_path / "a", pace=Pace(prefill_s=0.0, decode_s=0.0, training_s=100.0), now=time.monotonic)
    trained: list[float] = []

    async def go() -> TaskState:
        stop, running = asyncio.Event(), asyncio.get_running_loop()
        train = run.prepared.leader.step

        def step(*arguments: Any, **settings: Any) -> Any:
            report = train(*arguments, **settings)
            trained.append(time.monotonic())
            running.call_soon_threadsafe(running.call_later, 0.1, stop.set)
            return report

        run.prepared.leader.step = step  # type: ignore[method-assign]  # this one instance's, for the test
        async with asyncio.timeout(60):
            return await run.serve(stop)

    assert asyncio.run(go()) is TaskState.STOPPED
    assert len(trained) == 1
    assert time.monotonic() - trained[0] < 10
    assert run.link.policy == Policy(0, 1), "what was trained is published"


def test_a_trainer_on_an_emulated_device_says_so_first(tmp_path: Path, trainers: Trainers) -> None:
    job = tiny_job(tmp_path)
    task = replace(task_of(job, Role.TRAINER, tmp_path), pace=Pace(prefill_s=0.0, decode_s=0.0, training_s=0.25))
    config = TrainerConfig(task=task, job=job, cache_dir=trainers.cache_dir, resume_from=None)

    class Said(Exception):
        pass

    def say(kind: RecordKind, text: str, values: dict[str, float]) -> None:
        assert (kind, text) == (RecordKind.NOTICE, "emulated device: training takes 0.25 s a token at least")
        raise Said

    with pytest.raises(Said):
        prepare(config, say, time.monotonic)


@pytest.mark.parametrize("staleness", rest_is_slow([1, 0]))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_that_a_job_can_name_trains(
    tmp_path: Path, trainers: Trainers, name: str, staleness: int
) -> None:
    run = trainers.train(tmp_path / "a", staleness=staleness, algorithm={"name": name, "group_size": 8})
    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert [record.policy for record in steps] == [Policy(0, 1), Policy(0, 2)]
    assert all(record.values["grad_norm"] > 0 for record in steps)
    assert all(("value_loss" in record.values) == (name == "ppo") for record in steps)
    assert run.digest != trainers.untrained_digest(tmp_path)
    # Every sample that was trained on can be looked at, and the audit takes no notice of it.
    for record in steps:
        query = SampleQuery(step=record.policy.version, size=100)
        gallery = gallery_of(RunDirectory(run.run_dir), query)
        samples = gallery.samples
        assert len(samples) == record.values["num_samples"]
        assert {sample.region for sample in samples} == {"far"}
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        assert sum(rewards) / len(rewards) == pytest.approx(record.values["reward_mean"])
        assert max(sample.staleness for sample in samples) == record.values["staleness_max"]
        assert any(sample.advantage for sample in samples)
        assert all(sample.prompt and sample.pieces and not sample.problem for sample in samples)
        assert all(sample.reward == (sample.trajectory and sample.trajectory.reward) for sample in samples)
    assert audited(run.run_dir).findings == ()


class WrongProgram(FakeLink):
    """Workers that report other log-probabilities than the weights give."""

    def _sample(self, worker_id: str, leases: Sequence[QueuedLease]) -> tuple[Trajectory, ...]:
        sampled = super()._sample(worker_id, leases)
        return tuple(replace(each, logprobs=each.logprobs - np.float32(0.5)) for each in sampled)


def test_groups_of_a_worker_whose_samples_are_not_of_its_weights_are_left_out(
    tmp_path: Path, trainers: Trainers
) -> None:
    run = trainers.train(tmp_path / "a", link_class=WrongProgram, train={"groups_per_step": 16})

    assert run.state is TaskState.SUCCEEDED
    first = run.of_kind(RecordKind.STEP)[0]
    assert first.values["sample_check_alarms"] == 1
    assert first.values["dropped_samples"] == 16 * 8
    assert first.values["num_samples"] == 0
    notices = [record.text for record in run.of_kind(RecordKind.NOTICE)]
    assert "samples of w0, versions 0.0: log-probabilities of first tokens (prefill)" in notices[0]
    assert "16 groups of this step are left out" in notices[0]
    report = audited(run.run_dir)
    assert report.findings == ()


class MendedProgram(WrongProgram):
    """Workers that give right log-probabilities once they were asked to write their engines anew `mends` times."""

    mends = 1

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.doubts: list[EngineDoubted] = []

    def send(self, message: DownMessage) -> None:
        super().send(message)
        if isinstance(message, EngineDoubted):
            self.doubts.append(message)
            self._prove(message.worker_id, ok=False)
            self._prove(message.worker_id, ok=True)

    def _take(self, publication: Publication) -> None:
        super()._take(publication)
        if self.policy is not None:
            self._prove("w0", ok=True)

    def _prove(self, worker_id: str, *, ok: bool) -> None:
        assert self.policy is not None
        policy, digest = policy_to_pb(self.policy), self._engine.digest()
        proof = gateway_pb2.WeightProof(policy=policy, state_digest=digest, engine_checked=True, ok=ok)
        self.up(worker_id=worker_id, proof=proof)

    def _sample(self, worker_id: str, leases: Sequence[QueuedLease]) -> tuple[Trajectory, ...]:
        sampled = super()._sample(worker_id, leases)
        is_mended = len(self.doubts) >= self.mends
        return tuple(replace(each, logprobs=each.logprobs + np.float32(0.5 * is_mended)) for each in sampled)


def test_samples_of_a_worker_count_again_once_its_engine_was_written_anew(
    tmp_path: Path, trainers: Trainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_checks, "COST_SHARE", 1e6)  # a check in each step
    run = trainers.train(tmp_path / "a", link_class=MendedProgram, steps=6, train={"groups_per_step": 16})

    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert [record.values["num_samples"] for record in steps] == [0] + [16 * 8] * 5
    assert [record.values["sample_check_alarms"] for record in steps] == [1, 0, 0, 0, 0, 0]
    assert run.summary["weight_digest_mismatches"] == 0
    report = audited(run.run_dir)
    assert report.findings == ()
    assert [(each.worker_id, each.samples) for each in report.doubted] == [("w0", 0)], "found in the first step"


def test_a_job_ends_if_writing_and_starting_an_engine_anew_do_not_help(
    tmp_path: Path, trainers: Trainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_checks, "COST_SHARE", 1e6)
    monkeypatch.setattr(MendedProgram, "mends", 100)
    run = trainers.start(tmp_path / "a", link_class=MendedProgram, steps=20, train={"groups_per_step": 16})
    with pytest.raises(ExceptionGroup) as raised:
        run.finish()
    (error,) = raised.value.exceptions
    assert isinstance(error, UnsoundEngine)
    assert "samples of worker w0 are not of the weights that it names" in str(error)
    assert [doubt.starts_anew for doubt in run.link.doubts] == [False, True]  # type: ignore[attr-defined]


class LyingProgram(FakeLink):
    """A worker that calls right completions wrong, and wrong ones right. It leaves once it is told to."""

    liars = ("w0",)
    lies_in = (Purpose.TRAIN, 0)  # samples of this purpose, of this version and later ones

    def send(self, message: DownMessage) -> None:
        if not isinstance(message, Granted) or message.worker_id in self._queues:  # else it is on its way out
            super().send(message)
        if isinstance(message, JobFinished) and "its rewards are wrong" in message.why:
            del self._queues[message.worker_id]
            self.up(worker_id=message.worker_id, gone=gateway_pb2.WorkerGone(reason="told to"))

    def _sample(self, worker_id: str, leases: Sequence[QueuedLease]) -> tuple[Trajectory, ...]:
        sampled = super()._sample(worker_id, leases)
        return tuple(self._lie(each) if worker_id in self.liars else each for each in sampled)

    def _lie(self, each: Trajectory) -> Trajectory:
        purpose, first = self.lies_in
        is_wrong = each.purpose is purpose and each.policies[0].policy.version >= first
        return replace(each, reward=1.0 - (each.reward or 0.0)) if is_wrong else each


class LyingInEvaluations(LyingProgram):
    lies_in = (Purpose.EVAL, 0)


class LyingBesideTraining(LyingProgram):
    lies_in = (Purpose.EVAL, 1)


@pytest.mark.parametrize("liar", [LyingInEvaluations, LyingBesideTraining], ids=["training_waits", "in_the_background"])
def test_an_evaluation_asks_again_for_samples_with_wrong_rewards(
    liar: type[FakeLink], tmp_path: Path, trainers: Trainers
) -> None:
    job: dict[str, Any] = {"workers": 2, "steps": 2, "eval": {"num_prompts": 24, "every_steps": 1}}
    job["reward"] = {"functions": REWARDS, "recheck_share": 1.0}
    run, honest = trainers.train(tmp_path / "a", link_class=liar, **job), trainers.train(tmp_path / "b", **job)
    assert run.state is TaskState.SUCCEEDED
    notices = [record.text for record in run.of_kind(RecordKind.NOTICE)]
    assert [text.count("its worker is stopped") for text in notices if "reward of w" in text] == [0, 1]
    found, expected = ({each.text: each.values for each in of.of_kind(RecordKind.EVAL)} for of in (run, honest))
    assert found.keys() == expected.keys() == {"before", "during", "after"}
    assert all(values["missing_samples"] == 0 for values in found.values())
    for text in ("before", "after"):  # samples of the one between are of a version or of the next
        assert found[text]["accuracy"] == expected[text]["accuracy"] == found[text]["eval_reward_mean"]
    assert [line for line in run.journal() if line["kind"] == "drop"], "what the worker sampled is left out"
    assert audited(run.run_dir).findings == ()


def test_a_worker_with_wrong_rewards_is_stopped_and_the_others_go_on(tmp_path: Path, trainers: Trainers) -> None:
    job = {"train": {"groups_per_step": 16}, "reward": {"functions": REWARDS, "recheck_share": 0.2}}
    run = trainers.train(tmp_path / "a", link_class=LyingProgram, workers=2, steps=3, **job)

    assert run.state is TaskState.SUCCEEDED
    steps = run.of_kind(RecordKind.STEP)
    assert all(record.values["reward_checks"] > 0 for record in steps)
    assert steps[0].values["num_samples"] < 16 * 8, "groups with samples of w0 are left out"
    assert steps[-1].values["num_samples"] == 16 * 8
    notices = [record.text for record in run.of_kind(RecordKind.NOTICE)]
    assert sum("reward of w0: " in text and "its worker is stopped" in text for text in notices) == 1
    assert not any("reward of w1" in text for text in notices)
    assert audited(run.run_dir).findings == ()


def test_a_job_ends_if_the_rewards_of_all_workers_are_wrong(
    tmp_path: Path, trainers: Trainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainers.start(tmp_path / "a", link_class=LyingProgram, reward={"functions": REWARDS, "recheck_share": 0.5})
    with pytest.raises(ExceptionGroup) as raised:
        run.finish()
    (error,) = raised.value.exceptions
    assert isinstance(error, WrongRewards)
    assert "the rewards of every worker differ from the trainer's; of w0" in str(error)
