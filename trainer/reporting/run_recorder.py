"""The recorder of a run: it writes records to the run directory, sends them to watchers, and keeps sums over the run.

A record describes a step, an evaluation, a phase or the summary. Watchers get it at once through the gateway, and so do
the job's trackers. If the disk has no room for a record, it is kept in memory and written in order with the next one.
The training loop waits for that between two steps (`write_pending`), so no more than the records of one step are kept.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from periplus.errors import DiskFull
from periplus.job.run_directory import RunDirectory
from periplus.process.telemetry import check_names, event
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.reward_failure import RewardFailureKind
from periplus.values.trajectory import Trajectory
from trainer.checks.sample_checks import UnsoundSamples
from trainer.disk_wait import DiskWait
from trainer.intake.gateway import GatewayLink
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.tally import Tally
from trainer.learning.gate import Inspection
from trainer.learning.learner import StepReport
from trainer.reporting.batch_figures import figures_of_batch
from trainer.reporting.delivery import ProofTally, ReaderProof, Sent
from trainer.reporting.generation_times import GenerationTimes
from trainer.reporting.progress import Progress
from trainer.reporting.silence import SilenceWatch
from trainer.tracking.feeds import Trackers

log = logging.getLogger(__name__)


class RunRecorder:
    """Records the run of one trainer.

    `progress` holds the sums so far, which are those of the checkpoint in a restored run. `now` returns seconds on a
    monotonic clock, and `started_s` is when the trainer's process started on that clock. `num_steps` is the number of
    steps that the job asks for, and `bound` its bound on staleness. `problems` are the numbers of problems, for the
    summary, and `silence` tells when the first steps teach nothing. `planned` is what the job's plan predicts of each
    step.
    """

    def __init__(
        self,
        run: RunDirectory,
        link: GatewayLink,
        driver: LedgerDriver,
        disk: DiskWait,
        trackers: Trackers,
        progress: Progress,
        now: Callable[[], float],
        started_s: float,
        *,
        num_steps: int,
        bound: int,
        problems: Mapping[str, float],
        silence: SilenceWatch,
        planned: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._silence = silence
        self._problems = problems
        self._planned = dict(planned)
        self._progress = progress
        self._num_steps = num_steps
        self._bound = bound
        self._run = run
        self._link = link
        self._driver = driver
        self._disk = disk
        self._trackers = trackers
        self._unwritten: list[Record] = []
        self._now = now
        self._started_s = started_s
        # Bytes between regions over the whole run, None before the first count; and those before this gateway's start.
        self._wan_bytes: float | None = None
        self._earlier_bytes = 0.0
        self._mismatches_recorded = progress.weight_digest_mismatches
        self._num_findings = 0
        self._proofs = ProofTally()
        self._generation = GenerationTimes()

    @property
    def steps(self) -> int:
        """Number of training steps so far, those before a restore included."""
        return int(self._progress.steps)

    def evaluated_before(self, held_out: Mapping[str, float]) -> None:
        """Note the values of the evaluation before the first step."""
        self._progress = self._progress.evaluated(held_out)

    def collect_progress(self) -> Progress:
        """Take the bytes that came from other regions meanwhile, and return the sums over the run for a checkpoint.

        They include the wall time until now and the newest count of bytes between regions.
        """
        self._collect_remote_bytes()
        # Without a count from the gateway the checkpoint's sum stays.
        wan_bytes = self._progress.wan_bytes if self._wan_bytes is None else self._wan_bytes
        wall_s = self._progress.previous_wall_s + self._now() - self._started_s
        return replace(self._progress, previous_wall_s=wall_s, wan_bytes=wan_bytes)

    def _collect_remote_bytes(self) -> None:
        remote = self._driver.take_remote_bytes()
        self._progress = self._progress.received(remote.num_bytes, remote.json_bytes)

    async def count_wan(self) -> None:
        """Ask the gateway how many bytes the job has sent between regions since the gateway started.

        If the first count after a restore is below the checkpoint's sum, the gateway has not counted the whole run, and
        the checkpoint's sum is added.
        """
        counted_bytes = await self._link.wan_bytes()
        if counted_bytes is None:
            return
        if self._wan_bytes is None and counted_bytes < self._progress.wan_bytes:
            self._earlier_bytes = self._progress.wan_bytes
        self._wan_bytes = self._earlier_bytes + counted_bytes

    def record(
        self,
        kind: RecordKind,
        text: str = "",
        values: dict[str, float] | None = None,
        staleness_tokens: dict[int, int] | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Send one record to the watchers and to the trackers, and write it to the run directory.

        Without `policy` it belongs to the present one. The names in `values` must be in the metric registry. If the
        disk is full, the record is kept and written later.
        """
        check_names(values or {})
        record = Record(
            kind=kind,
            policy=policy or self._driver.policy,
            time_s=self._now() - self._started_s,
            values=values or {},
            staleness_tokens=staleness_tokens or {},
            text=text,
        )
        self._link.record(record)
        self._trackers.record(record)
        # Written behind those that wait, so that the file keeps the order.
        self._unwritten.append(record)
        with contextlib.suppress(DiskFull):
            self._write()

    async def write_pending(self) -> None:
        """Write the records that found no room before, and wait until all are in the run directory.

        Raises: DiskFull if the trainer is asked to stop while the disk is full.
        """
        await self._disk.write(self._write)

    def _write(self) -> None:
        if self._unwritten:
            self._run.append(*self._unwritten)
            self._unwritten.clear()

    def phase(self, text: str) -> None:
        """Record that the run enters another phase, which `text` names."""
        self.record(RecordKind.PHASE, text)

    def add_publication(self, sent: Sent) -> None:
        """Add a version that was published to the sums."""
        self._progress = self._progress.published(sent)

    def add_proof(self, worker_id: str, proof: ReaderProof, held_after_s: float | None) -> None:
        """Add a worker's report about a version that it holds, so long after the training step that made it."""
        self._progress = self._progress.proven(proof)
        region = self._driver.regions.get(worker_id)
        self._proofs.add(proof, region, held_after_s)
        self._generation.add(worker_id, region, proof)

    def count_mismatch(self) -> None:
        """Count a reader that holds other weights than were published."""
        self._progress = replace(self._progress, weight_digest_mismatches=self._progress.weight_digest_mismatches + 1)

    def samples_differ(self, found: UnsoundSamples, *, num_left_out: int) -> None:
        """Record that a worker's samples are not from the weights that it named.

        `num_left_out` groups are not trained on.
        """
        self._num_findings += 1
        versions = str(found.last) if found.first == found.last else f"{found.first} to {found.last}"
        event(log, logging.ERROR, "samples_differ", worker=found.worker_id, versions=versions, why=found.why)
        text = f"samples of {found.worker_id}, versions {versions}: {found.why}. {num_left_out} groups of this step are"
        self.record(
            RecordKind.NOTICE, f"{text} left out, and what it samples until its engine is repaired", policy=found.last
        )

    def reward_differs(self, worker_id: str, why: str, *, is_stopped: bool) -> None:
        """Record that a sample's reward is not what the trainer computes; with `is_stopped`, its worker ends."""
        event(log, logging.ERROR, "reward_differs", worker=worker_id, why=why, stopped=is_stopped)
        end = "its worker is stopped, and no sample of it counts" if is_stopped else "its group is left out"
        self.record(RecordKind.NOTICE, f"reward of {worker_id}: {why}; {end}")

    def step(
        self,
        policy: Policy,
        report: StepReport | None,
        trained: Sequence[Trajectory],
        found: Inspection,
        *,
        num_dropped: int,
        values: dict[str, float],
    ) -> None:
        """Record a training step after the version that it made, `policy`, was published.

        `trained` are the trajectories that the optimizer saw, and `found` is the inspection of their tokens.
        `num_dropped` counts samples of the batch that the gate refused. `values` holds further figures of the step, of
        which `step_s` is required.
        """
        # Take the counts since the last step from the ledger's driver and from the readers' proofs, and start anew.
        num_tokens = sum(len(trajectory.completion_ids) for trajectory in trained)
        tally = self._driver.take_tally()
        num_dropped += tally.dropped
        self._progress = self._progress.consumed(found, num_tokens, num_dropped, values["step_s"])
        # Rewards of what was trained on, without the samples that the gate refused.
        rewards = [trajectory.reward for trajectory in trained if trajectory.reward is not None]
        proofs, self._proofs = self._proofs, ProofTally()
        values |= _of_tally(tally) | proofs.values() | self._generation.take() | self._planned
        # Figures of the batch: sizes, rewards and staleness. Mismatches are those since the step before.
        values |= {
            "step": float(policy.version),
            "steps_total": float(self._num_steps),
            "num_samples": float(len(trained)),
            "completion_tokens": float(num_tokens),
            "dropped_samples": float(num_dropped),
            "unjudged_samples": float(len(trained) - len(rewards)),
            "tokens_per_s": num_tokens / max(values["step_s"], 1e-9),
            "staleness_max": float(found.staleness_max),
            "staleness_mean": found.staleness_mean,
            "staleness_bound": float(self._bound),
            "staleness_violations": float(found.violations),
            "weight_digest_mismatches": self._progress.weight_digest_mismatches - self._mismatches_recorded,
            "sample_check_alarms": float(self._num_findings),
        }
        if rewards:  # a mean of nothing would be a reward that no sample got
            values |= {"reward_mean": float(np.mean(rewards)), "reward_std": float(np.std(rewards))}
        values |= figures_of_batch(trained, self._driver.regions, values["step_s"])
        self._mismatches_recorded, self._num_findings = self._progress.weight_digest_mismatches, 0
        if report is not None:
            values |= report.values()
            if report.mismatch.alarm is not None:
                event(log, logging.WARNING, "logprob_mismatch", at=policy, mean_nats=report.mismatch.alarm)
        self.record(RecordKind.STEP, "", values, dict(found.tokens_by_staleness), policy)
        has_signal = report is not None and any(each.advantage for each in report.samples)
        if text := self._silence.seen(values, rewards, has_signal=has_signal):
            event(log, logging.WARNING, "nothing_to_learn", at=policy, why=text)
            self.record(RecordKind.NOTICE, text, policy=policy)

    def summary(self, held_out: Mapping[str, float], *, num_remote_regions: int, digest: bytes) -> None:
        """Record the summary of a run that reached its last step.

        `held_out` are the values of the evaluation after it, and `digest` is that of the final weights.
        """
        self._collect_remote_bytes()
        values = self._progress.summary(
            held_out,
            wall_s=self._now() - self._started_s,
            bound=self._bound,
            num_remote_regions=num_remote_regions,
        )
        values |= self._problems
        # A gateway that never answered gives no count, and none is made up.
        if self._wan_bytes is not None:
            values["wan_bytes"] = self._wan_bytes
        self.record(RecordKind.SUMMARY, digest.hex(), values)


def _of_tally(tally: Tally) -> dict[str, float]:
    return {
        "trajectory_bytes": float(tally.frames_bytes),
        "trajectory_json_bytes": float(tally.frames_json_bytes),
        "duplicate_samples": float(tally.duplicates),
        "refused_samples": float(tally.refused),
        "refused_messages": float(tally.refused_messages),
        "filtered_samples": float(tally.filtered),
        "lost_leases": float(tally.lost),
        "hedged_samples": float(tally.hedged),
        "hedge_duplicates": float(tally.hedge_duplicates),
        "failed_groups": float(tally.failed_groups),
        "overdue_groups": float(tally.overdue_groups),
        "reward_failures": float(tally.reward_failures.total()),
        "reward_timeouts": float(tally.reward_failures[RewardFailureKind.TIMED_OUT]),
        "reward_crashes": float(tally.reward_failures[RewardFailureKind.CRASHED]),
        "reward_errors": float(tally.reward_failures[RewardFailureKind.RAISED]),
    }
