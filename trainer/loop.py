"""The training loop: wait for a batch, inspect it, step, publish, let the next leases go. The shell around pure parts.

One consumer of one ledger. Messages from the gateway change the ledger on the event loop; forward, backward, encoding
and hashing run in one thread at a time, so the loop's order alone decides what is trained on what. A step is: take
exactly the groups of this step, refuse what the gate refuses, train on the rest, advance the ledger, publish the new
version: in this order, for a reader may answer with the new version before publishing has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from periplus.codec import trajectory as trajectory_codec
from periplus.codec.registry import trajectory_decoder
from periplus.convert import policy_from_pb, trajectory_frame_from_pb
from periplus.digest import state_digest
from periplus.environment.environment import EXACT
from periplus.errors import PeriplusError, WireError
from periplus.pb.v1 import gateway_pb2
from periplus.policy import Policy
from periplus.publication import Publication, PublicationKind
from periplus.record import Record, RecordKind
from periplus.run_directory import RunDirectory
from periplus.task import TaskState
from periplus.telemetry import check_names, event
from periplus.trajectory import Limits, Trajectory, validate
from trainer import checkpoint, publish
from trainer.advantages import group_advantages
from trainer.batch import Sample, collate
from trainer.config import TrainerConfig
from trainer.convert import grant_to_pb
from trainer.dataset import item_order
from trainer.gate import Inspection, admit, inspect
from trainer.gateway import GatewayLink
from trainer.ledger import Arrival, Grant, Ledger, LedgerLimits, merged
from trainer.publish import Published
from trainer.recipe import learning_rate_of, step_settings
from trainer.setup import Prepared
from trainer.step import StepReport, train_step

log = logging.getLogger(__name__)

LOOKAHEAD_STEPS = 1
"""Steps leased before they may start: their leases travel while the previous step is trained."""

MAX_FRAME_CONTENT_BYTES = 64 << 20
"""Cap of one decoded frame: a decode batch of long completions is a tenth of it."""

TICK_S = 1.0
DIGESTS_KEPT = 256


class TrainingLoop:
    """One run of one fork."""

    def __init__(
        self, config: TrainerConfig, prepared: Prepared, link: GatewayLink, run: RunDirectory, now: Callable[[], float]
    ) -> None:
        self._config = config
        self._job = config.job
        self._job_id = config.task.job_id
        self._at = prepared
        self._link = link
        self._run = run
        self._now = now
        self._started_s = now()
        self.progress = prepared.progress
        self._arrived = asyncio.Event()
        self._anchor_wanted = False
        self._regions: dict[str, str] = {}
        self._step_frames_bytes = 0
        self._step_frames_json_bytes = 0
        self._duplicates_recorded = 0
        self._refused_recorded = 0
        self._mismatches_recorded = prepared.progress.weight_digest_mismatches
        state = publish.bf16_state(prepared.model)
        self._published = Published(policy=prepared.policy, state=state, digest=state_digest(state))
        self._digests = {prepared.policy: self._published.digest}
        self._bundle_digest = publish.bundle_digest(prepared.bundle)
        job = self._job
        limits = LedgerLimits(
            groups_per_step=job.train.groups_per_step, group_size=job.algorithm.group_size, bound=job.staleness,
            steps=job.steps, lookahead_steps=LOOKAHEAD_STEPS, lease_timeout_s=job.failure.lease_timeout_s,
        )  # fmt: skip
        self._ledger = Ledger(limits, prepared.policy, item_order(prepared.dataset.splits.train, job.seed))
        self._limits = Limits(
            vocab_size=prepared.model.config.vocab_size, max_prompt_tokens=job.sampling.prompt_tokens,
            max_completion_tokens=job.sampling.max_new_tokens,
        )  # fmt: skip

    async def run(self, stop: asyncio.Event) -> TaskState:
        """Train to the last step, or until `stop`. Returns how it ended; the run directory holds the rest."""
        await self._publish_first()
        if self.progress.steps == 0:
            accuracy = await self._evaluate("before", stop)
            if accuracy is None:
                return await self._save(stopped=True)
            self.progress = replace(self.progress, accuracy_before=accuracy)
        self.record(RecordKind.PHASE, "training")
        while self._ledger.policy.version < self._job.steps:
            if stop.is_set() or not await self._step(stop):
                return await self._save(stopped=True)
            await self._between_steps(stop)
        await self._save(stopped=False)
        accuracy = await self._evaluate("after", stop)
        if accuracy is None:
            return TaskState.STOPPED
        await self._finish(accuracy)
        return TaskState.SUCCEEDED

    @property
    def published_digest(self) -> bytes:
        """Of what readers hold when all is done."""
        return self._published.digest

    # ---- messages -------------------------------------------------------------------------------------------------

    def on_message(self, message: gateway_pb2.TrainerDown) -> None:
        """One message from the gateway. What is wrong with it is counted and logged, never raised."""
        if message.HasField("anchor"):
            self._anchor_wanted = True
            self._arrived.set()
            return
        up, now_s = message.up, self._now()
        try:
            if up.HasField("hello"):
                self._on_hello(up.worker_id, up.hello, now_s)
            elif up.HasField("capacity"):
                self._grant(self._ledger.has_capacity(up.worker_id, up.capacity.num_samples, now_s))
            elif up.HasField("frame"):
                self._on_frame(up.worker_id, up.frame, now_s)
            elif up.HasField("proof"):
                self._on_proof(up.worker_id, up.proof)
            elif up.HasField("gone"):
                event(log, logging.WARNING, "worker_gone", worker=up.worker_id, why=up.gone.reason)
                self._grant(self._ledger.worker_gone(up.worker_id, now_s))
        except PeriplusError as error:
            event(log, logging.ERROR, "message_refused", worker=up.worker_id, why=error)

    def _on_hello(self, worker_id: str, hello: gateway_pb2.WorkerHello, now_s: float) -> None:
        if hello.bundle_digest != self._bundle_digest:
            raise WireError(f"{worker_id} holds another tokenizer or model config than this job; it gets no leases")
        self._regions[worker_id] = hello.region
        self._grant(self._ledger.worker_joined(worker_id, now_s))
        event(log, logging.INFO, "worker_joined", worker=worker_id, worker_region=hello.region)

    def _on_frame(self, worker_id: str, frame: gateway_pb2.TrajectoryFrame, now_s: float) -> None:
        received = trajectory_frame_from_pb(frame)
        trajectories = trajectory_decoder(received.codec)(received.payload, max_content_bytes=MAX_FRAME_CONTENT_BYTES)
        for trajectory in trajectories:
            validate(trajectory, self._limits)
        grants: list[Grant] = []
        for trajectory in trajectories:
            arrival, freed = self._ledger.arrived(trajectory, now_s)
            grants.extend(freed)
            if arrival is not Arrival.ACCEPTED:
                event(log, logging.WARNING, "result_refused", worker=worker_id, group=trajectory.group,
                      sample=trajectory.sample, why=arrival)  # fmt: skip
        self._grant(merged(grants))
        json_bytes = trajectory_codec.json_bytes(trajectories)
        self._step_frames_bytes += len(frame.payload)
        self._step_frames_json_bytes += json_bytes
        if self._regions.get(worker_id) != self._config.task.region:
            self.progress = self.progress.received(len(frame.payload), json_bytes)
        self._arrived.set()

    def _on_proof(self, worker_id: str, proof: gateway_pb2.WeightProof) -> None:
        policy = policy_from_pb(proof.policy)
        expected = self._digests.get(policy)
        if proof.ok and (expected is None or proof.state_digest == expected):
            return
        self.progress = replace(self.progress, weight_digest_mismatches=self.progress.weight_digest_mismatches + 1)
        event(log, logging.ERROR, "weight_digest_mismatch", worker=worker_id, policy=policy)

    def _grant(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._link.send(grant_to_pb(grant))

    # ---- one step -------------------------------------------------------------------------------------------------

    async def _step(self, stop: asyncio.Event) -> bool:
        started_s = self._now()
        batch = await self._await_groups(self._ledger.groups_of_step(), stop)
        if batch is None:
            return False
        waited_s = self._now() - started_s
        consumer = self._ledger.policy
        fit, found = admit(batch, consumer, self._job.staleness)
        if found.violations:
            event(log, logging.ERROR, "stale_refused", policy=consumer, groups=len(found.unfit_groups))
        rate = learning_rate_of(self._job, consumer.version)
        train_started_s = self._now()
        report = await asyncio.to_thread(self._train, fit, consumer, rate) if fit else None
        train_s = self._now() - train_started_s
        self._grant(self._ledger.advanced(self._now()))
        publish_started_s = self._now()
        payload_bytes = await self._publish_next(consumer.next())
        publish_s = self._now() - publish_started_s
        trained = inspect(fit, consumer, self._job.staleness)
        num_tokens = sum(len(trajectory.completion_ids) for trajectory in fit)
        step_s = self._now() - started_s
        self.progress = self.progress.consumed(trained, num_tokens, len(batch) - len(fit), step_s)
        self._record_step(
            report, fit, trained,
            {"step_s": step_s, "wait_s": waited_s, "train_s": train_s, "publish_s": publish_s, "lr": rate,
             "delta_bytes": float(payload_bytes), "completion_tokens": float(num_tokens),
             "dropped_samples": float(len(batch) - len(fit))},
        )  # fmt: skip
        return True

    def _train(self, batch: Sequence[Trajectory], consumer: Policy, rate: float) -> StepReport | None:
        job = self._job
        rewards = [trajectory.reward for trajectory in batch]
        if job.reward.name == "shuffled":
            order = np.random.default_rng((job.seed, consumer.fork, consumer.version)).permutation(len(rewards))
            rewards = [rewards[index] for index in order]
        samples = [
            Sample(
                group=t.group, sample=t.sample, prompt_ids=t.prompt_ids, completion_ids=t.completion_ids,
                behaviour_logprobs=tuple(t.logprobs.tolist()), mask=t.mask, reward=reward,
            )
            for t, reward in zip(batch, rewards, strict=True)
        ]  # fmt: skip
        collated = collate(samples, self._at.tokenizer.pad_token_id)
        if not collated.num_tokens:
            return None
        advantages = group_advantages(
            collated.rewards, collated.groups, normalise_std=job.algorithm.advantage_normalisation == "std"
        )
        return train_step(
            self._at.model, self._at.optimizer, collated, advantages, step_settings(job), learning_rate=rate
        )

    async def _await_groups(self, groups: Sequence[int], stop: asyncio.Event) -> tuple[Trajectory, ...] | None:
        while True:
            if stop.is_set():
                return None
            batch = self._ledger.take(groups)
            if batch is not None:
                return batch
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), TICK_S)
            except TimeoutError:
                self._grant(self._ledger.tick(self._now()))
            if self._anchor_wanted:
                await self._publish_anchor()

    async def _between_steps(self, stop: asyncio.Event) -> None:
        job, version = self._job, self._ledger.policy.version
        if job.checkpoint.every_steps and version % job.checkpoint.every_steps == 0 and version < job.steps:
            await asyncio.to_thread(self._checkpoint)
        if job.eval.every_steps and version % job.eval.every_steps == 0 and version < job.steps:
            await self._evaluate("during", stop)

    # ---- evaluation -----------------------------------------------------------------------------------------------

    async def _evaluate(self, when: str, stop: asyncio.Event) -> float | None:
        """Greedy accuracy of the present policy on the held-out problems; None if asked to stop."""
        self.record(RecordKind.PHASE, f"evaluating {when} training")
        started_s, now_s = self._now(), self._now()
        groups, grants = self._ledger.open_eval(self._at.dataset.splits.held_out, now_s)
        self._grant(grants)
        results = await self._await_groups(groups, stop)
        if results is None:
            return None
        accuracy = sum(result.reward == EXACT for result in results) / len(results)
        values = {"accuracy": accuracy, "num_prompts": float(len(results)), "eval_s": self._now() - started_s}
        self.record(RecordKind.EVAL, when, values)
        return accuracy

    # ---- publishing -----------------------------------------------------------------------------------------------

    async def _publish_first(self) -> None:
        await self._link.publish(self._at.bundle)
        await self._publish_anchor(count=True)

    async def _publish_anchor(self, *, count: bool = False) -> None:
        self._anchor_wanted = False
        anchor = await asyncio.to_thread(publish.anchor, self._job_id, self._published)
        if count:
            self._count_published(anchor)
        await self._link.publish(anchor)

    async def _publish_next(self, policy: Policy) -> int:
        every = self._job.network.anchor_every_versions
        want_anchor = self._anchor_wanted or policy.version % every == 0
        self._anchor_wanted = False
        self._published, publication = await asyncio.to_thread(self._encode, policy)
        self._digests[policy] = self._published.digest
        if len(self._digests) > DIGESTS_KEPT:
            del self._digests[min(self._digests)]
        self._count_published(publication)
        await self._link.publish(publication)
        if want_anchor and publication.opening.kind is PublicationKind.DELTA:
            await self._publish_anchor()  # for newcomers: readers that took the delta skip it
        return len(publication.payload)

    def _encode(self, policy: Policy) -> tuple[Published, Publication]:
        state = publish.bf16_state(self._at.model)
        return publish.next_version(self._job_id, self._published, policy, state)

    def _count_published(self, publication: Publication) -> None:
        self.progress = self.progress.published(len(publication.payload), publication.opening.content_bytes)

    # ---- records and results --------------------------------------------------------------------------------------

    def record(self, kind: RecordKind, text: str = "", values: dict[str, float] | None = None,
               staleness_tokens: dict[int, int] | None = None) -> None:  # fmt: skip
        """Write one record to the run directory and send it to the watchers."""
        check_names(values or {})
        record = Record(
            kind=kind, policy=self._ledger.policy, time_s=self._now() - self._started_s, values=values or {},
            staleness_tokens=staleness_tokens or {}, text=text,
        )  # fmt: skip
        self._run.append(record)
        self._link.record(record)

    def _record_step(
        self, report: StepReport | None, batch: Sequence[Trajectory], trained: Inspection, values: dict[str, float]
    ) -> None:
        rewards = [trajectory.reward for trajectory in batch]
        values |= {
            "step": float(self._ledger.policy.version),
            "steps_total": float(self._job.steps),
            "num_samples": float(len(batch)),
            "reward_mean": float(np.mean(rewards)) if rewards else 0.0,
            "reward_std": float(np.std(rewards)) if rewards else 0.0,
            "tokens_per_s": values["completion_tokens"] / max(values["step_s"], 1e-9),
            "staleness_max": float(trained.staleness_max),
            "staleness_mean": trained.staleness_mean,
            "staleness_bound": float(self._job.staleness),
            "staleness_violations": float(trained.violations),
            "weight_digest_mismatches": self.progress.weight_digest_mismatches - self._mismatches_recorded,
            "trajectory_bytes": float(self._step_frames_bytes),
            "trajectory_json_bytes": float(self._step_frames_json_bytes),
            "duplicate_samples": float(self._ledger.num_duplicates - self._duplicates_recorded),
            "refused_samples": float(self._ledger.num_refused - self._refused_recorded),
            "full_weights_bytes": float(sum(t.data.size for t in self._published.state.values())),
        }
        self._step_frames_bytes = self._step_frames_json_bytes = 0
        self._mismatches_recorded = self.progress.weight_digest_mismatches
        self._duplicates_recorded, self._refused_recorded = self._ledger.num_duplicates, self._ledger.num_refused
        if report is not None:
            values |= {
                "loss": report.loss, "grad_norm": report.grad_norm, "clip_fraction": report.clip_fraction,
                "approx_kl": report.approx_kl, "mean_ratio": report.mean_ratio,
            }  # fmt: skip
        self.record(RecordKind.STEP, "", values, dict(trained.tokens_by_staleness))

    def _checkpoint(self) -> None:
        progress = replace(self.progress, previous_wall_s=self.progress.previous_wall_s + self._now() - self._started_s)
        checkpoint.save(
            self._run.checkpoints, self._job_id, self._ledger.policy, self._at.model, self._at.optimizer,
            progress.to_mapping(),
        )  # fmt: skip
        checkpoint.prune(self._run.checkpoints, self._job.checkpoint.keep)
        event(log, logging.INFO, "checkpoint", policy=self._ledger.policy)

    async def _save(self, *, stopped: bool) -> TaskState:
        await asyncio.to_thread(self._checkpoint)
        self.record(RecordKind.PHASE, "stopped, checkpoint saved" if stopped else "last step done, checkpoint saved")
        return TaskState.STOPPED if stopped else TaskState.SUCCEEDED

    async def _finish(self, accuracy_after: float) -> None:
        remote = {region for region in self._regions.values() if region != self._config.task.region}
        summary = self.progress.summary(
            accuracy_after=accuracy_after, wall_s=self._now() - self._started_s, bound=self._job.staleness,
            num_remote_regions=len(remote),
        )  # fmt: skip
        self.record(RecordKind.SUMMARY, self._published.digest.hex(), summary)
        for worker_id in self._regions:
            finish = gateway_pb2.Finish(reason="the job is done")
            self._link.send(gateway_pb2.RolloutDown(worker_id=worker_id, finish=finish))
