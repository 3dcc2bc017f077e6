"""What a job's processes need of hosts, and where the operator wants them. Pure: what only a disk can tell comes in.

The memory model is coarse on purpose. Trainer: float32 weights, gradients and two moments (16 bytes a parameter) and
two bf16 versions for publishing (4), over bf16's 2: ten times a published version. Rollout worker: the engine's
weights, the base of the next delta and what is being received, at most float32 each: six times. Activations and caches
are not counted: `train.micro_batch_samples` and the worker's batch bound them.
"""

from dataclasses import dataclass

from periplus.job import JobFile
from planner.question.fleet import Region

BUILTIN_BYTES = {"builtin:qwen3-tiny": 382_080}
"""Published bytes of the built-in models; `tests/planner/jobs/test_needs.py` counts them."""

PROCESS_BYTES = 512 << 20
"""Of a process that imported torch and transformers: 336 MB measured, and room for its buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """`trainer_region` and `rollout_regions` are the operator's pins; None leaves the choice."""

    algorithm: str
    staleness: int
    trainer_region: str | None
    rollout_regions: tuple[str, ...] | None
    forbidden_regions: tuple[str, ...]
    min_regions: int
    max_regions: int | None
    workers_per_region: int
    model_bytes: int | None
    """One published version, uncompressed; None where the checkpoint cannot be seen: then only delays are compared."""
    trainer_memory_bytes: int
    rollout_memory_bytes: int
    """Of one rollout worker."""

    def may_train(self, region: str) -> bool:
        """Whether the operator allows the trainer there."""
        return region not in self.forbidden_regions and self.trainer_region in (None, region)

    def may_roll_out(self, region: str) -> bool:
        """Whether the operator allows rollout workers there."""
        return region not in self.forbidden_regions and (self.rollout_regions is None or region in self.rollout_regions)

    def bytes_for(self, *, trains: bool, rolls_out: bool) -> int:
        """Of one region's host."""
        workers = self.workers_per_region * self.rollout_memory_bytes if rolls_out else 0
        return workers + (self.trainer_memory_bytes if trains else 0)

    def has_room(self, region: Region, *, trains: bool, rolls_out: bool) -> bool:
        """Whether the host's memory holds them; a host that does not say how much it has is not asked."""
        return not region.memory_bytes or self.bytes_for(trains=trains, rolls_out=rolls_out) <= region.memory_bytes


def needs_of(job: JobFile, model_bytes: int | None = None) -> Needs:
    """Of a resolved job; `model_bytes` as in planner.checkpoint.published_bytes."""
    size = BUILTIN_BYTES.get(job.model.path, model_bytes)
    return Needs(
        algorithm=job.algorithm.name,
        staleness=job.staleness,
        trainer_region=job.regions.trainer,
        rollout_regions=job.regions.rollout,
        forbidden_regions=job.regions.forbid,
        min_regions=job.regions.min,
        max_regions=job.regions.max,
        workers_per_region=job.plan.workers_per_region,
        model_bytes=size,
        trainer_memory_bytes=PROCESS_BYTES + 10 * (size or 0),
        rollout_memory_bytes=PROCESS_BYTES + 6 * (size or 0),
    )
