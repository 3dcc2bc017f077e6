"""Needs of a job's processes, and the operator's constraints on regions. Sizes that only a disk can tell are passed in.

The memory model is coarse on purpose. The trainer holds float32 weights, gradients and two moments (16 bytes per
parameter) and two bf16 versions for publishing (4 bytes). A published version has 2 bytes per parameter, so this is ten
times its size. A rollout worker holds the engine's weights, the base of the next delta and the version that it
receives, at most in float32: six times. Activations and caches are not counted: `train.micro_batch_samples` and the
worker's batch limit them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from periplus.job.job_file import JobFile
from periplus.job.train_section import SMALL_MODEL, ShardingChoice
from periplus.values.machine import DeviceCount
from planner.problem.fleet import Region
from planner.problem.goal import Goal, Objective

BUILTIN_BYTES = {"builtin:qwen3-tiny": 382_080, "builtin:qwen3-tiny-h32": 382_208}
"""Bytes of one published version of the built-in models, counted by `tests/planner/jobs/test_needs.py`."""

PROCESS_BYTES = 512 << 20
"""Bytes of a process that has imported torch and transformers: 336 MB measured, plus room for its buffers."""

VLLM_BYTES = 2 << 30
"""Bytes of vLLM's processes without their cache of keys and values: 2.9 GB were measured with a cache of 1 GiB, for a
model of 0.3 M parameters on a CPU."""

VLLM_CACHE_GIB = 1.0
"""GiB of that cache on a host, if the job does not state it. On an accelerator it lies in the device's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Engine, memory and regions of one job.

    `engine` is the inference engine that hosts must have; None if they need none, because the job names servers.
    `trainer_region` and `rollout_regions` are the operator's pins; None leaves the choice.
    """

    algorithm: str
    engine: str | None
    staleness: int
    trainer_region: str | None
    rollout_regions: tuple[str, ...] | None
    forbidden_regions: tuple[str, ...]
    min_regions: int
    max_regions: int | None
    workers_per_region: int | None
    """Number of rollout workers of each region that has any. None for one on cores, and on accelerators as many as are
    worth it."""
    has_own_code: bool
    """Whether rollout workers run reward functions or an environment of the user's own, which a region may refuse."""
    trainer_devices: int
    """Number of processes of the trainer, which share each training step."""
    model_bytes: int | None
    """Bytes of one published, uncompressed version. None if the checkpoint is not visible; only delays are compared
    then."""
    trainer_memory_bytes: int
    """Bytes of the trainer."""
    rollout_memory_bytes: int
    """Bytes of one rollout worker."""
    worker_devices: int | None = 1
    """Devices of one rollout worker; 0 if its engines are servers that run already. None leaves them to the plan."""
    devices: Mapping[str, DeviceCount] | None = None
    """Free devices by region. None if they are not known, and no limit."""
    sharding: ShardingChoice = "auto"
    """How processes of the trainer divide what they train (`train.sharding`)."""
    goal: Goal = field(default_factory=Goal)
    """What a plan of the job minimises, and its limits."""

    @property
    def least_workers(self) -> int:
        """The fewest rollout workers of a region that has any."""
        return self.workers_per_region or 1

    @property
    def least_worker_devices(self) -> int:
        """The fewest devices of one rollout worker."""
        return 1 if self.worker_devices is None else self.worker_devices

    def may_train(self, region: str) -> bool:
        """Return whether the operator allows the trainer in the region."""
        return region not in self.forbidden_regions and self.trainer_region in (None, region)

    def has_engine(self, region: Region) -> bool:
        """Return whether the region's host has the job's engine. A host that does not state its engines has all."""
        return self.engine is None or region.engines is None or self.engine in region.engines

    def is_let_in(self, region: Region) -> bool:
        """Return whether the region lets the job's own code run. A region that does not state it lets all run."""
        return not self.has_own_code or region.allows_own_code is not False

    def may_roll_out(self, region: Region) -> bool:
        """Return whether the operator allows rollout workers in the region, it has the job's engine and lets it in."""
        allowed = self.rollout_regions is None or region.name in self.rollout_regions
        allowed = allowed and region.name not in self.forbidden_regions
        return allowed and self.has_engine(region) and self.is_let_in(region)

    def bytes_for(self, *, trains: bool, rolls_out: bool) -> int:
        """Return the bytes that the job takes on one region's host."""
        workers = self.least_workers * self.rollout_memory_bytes if rolls_out else 0
        return workers + (self.trainer_memory_bytes if trains else 0)

    def devices_for(self, *, trains: bool, rolls_out: bool) -> int:
        """Return the devices that the job takes in one region."""
        workers = self.least_workers * self.least_worker_devices if rolls_out else 0
        return workers + (self.trainer_devices if trains else 0)

    def has_devices(self, region: Region, *, trains: bool, rolls_out: bool) -> bool:
        """Return whether enough devices of the region are free, or all are: then the job's processes share them."""
        count = None if self.devices is None else self.devices.get(region.name, DeviceCount(0, 0))
        return count is None or count.has_room(self.devices_for(trains=trains, rolls_out=rolls_out))

    def has_room(self, region: Region, *, trains: bool, rolls_out: bool) -> bool:
        """Return whether devices and memory are enough. A host that does not state its memory has enough of it."""
        needed = self.bytes_for(trains=trains, rolls_out=rolls_out)
        has_memory = not region.memory_bytes or needed <= region.memory_bytes
        return has_memory and self.has_devices(region, trains=trains, rolls_out=rolls_out)


def needs_of(job: JobFile, model_bytes: int | None = None, devices: Mapping[str, DeviceCount] | None = None) -> Needs:
    """Return the needs of a resolved job.

    `model_bytes` is as in `planner.files.hub_checkpoint.published_bytes`, and `devices` as in `planner.solve.plan_job`.
    """
    size = BUILTIN_BYTES.get(job.model.path, model_bytes)
    return Needs(
        algorithm=job.algorithm.name,
        # Servers that run already need nothing of the hosts.
        engine=None if job.engine.url else job.engine.name,
        staleness=job.staleness,
        trainer_region=job.regions.trainer,
        rollout_regions=job.regions.rollout,
        forbidden_regions=job.regions.forbid,
        min_regions=job.regions.min,
        max_regions=job.regions.max,
        workers_per_region=job.plan.workers_per_region,
        has_own_code=job.has_own_code,
        trainer_devices=job.train.devices,
        sharding=job.train.sharding,
        model_bytes=size,
        trainer_memory_bytes=PROCESS_BYTES * job.train.devices + 10 * (size or 0) * _trainer_copies(job, size),
        rollout_memory_bytes=PROCESS_BYTES + 6 * (size or 0) + _engine_bytes(job),
        worker_devices=0 if job.engine.url else job.engine.tensor_parallel,
        devices=devices,
        goal=_goal(job),
    )


def _goal(job: JobFile) -> Goal:
    plan = job.plan
    if plan.objective == "cost":
        return Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=plan.max_step_s)
    if plan.max_usd_per_hour is not None:
        return Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=plan.max_usd_per_hour)
    return Goal()


def _trainer_copies(job: JobFile, model_bytes: int | None) -> int:
    """Return how many copies of a small model a trainer on cores has; larger ones are whole only if the job says so."""
    is_small = (model_bytes or 0) <= 2 * SMALL_MODEL
    return job.train.devices if is_small and job.train.sharding in ("auto", "none") else 1


def _engine_bytes(job: JobFile) -> int:
    """Return the bytes of the processes that an engine starts beside its worker's own."""
    if job.engine.name != "vllm" or job.engine.url:
        return 0
    cache_gib = VLLM_CACHE_GIB if job.engine.kv_cache_gib is None else job.engine.kv_cache_gib
    return VLLM_BYTES + int(cache_gib * (job.engine.tensor_parallel or 1) * (1 << 30))
