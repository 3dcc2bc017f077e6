"""Configuration of one rollout worker: the task that its agent wrote, and batch sizes."""

from dataclasses import dataclass

from periplus.job.job_file import JobFile
from periplus.values.task import TaskSpec, authority_key_of

BATCH_ROWS = 64
"""Rows of a decode batch on a CPU. More rows do not raise the tokens per second of a small model on one core."""

BATCHES_HELD = 4
"""Leases held at once, in decode batches: one being generated, and enough waiting to cover a round trip to the trainer.
Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one rollout worker process.

    `batch_rows` is the size of a decode batch, `capacity` the number of leases that the worker may hold at once.
    """

    task: TaskSpec
    job: JobFile
    batch_rows: int
    capacity: int

    @classmethod
    def of_task(cls, task: TaskSpec) -> "WorkerConfig":
        """Return the configuration for a task. Raises: ConfigError if the task holds no valid job."""
        return cls(
            task=task, job=JobFile.from_json(task.job_json), batch_rows=BATCH_ROWS, capacity=BATCHES_HELD * BATCH_ROWS
        )

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, in bytes: the worker reads weights only of trainers that it certified.

        Raises: ConfigError if the task has no such key.
        """
        return authority_key_of(self.task)
