"""What one rollout worker runs with: the task that its agent wrote, and sizes that follow from the job."""

from dataclasses import dataclass

from periplus.job.job_file import JobFile
from periplus.values.task import TaskSpec, authority_key_of

BATCH_ROWS = 64
"""Rows of a decode batch on a CPU: larger ones no longer raise tokens per second of a small model on one core."""

BATCHES_HELD = 4
"""Decode batches' worth of leases held at once: one in work, and enough waiting to cover a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One rollout worker process."""

    task: TaskSpec
    job: JobFile
    batch_rows: int
    capacity: int

    @classmethod
    def of_task(cls, task: TaskSpec) -> "WorkerConfig":
        """Raises: ConfigError if the task holds no valid job."""
        return cls(
            task=task, job=JobFile.from_json(task.job_json), batch_rows=BATCH_ROWS, capacity=BATCHES_HELD * BATCH_ROWS
        )

    @property
    def authority_key(self) -> bytes:
        """Raw; weights are read from trainers that it certified. Raises: ConfigError if the task holds none."""
        return authority_key_of(self.task)
