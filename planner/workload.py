"""From a job to what it needs. Pure: what only a disk can tell comes in as an argument.

The memory model is coarse on purpose. Trainer: float32 weights, gradients and two moments (16 bytes a parameter) and
two bf16 versions for publishing (4), over bf16's 2: ten times a published version. Rollout worker: the engine's
weights, the base of the next delta and what is being received, at most float32 each: six times. Activations and caches
are not counted: `train.micro_batch_samples` and the worker's batch bound them.
"""

from periplus.job import JobFile
from planner.problem import Workload

BUILTIN_BYTES = {"builtin:qwen3-tiny": 382_080}
"""Published bytes of the built-in models; `tests/planner/test_workload.py` counts them."""

PROCESS_BYTES = 512 << 20
"""Of a process that imported torch and transformers: 336 MB measured, and room for its buffers."""


def workload_of(job_json: str, model_bytes: int | None = None) -> Workload:
    """What a resolved job (`JobFile.to_json`) asks of a fleet; `model_bytes` as in planner.checkpoint.published_bytes.

    Raises: ConfigError if the text is no job.
    """
    job = JobFile.from_json(job_json)
    size = BUILTIN_BYTES.get(job.model.path, model_bytes)
    return Workload(
        algorithm=job.algorithm.name,
        trainer_region=job.regions.trainer,
        rollout_regions=job.regions.rollout,
        min_regions=job.regions.min,
        workers_per_region=job.plan.workers_per_region,
        model_bytes=size,
        trainer_memory_bytes=PROCESS_BYTES + 10 * (size or 0),
        rollout_memory_bytes=PROCESS_BYTES + 6 * (size or 0),
        staleness=job.staleness,
        groups_per_step=job.train.groups_per_step,
        group_size=job.algorithm.group_size,
    )
