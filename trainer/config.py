"""Configuration of one trainer process: the task that its agent wrote, and where built-in models are cached."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from periplus.config.local_paths import home_folder
from periplus.job.job_file import JobFile
from periplus.values.replica_url import is_replica
from periplus.values.task import TaskSpec, authority_key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What one trainer process runs with.

    `cache_dir` has the folders `models`, of built-in models, and `compiled`, of compiled layers. `resume_from` is the
    run directory whose newest checkpoint the trainer starts from, or None for a new run. If the run is to be fetched
    from a replica first, `replica` is its URL.
    """

    task: TaskSpec
    job: JobFile
    cache_dir: Path
    resume_from: Path | None
    replica: str = ""

    @classmethod
    def of_task(cls, task: TaskSpec) -> "TrainerConfig":
        """Return the configuration for a task. Raises: ConfigError if the task holds no valid job."""
        job = JobFile.from_json(task.job_json)
        train = job.train.model_copy(update={"devices": task.data or job.train.devices})
        fetched = is_replica(task.resume_from)
        cache_home = os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache"
        return cls(
            task=task,
            job=job.model_copy(update={"train": train}),
            cache_dir=Path(cache_home) / "periplus",
            resume_from=None if not task.resume_from else Path(task.run_dir if fetched else task.resume_from),
            replica=task.resume_from if fetched else "",
        )

    @property
    def authority_key(self) -> bytes:
        """Raw Ed25519 public key of the job authority that must certify this trainer.

        Raises: ConfigError if the task holds none.
        """
        return authority_key_of(self.task)

    @property
    def planned_sharding(self) -> str:
        """How the plan has the devices divide the model; empty if it does not say it."""
        rows = json.loads(self.task.plan_json or "{}").get("assignments", ())
        return next((str(row.get("sharding", "")) for row in rows if row["task"] == "trainer"), "")
