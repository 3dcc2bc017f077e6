"""Configuration of one rollout worker: the task that its agent wrote, and how much it does at once."""

import json
from dataclasses import dataclass

from periplus.job.job_file import JobFile
from periplus.values.task import TaskSpec, authority_key_of

LEASES_PER_SLOT = 4
"""Leases held at once for each slot of the engine: one being generated, and enough waiting to cover a round trip to the
trainer. Chosen by hand.
"""

LEAST_SHARE = 4
"""Least number of samples by which a worker judges the job. Chosen by hand: one completion that a reward function
cannot score must not end a worker of a small job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one rollout worker process."""

    task: TaskSpec
    job: JobFile

    @classmethod
    def of_task(cls, task: TaskSpec) -> "WorkerConfig":
        """Return the configuration for a task. Raises: ConfigError if the task holds no valid job."""
        job = JobFile.from_json(task.job_json)
        # The plan may give this worker another engine, or more devices, than the job's other workers have.
        planned = {
            "name": task.engine or job.engine.name,
            "tensor_parallel": task.tensor or job.engine.tensor_parallel or 1,
        }
        return cls(task=task, job=job.model_copy(update={"engine": job.engine.model_copy(update=planned)}))

    @property
    def step_share(self) -> int:
        """Number of samples that this worker makes of one training step, if all workers of the plan make equally many.

        It is at least LEAST_SHARE, if the step has so many.
        """
        num_samples = self.job.train.groups_per_step * self.job.algorithm.group_size
        assignments = json.loads(self.task.plan_json or "{}").get("assignments", ())
        num_workers = sum(int(each["num_workers"]) for each in assignments if each["task"] == "rollout")
        return max(min(LEAST_SHARE, num_samples), num_samples // max(1, num_workers))

    @property
    def authority_key(self) -> bytes:
        """Public key of the job authority, in bytes: the worker reads weights only of trainers that it certified.

        Raises: ConfigError if the task has no such key.
        """
        return authority_key_of(self.task)
