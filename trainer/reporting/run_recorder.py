"""What a run says of itself while it runs: records to its directory and to whoever watches, and sums over the run.

Watchers get a record at once. A record that the disk has no room for is kept here and written, in its order, with the
next one; the training loop waits for that between two steps, so that no more than one step's records are kept.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from periplus.errors import DiskFull
from periplus.job.job_file import JobFile
from periplus.job.run_directory import RunDirectory
from periplus.process.telemetry import check_names, event
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.trajectory import Trajectory
from trainer.disk_wait import DiskWait
from trainer.intake.gateway import GatewayLink
from trainer.intake.ledger_service import LedgerService, Tally
from trainer.learning.gate import Inspection
from trainer.learning.learner import StepReport
from trainer.reporting.delivery import ProofTally, ReaderProof, Sent
from trainer.reporting.progress import Progress

log = logging.getLogger(__name__)


class RunRecorder:
    """One trainer's. `progress` continues a restored run's; `started_s` is when the trainer's process started, on the
    clock of `now`."""

    def __init__(
        self,
        job: JobFile,
        run: RunDirectory,
        link: GatewayLink,
        ledger_service: LedgerService,
        disk: DiskWait,
        progress: Progress,
        now: Callable[[], float],
        started_s: float,
    ) -> None:
        self.progress = progress
        self._job = job
        self._run = run
        self._link = link
        self._ledger_service = ledger_service
        self._disk = disk
        self._unwritten: list[Record] = []
        self._now = now
        self._started_s = started_s
        self._wan_bytes: float | None = None
        self._earlier_bytes = 0.0
        self._mismatches_recorded = progress.weight_digest_mismatches
        self._proofs = ProofTally()
        ledger_service.on_remote_frame = self._received

    def progress_now(self) -> Progress:
        """The sums, with the wall time until now and the bytes until they were last counted: for a checkpoint."""
        wan_bytes = self.progress.wan_bytes if self._wan_bytes is None else self._wan_bytes
        wall_s = self.progress.previous_wall_s + self._now() - self._started_s
        return replace(self.progress, previous_wall_s=wall_s, wan_bytes=wan_bytes)

    async def count_wan(self) -> None:
        """Ask the gateway what the job has sent between regions. A gateway that has counted less than the checkpoint of
        a restored run says was not there for all of it: the checkpoint's sum is then added."""
        counted_bytes = await self._link.wan_bytes()
        if counted_bytes is None:
            return
        if self._wan_bytes is None and counted_bytes < self.progress.wan_bytes:
            self._earlier_bytes = self.progress.wan_bytes
        self._wan_bytes = self._earlier_bytes + counted_bytes

    def record(
        self,
        kind: RecordKind,
        text: str = "",
        values: dict[str, float] | None = None,
        staleness_tokens: dict[int, int] | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Write one record, of the present policy or an earlier one, to the run directory and send it to the
        watchers."""
        check_names(values or {})
        record = Record(
            kind=kind,
            policy=policy or self._ledger_service.ledger.policy,
            time_s=self._now() - self._started_s,
            values=values or {},
            staleness_tokens=staleness_tokens or {},
            text=text,
        )
        self._link.record(record)
        self._unwritten.append(record)
        with contextlib.suppress(DiskFull):
            self._write()

    async def written(self) -> None:
        """Return when the run directory has every record. Raises: DiskFull if asked to stop while the disk is full."""
        await self._disk.write(self._write)

    def _write(self) -> None:
        if self._unwritten:
            self._run.append(*self._unwritten)
            self._unwritten.clear()

    def phase(self, text: str) -> None:
        """The run does something else now."""
        self.record(RecordKind.PHASE, text)

    def published(self, sent: Sent) -> None:
        """One version went out."""
        self.progress = self.progress.published(sent)

    def proven(self, proof: ReaderProof) -> None:
        """A reader said what it holds."""
        self.progress = self.progress.proven(proof)
        self._proofs.add(proof)

    def mismatched(self) -> None:
        """A reader holds other weights than were published."""
        self.progress = replace(self.progress, weight_digest_mismatches=self.progress.weight_digest_mismatches + 1)

    def _received(self, frame_bytes: int, json_bytes: int) -> None:
        self.progress = self.progress.received(frame_bytes, json_bytes)

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
        """One batch was consumed, and `policy` came of it and was published; `trained` is what the optimizer saw,
        `found` the ages of its tokens."""
        num_tokens = sum(len(trajectory.completion_ids) for trajectory in trained)
        tally, self._ledger_service.tally = self._ledger_service.tally, Tally()
        num_dropped += tally.dropped
        self.progress = self.progress.consumed(found, num_tokens, num_dropped, values["step_s"])
        rewards = [trajectory.reward for trajectory in trained]
        proofs, self._proofs = self._proofs, ProofTally()
        values |= _of_tally(tally) | proofs.values()
        values |= {
            "step": float(policy.version),
            "steps_total": float(self._job.steps),
            "num_samples": float(len(trained)),
            "completion_tokens": float(num_tokens),
            "dropped_samples": float(num_dropped),
            "reward_mean": float(np.mean(rewards)) if rewards else 0.0,
            "reward_std": float(np.std(rewards)) if rewards else 0.0,
            "tokens_per_s": num_tokens / max(values["step_s"], 1e-9),
            "staleness_max": float(found.staleness_max),
            "staleness_mean": found.staleness_mean,
            "staleness_bound": float(self._job.staleness),
            "staleness_violations": float(found.violations),
            "weight_digest_mismatches": self.progress.weight_digest_mismatches - self._mismatches_recorded,
        }
        self._mismatches_recorded = self.progress.weight_digest_mismatches
        if report is not None:
            values |= report.values()
            if report.mismatch.alarm is not None:
                event(log, logging.WARNING, "logprob_mismatch", at=policy, mean_nats=report.mismatch.alarm)
        self.record(RecordKind.STEP, "", values, dict(found.tokens_by_staleness), policy)

    def summary(self, accuracy_after: float, *, num_remote_regions: int, digest: bytes) -> None:
        """The last record of a run that came to its end; `digest` is of the weights that readers hold."""
        values = self.progress.summary(
            accuracy_after=accuracy_after,
            wall_s=self._now() - self._started_s,
            bound=self._job.staleness,
            num_remote_regions=num_remote_regions,
        )
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
        "failed_groups": float(tally.failed_groups),
        "overdue_groups": float(tally.overdue_groups),
    }
