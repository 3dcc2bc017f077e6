"""The training loop: wait for a batch, check it, train on it, publish the new weights, save checkpoints, evaluate.

One step does the following, in this order:

1. take a batch from the ledger;
2. compute some of its samples again with the weights that sampled them, and some of its rewards, and leave out the
   groups of a worker whose samples are not of its weights (trainer/checks) or whose rewards are wrong
   (trainer/checks); leave out the groups that the gate refuses, in which a token
   is too old or of another history (trainer/learning/gate.py);
3. train on the rest: forward, backward and optimizer run in one thread, one step at a time; on an emulated device, wait
   then for as long as the device would still compute;
4. write to the audit what the optimizer was given, and let the version rise by one;
5. hand a snapshot of the new weights to the publisher.

Step 4 comes before step 5, because a worker may already send results of the new version while it is being published.
The next step begins while the snapshot is encoded and sent. The record of a step is written once its version is
published. A checkpoint, an evaluation before or after training and the end of the run wait until all versions are
published. Training goes on during other evaluations (reporting/evaluator.py).

Meanwhile messages of workers change the ledger on the event loop (trainer/intake). This module is the shell around the
parts that compute; it decides only the order.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from periplus.audit import records as audit
from periplus.errors import Denied, TimedOut
from periplus.job.samples.correctness import correctness_of
from periplus.process.device_turns import DeviceTurns
from periplus.values.policy import Policy
from periplus.values.record import RecordKind
from periplus.values.task import TaskState
from periplus.values.trajectory import content_digest
from trainer.checkpointing.checkpointer import Checkpointer
from trainer.checks.reward_checks import RewardChecks
from trainer.checks.sample_checks import SampleChecks
from trainer.checks.stopped_workers import StoppedWorkers
from trainer.config import TrainerConfig
from trainer.intake.committed import KeptTrajectory
from trainer.intake.effects import LedgerBatch
from trainer.intake.entries import drop_entry
from trainer.intake.gateway import GatewayLink
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.ledger_service import LedgerService
from trainer.intake.messages import JobFinished
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.learning.batch import sample_of
from trainer.learning.gate import Inspection, admit, inspect
from trainer.learning.learner import StepReport
from trainer.publishing.publisher import Publisher
from trainer.recipe import learning_rate_of
from trainer.reporting.delivery import Sent
from trainer.reporting.evaluator import Evaluator
from trainer.reporting.run_recorder import RunRecorder
from trainer.reporting.sample_recorder import SampleRecorder
from trainer.setup import Prepared


class TrainingLoop:
    """Trains one job in one fork, from the first certificate to the last evaluation."""

    def __init__(
        self,
        config: TrainerConfig,
        prepared: Prepared,
        *,
        link: GatewayLink,
        driver: LedgerDriver,
        ledger_service: LedgerService,
        journal: WriteAheadJournal,
        checkpointer: Checkpointer,
        publisher: Publisher,
        recorder: RunRecorder,
        evaluator: Evaluator,
        samples: SampleRecorder,
        checks: SampleChecks,
        reward_checks: RewardChecks,
        stopped_workers: StoppedWorkers,
        turns: DeviceTurns | None,
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._job = config.job
        self._prepared = prepared
        # The parts that the loop puts in order (assembly.py builds them).
        self._link = link
        self._driver = driver
        self._ledger_service = ledger_service
        self._journal = journal
        self._checkpointer = checkpointer
        self._publisher = publisher
        self._recorder = recorder
        self._evaluator = evaluator
        self._samples = samples
        self._checks = checks
        self._reward_checks = reward_checks
        self._stopped_workers = stopped_workers
        self._turns = turns
        self._is_obstacle_told = False
        self._trained_s = 0.0
        self._now = now

    @property
    def regions(self) -> frozenset[str]:
        """The regions of the workers that were seen last."""
        return frozenset(self._driver.regions.values())

    async def run(self, stop: asyncio.Event) -> TaskState:
        """Train to the last step, or until `stop` is set, and return how it ended. All else is in the run directory.

        Raises: NonFiniteLoss; UnsoundEngine; WrongRewards; Denied or TimedOut if the trainer's key is not certified;
        DiskFull if asked to stop while the disk is full.
        """
        # The audit's first line is on record before anything is leased or published.
        await self._journal.flush()
        try:
            certificate = await self._link.certificate(stop)
        except (Denied, TimedOut):
            await self._checkpoint()  # keeps a warm-up, which may have taken minutes
            raise
        if certificate is None:
            return await self._save(stopped=True)
        await self._recorder.count_wan()
        # Without a certified key nothing can be published; from here on workers can start.
        await self._publisher.first(self._prepared.bundle, certificate)
        await self._checkpointer.note_missing_frames()
        held_out: Mapping[str, float] | None = None
        # A run that was resumed after a step has its first accuracy from before.
        if self._recorder.steps == 0:
            held_out = await self._evaluate("before", stop)
            if held_out is None:
                return await self._save(stopped=True)
            self._recorder.evaluated_before(held_out)
            if self._job.checkpoint.every_steps:  # a warm-up may take minutes; a resumed run need not repeat it
                await self._checkpoint()
        self._recorder.phase("training")
        while self._policy.version < self._job.steps:
            if stop.is_set() or not await self._step(stop):
                return await self._save(stopped=True)
            await self._between_steps()
        # Save the last version before the final evaluation, which may take long.
        await self._save(stopped=False)
        if not await self._evaluator.finish(stop):
            return TaskState.STOPPED
        if self._job.steps or held_out is None:  # without a step nothing has changed since the evaluation before
            held_out = await self._evaluate("after", stop)
        if held_out is None:
            return TaskState.STOPPED
        await self._finish(held_out)
        return TaskState.SUCCEEDED

    async def close(self) -> None:
        """End the process that computes rewards again."""
        await self._reward_checks.close()

    @property
    def _policy(self) -> Policy:
        return self._driver.policy

    # ---- one step -------------------------------------------------------------------------------------------------

    async def _step(self, stop: asyncio.Event) -> bool:
        """Train on one batch and publish the result; return False if asked to stop before a batch was there."""
        started_s = self._now()
        batch = await self._ledger_service.batch(stop)
        if batch is None:
            return False
        waited_s = self._now() - started_s
        # Workers may sample with these devices again as soon as the new weights are on the host.
        async with self._turns.training() if self._turns else contextlib.nullcontext():
            await self._train_on(batch, started_s, waited_s, stop)
        return True

    async def _train_on(self, batch: LedgerBatch, started_s: float, waited_s: float, stop: asyncio.Event) -> None:
        consumer, bound, lineage = batch.policy, self._job.staleness, self._prepared.lineage
        check_started_s, num_checked = self._now(), self._checks.num_tokens
        num_rewards = self._reward_checks.num_checked
        unsound = await self._unsound_groups(batch)
        check_s = self._now() - check_started_s
        trajectories = [kept.trajectory for kept in batch.kept if kept.trajectory.group not in unsound]
        # The gate: refuse whole groups, and keep the trajectories that it lets pass, by identity.
        fit, _ = admit(trajectories, consumer, bound, lineage)
        chosen = {id(trajectory) for trajectory in fit}
        trained = tuple(kept for kept in batch.kept if id(kept.trajectory) in chosen)
        rate = learning_rate_of(self._job, consumer.version)
        train_started_s = self._now()
        report = await asyncio.to_thread(self._train, trained, consumer, rate)
        if report is not None:
            await self._keep_pace(trained, report, train_started_s, stop)
        train_s = self._now() - train_started_s
        # Inspected again: what is recorded is the staleness of exactly what the optimizer saw.
        found = inspect(fit, consumer, bound, lineage)
        # The audit and the ledger come before publishing, because workers may send results of the new version at once.
        await self._consumed(batch, trained, report, found)
        if report is not None:
            self._samples.step(consumer.next(), trained, report.samples)
        self._trained_s += train_s
        uniform = self._uniform_groups(trained)
        num_uniform = sum(kept.trajectory.group in uniform for kept in trained)
        values = {"wait_s": waited_s, "train_s": train_s, "check_s": check_s, "lr": rate}
        values["uniform_samples"] = float(num_uniform)
        values["reward_checks"] = float(self._reward_checks.num_checked - num_rewards)
        values["sample_check_tokens"] = float(self._checks.num_tokens - num_checked)

        def published(sent: Sent) -> None:
            dropped, policy = len(batch.kept) - len(fit), consumer.next()
            self._recorder.step(policy, report, fit, found, num_dropped=dropped, values=values | sent.values())

        await self._publisher.next_version(consumer.next(), published)
        values["step_s"] = self._now() - started_s  # before `published` can run, since nothing is awaited in between

    def _train(self, kept: Sequence[KeptTrajectory], consumer: Policy, rate: float) -> StepReport | None:
        """Run one optimizer step from `consumer`; return None if there is nothing to train on.

        Where groups are filtered, those that the ledger could not replace any more are left out here. For the reward
        `shuffled`, a control experiment, the rewards are permuted within the batch, seeded by version.
        """
        if not kept:
            return None
        uniform = self._uniform_groups(kept)
        rewards = [None if each.trajectory.group in uniform else each.trajectory.reward for each in kept]
        if self._job.reward.is_shuffled:
            order = np.random.default_rng((self._job.seed, consumer.version)).permutation(len(rewards))
            rewards = [rewards[index] for index in order]
        samples = [sample_of(each.trajectory, reward) for each, reward in zip(kept, rewards, strict=True)]
        return self._prepared.leader.step(samples, consumer=consumer, learning_rate=rate)

    async def _unsound_groups(self, batch: LedgerBatch) -> frozenset[int]:
        """Compute some of a batch's samples again with the weights that sampled them, and report what differs.

        Return the groups with samples in doubt: of a worker whose samples are not of its weights, until its engine was
        written anew; and those with wrong rewards, or of a worker that was stopped for them. The audit says that they
        are left out. Raises: UnsoundEngine, WrongRewards.
        """
        trajectories = [kept.trajectory for kept in batch.kept]
        found = await asyncio.to_thread(self._checks.check, trajectories, self._trained_s)
        if self._checks.obstacle and not self._is_obstacle_told:
            self._recorder.record(RecordKind.NOTICE, f"samples are not computed again: {self._checks.obstacle}")
            self._is_obstacle_told = True
        wrong_groups = await self._stopped_workers.wrong_groups(batch.kept)
        workers, doubted = {each.worker_id for each in found}, self._checks.doubted
        unsound = wrong_groups | {
            each.group for each in trajectories if each.worker_id in workers or doubted.in_doubt(each)
        }
        for each in found:
            self._recorder.samples_differ(each, num_left_out=len(unsound))
            self._journal.write(
                audit.DoubtEntry(worker_id=each.worker_id, since=each.first, policy=batch.policy, why=each.why)
            )
            doubted.found(each.worker_id, each.why, each.num_tokens)
        for group in sorted(unsound):
            kept = [each for each in batch.kept if each.trajectory.group == group]
            self._journal.write(drop_entry(group, audit.UNSOUND, kept))
        return unsound

    async def _keep_pace(
        self, kept: Sequence[KeptTrajectory], report: StepReport, began_s: float, stop: asyncio.Event
    ) -> None:
        """Wait until the emulated device would have trained on the judged samples of `kept`, or until `stop` is set."""
        pace = self._config.task.pace
        if pace is None:
            return
        judged = {(figures.group, figures.sample) for figures in report.samples if figures.reward is not None}
        trained = [each.trajectory for each in kept if (each.trajectory.group, each.trajectory.sample) in judged]
        num_tokens = sum(len(each.prompt_ids) + len(each.completion_ids) for each in trained)
        device_s = self._job.train.epochs * num_tokens * pace.training_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(began_s + device_s - self._now()):
                await stop.wait()

    def _uniform_groups(self, kept: Sequence[KeptTrajectory]) -> frozenset[int]:
        """Return the groups of which filter_groups says that they teach nothing: their outcomes are all equal."""
        if not self._job.train.filter_groups:
            return frozenset()
        correct, outcomes = correctness_of(self._job), defaultdict[int, set[float | None]](set)
        for each in kept:
            outcomes[each.trajectory.group].add(correct.outcome(each.trajectory))
        return frozenset(group for group, found in outcomes.items() if len(found - {None}) < 2)

    async def _consumed(
        self, batch: LedgerBatch, trained: Sequence[KeptTrajectory], report: StepReport | None, found: Inspection
    ) -> None:
        """Write to the audit what the optimizer was given, with its contents hashed again, and raise the version."""
        # Hash the contents again: the line shows what was trained on, not what came in.
        samples = tuple(
            audit.UsedSample(t.group, t.sample, content_digest(t)) for t in (each.trajectory for each in trained)
        )
        root = audit.batch_root([sample.digest for sample in samples])
        line = audit.ConsumeEntry(
            policy=batch.policy,
            trained=report is not None,
            why="" if report is not None else "no_tokens",
            samples=samples,
            root=root,
            staleness_tokens=found.tokens_by_staleness,
        )
        # Before the version rises, so that a checkpoint of the new version includes this batch.
        self._checkpointer.consumed(root)
        await self._ledger_service.step_done(batch, line)

    async def _between_steps(self) -> None:
        await self._recorder.write_pending()
        await self._samples.write_pending()
        job, version = self._job, self._policy.version
        if job.checkpoint.every_steps and version % job.checkpoint.every_steps == 0 and version < job.steps:
            await self._checkpoint()
        if version < job.steps:
            await self._evaluator.between_steps(self._policy)

    # ---- evaluation -----------------------------------------------------------------------------------------------

    async def _evaluate(self, when: str, stop: asyncio.Event) -> Mapping[str, float] | None:
        # Workers cannot sample from a version that is not published yet.
        await self._publisher.drained()
        self._recorder.phase(f"evaluating {when} training")
        return await self._evaluator.evaluate(when, self._policy, stop)

    # ---- the end --------------------------------------------------------------------------------------------------

    async def _save(self, *, stopped: bool) -> TaskState:
        await self._checkpoint()
        self._recorder.phase("stopped, checkpoint saved" if stopped else "last step done, checkpoint saved")
        await self._recorder.write_pending()
        await self._samples.write_pending()
        return TaskState.STOPPED if stopped else TaskState.SUCCEEDED

    async def _checkpoint(self) -> None:
        await self._publisher.drained()
        await self._recorder.count_wan()
        await self._checkpointer.checkpoint(self._recorder.collect_progress())

    async def _finish(self, held_out: Mapping[str, float]) -> None:
        await self._recorder.count_wan()
        remote = self.regions - {self._config.task.region}
        self._recorder.summary(held_out, num_remote_regions=len(remote), digest=self._publisher.digest)
        await self._recorder.write_pending()
        for worker_id in self._driver.regions:
            self._link.send(JobFinished(worker_id, "the job is done"))
