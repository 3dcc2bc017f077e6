"""Who runs where: the plan space that every method searches. `docs/planner.md` writes it down.

The job's tasks are partitioned into *groups*. A group has devices of its own, and its tasks use them by turns. The
devices come as *pools*: devices of one class, cut into equal *units* of `unit_gpus` devices of one machine.

- A group without training: any number of pools. Each unit serves each of the group's tasks: scoring with `tensor` equal
  to the unit, generation with `unit_gpus / tensor` replicas. A task's work is spread over all units in proportion to
  their rates.
- A group with training: one or two pools (`Limits.max_train_blocks`), which together are the mesh. Each pool is
  `data` pipelines of `pipeline` stages, a stage is one unit (`tensor == unit_gpus`). Samples are spread over the pools
  in proportion to their speed. The group's other tasks run on the same units as in a group without training;
  generation, which takes turns with training, is a phase then, with `batch` 0.

A pool's units never cross a machine. Pools of one class, in whatever groups, share the class's machines: units of sizes
that divide each other fit if and only if, for each size k, the units of size at least k, counted in multiples of k, are
at most num_machines x floor(gpus_per_machine / k). Sizes are powers of two.
"""

from dataclasses import dataclass
from enum import StrEnum

from planner.question.workload import TRAINING, Task


class Sharding(StrEnum):
    """Of the training state over data-parallel replicas (ZeRO; FSDP is `FULL`)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one task uses the units of one pool."""

    tensor: int
    """Devices of one replica of one stage, in one machine."""
    pipeline: int = 1
    """Stages; more than 1 for training only."""
    sharding: Sharding = Sharding.NONE
    recompute: bool = False
    """Training: activations of a layer are computed again in the backward pass."""
    micro_batch: int = 1
    """Training: samples a pipeline takes at once."""
    batch: int = 0
    """Generation with eta >= 1 apart from training: sequences that a replica keeps running. 0: as many as fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Units of one device class, and how each of the group's tasks uses them."""

    device_class: str
    """`DeviceClass.key`."""
    unit_gpus: int
    num_units: int
    layouts: tuple[tuple[Task, Layout], ...]
    """One for each task of the group, in the order of `Task`."""

    @property
    def num_gpus(self) -> int:
        return self.unit_gpus * self.num_units

    def layout(self, task: Task) -> Layout:
        return next(layout for of, layout in self.layouts if of is task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tasks that share devices by turns."""

    tasks: tuple[Task, ...]
    """In the order of `Task`."""
    pools: tuple[Pool, ...]

    @property
    def trains(self) -> bool:
        return any(task in TRAINING for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every task of the job, once."""

    groups: tuple[Group, ...]

    def group_of(self, task: Task) -> Group:
        return next(group for group in self.groups if task in group.tasks)

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for group in self.groups for pool in group.pools)
