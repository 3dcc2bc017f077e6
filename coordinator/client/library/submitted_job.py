"""One job of a coordinator, as a script holds it: its state, its metrics as they come, its samples, its end.

The object keeps nothing but the job's id: every question is asked of the coordinator, so that two scripts may hold the
same job. Leaving a loop over its metrics, or the script, changes nothing about the job.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.client.connection import job_state, raise_outcome
from coordinator.client.library.calls import BlockingCoordinator
from coordinator.state import ENDED_STATES, JobState
from periplus.errors import NotFound, StateError, TimedOut
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.gallery import gallery_of
from periplus.job.samples.selection import SampleOrder, SampleQuery
from periplus.job.samples.shown import sample_tree
from periplus.net.convert import record_from_pb
from periplus.pb.v1 import control_pb2
from periplus.values.record import RecordKind

_ENDED = frozenset(state.value for state in ENDED_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one time.

    `state` is pending, planned, starting, running, succeeded, failed or cancelled, and `reason` says why.
    `doing` is what the trainer does now, or empty. `fork` and `version` are those of the newest record, and None
    before the first. `submitted_at_s` is Unix time. `wan_bytes` counts what the job has sent between regions. `run_dir`
    and `checkpoint_version`, the newest checkpoint of a trainer that has ended, are None until they exist; the
    directory lies on the trainer's host.
    """

    job_id: str
    name: str
    state: str
    reason: str
    doing: str
    fork: int | None
    version: int | None
    submitted_at_s: float
    wan_bytes: int
    run_dir: Path | None
    checkpoint_version: int | None

    @property
    def has_ended(self) -> bool:
        """Whether the job has succeeded, failed or been cancelled. A job that was resumed goes on."""
        return self.state in _ENDED


class SubmittedJob:
    """A job that a fleet runs or ran. `unchecked` says which checks of it were left to its trainer."""

    def __init__(self, coordinator: BlockingCoordinator, job_id: str, unchecked: tuple[str, ...] = ()) -> None:
        self._coordinator = coordinator
        self.job_id = job_id
        self.unchecked = unchecked

    def __repr__(self) -> str:
        return f"<SubmittedJob {self.job_id} at {self._coordinator.address}>"

    def status(self) -> JobStatus:
        """Return the job as it is now. Raises: NotFound if the coordinator does not know it, Unreachable."""
        return job_status(self._coordinator.job(self.job_id))

    @property
    def run_dir(self) -> Path:
        """The run's directory on the trainer's host. Raises: NotFound before the trainer was started."""
        status = self.status()
        if status.run_dir is None:
            raise NotFound(
                f"job {self.job_id} has no run directory yet: it is {status.state}; ask again once it has steps"
            )
        return status.run_dir

    def metrics(self, *, follow: bool = False, kinds: Iterable[str] = ("step",)) -> Iterator[dict[str, Any]]:
        """Yield the records of the job's trainer as dicts, with the names that metrics.jsonl has: one for each step.

        The records are those so far; with `follow`, also those to come, until the job has ended. `kinds` names other
        kinds of records that are wanted: phase, warmup, eval, step, summary. A job that was resumed yields the records
        of its newest fork. The coordinator keeps about 10,000 of them; the run directory has all.

        Raises: ValueError for an unknown kind; NotFound; Unreachable.
        """
        wanted = frozenset(map(RecordKind, kinds))
        return self._records(wanted, past_only=not follow)

    def samples(
        self,
        *,
        step: int | None = None,
        order: str = "step",
        region: str = "",
        group: int | None = None,
        evaluation: str = "",
        page: int = 1,
        size: int = 8,
    ) -> list[dict[str, Any]]:
        """Return samples of the job as dicts with the keys of `periplus job samples -o json`.

        The job was trained on them at `step`, by default the newest one. `order` is step, best or worst, where the last
        two order by reward, over all steps if neither step nor group is given. With `evaluation` they are those of an
        evaluation set, or of the held-out problems as "held-out", and `step` is the version that was evaluated. `page`
        counts from 1. They are read from the run's directory, so call this on the trainer's host.

        Raises: ValueError for another order; NotFound without samples that match, or without the directory here.
        """
        query = SampleQuery(
            step=step,
            order=SampleOrder(order),
            region=region,
            group=group,
            evaluation=evaluation,
            page=page,
            size=size,
        )
        root = self.run_dir
        if not root.is_dir():
            raise NotFound(
                f"the run directory {root} of job {self.job_id} is not on this machine; read its samples there"
            )
        return [sample_tree(sample) for sample in gallery_of(RunDirectory(root), query).samples]

    def _records(self, wanted: frozenset[RecordKind], *, past_only: bool) -> Iterator[dict[str, Any]]:
        for event in self._coordinator.watch(self.job_id, past_only=past_only):
            if event.WhichOneof("body") != "step":
                continue
            record = record_from_pb(event.step)
            if record.kind in wanted:
                yield json.loads(record.to_json())

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the job has ended, and return how, which is succeeded or cancelled.

        Raises: PeriplusError if the job failed, PlanInfeasible if no placement satisfies it, TimedOut if it has not
        ended after `timeout_s`. It goes on then.
        """
        try:
            for _ in self._coordinator.watch(self.job_id, timeout_s=timeout_s):
                pass
        except TimedOut as error:
            status = self.status()
            if not status.has_ended:
                raise TimedOut(
                    f"job {self.job_id} has not ended within {timeout_s:g} s: it is {status.state} and goes on; wait "
                    "longer, or cancel it"
                ) from error
        ended = self._coordinator.job(self.job_id)
        if job_state(ended) != JobState.CANCELLED:
            raise_outcome(ended)
        return job_status(ended)

    def cancel(self) -> JobStatus:
        """Ask for the end of the job and return it at once; a job that has ended is left as it is.

        The trainer writes a checkpoint first, which takes seconds: `wait` returns when all has stopped.
        """
        try:
            return job_status(self._coordinator.cancel(self.job_id))
        except StateError:
            status = self.status()
            if not status.has_ended:
                raise
            return status


def job_status(job: control_pb2.Job) -> JobStatus:
    """Return the status of a job that a coordinator sent."""
    has_policy, files = job.HasField("policy"), job.files
    return JobStatus(
        job_id=job.job_id,
        name=job.name,
        state=job_state(job),
        reason=job.reason,
        doing=job.doing,
        fork=job.policy.fork if has_policy else None,
        version=job.policy.version if has_policy else None,
        submitted_at_s=job.submitted_at_s,
        wan_bytes=sum(pair.sent_bytes for pair in job.traffic),
        run_dir=Path(files.run_dir) if files.run_dir else None,
        checkpoint_version=files.checkpoint.version if files.HasField("checkpoint") else None,
    )
