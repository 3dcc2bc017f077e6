"""Configuration of one rollout worker: the task that its agent wrote, and how much it does at once."""

import json
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
    def step_share(self) -> int:
        """Number of samples that this worker makes of one training step, if all workers of the plan make equally many;
        at least 1."""
        num_samples = self.job.train.groups_per_step * self.job.algorithm.group_size
        assignments = json.loads(self.task.plan_json or "{}").get("assignments", ())
        num_workers = sum(int(each["num_workers"]) for each in assignments if each["task"] == "rollout")
        return max(1, num_samples // max(1, num_workers))

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, in bytes: the worker reads weights only of trainers that it certified.

        Raises: ConfigError if the task has no such key.
        """
        return authority_key_of(self.task)
