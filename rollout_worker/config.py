"""Configuration of one rollout worker: the task that its agent wrote, and how much it does at once."""

from dataclasses import dataclass

from periplus.job.job_file import JobFile
from periplus.values.task import TaskSpec, authority_key_of

LEASES_PER_SLOT = 4
"""Leases held at once for each slot of the engine: one being generated, and enough waiting to cover a round trip to the
trainer. Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one rollout worker process."""

    task: TaskSpec
    job: JobFile

    @classmethod
    def of_task(cls, task: TaskSpec) -> "WorkerConfig":
        """Return the configuration for a task. Raises: ConfigError if the task holds no valid job."""
        return cls(task=task, job=JobFile.from_json(task.job_json))

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, in bytes: the worker reads weights only of trainers that it certified.

        Raises: ConfigError if the task has no such key.
        """
        return authority_key_of(self.task)
