"""Placements: which devices run which task, with which parallelism.

All placements together are the plan space of `docs/planner-model.md`.

The job's tasks are partitioned into *groups*. A group has devices of its own, and its tasks use them by turns. The
devices of a group form *pools*: devices of one class, divided into equal *units* of `unit_gpus` devices of one machine.

- A group without training has any number of pools. Each unit serves each of the group's tasks. Scoring uses the whole
  unit (`tensor` equals `unit_gpus`); generation uses it as `unit_gpus / tensor` replicas. The work of a task is spread
  over all units in proportion to their rates.
- A group with training has one or two pools (`Limits.max_train_blocks`), which together are the mesh. Each pool is
  `data` pipelines of `pipeline` stages, and a stage is one unit (`tensor == unit_gpus`). Samples are spread over the
  pools in proportion to their speed. The group's other tasks run on the same units as in a group without training.
  Generation takes turns with training there: it is a phase of each step, with `batch` 0.

Invariants: units of a pool never cross a machine. Pools of one class share the machines of the class, whatever groups
they belong to. Unit sizes are powers of two. Units of several sizes fit if and only if, for each size k, the units of
size k or more, counted in multiples of k, are at most num_machines x floor(gpus_per_machine / k).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, PlainSerializer
from pydantic.functional_validators import ValidateAs

from planner.problem.ranges import Count, Degree
from planner.problem.workload import TRAINING, Task, in_task_order


class Sharding(StrEnum):
    """Sharding of the training state over data-parallel replicas (the stages of ZeRO; `FULL` is FSDP)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallelism of one task on the units of one pool."""

    tensor: Degree
    """Tensor-parallel degree: devices of one replica of one stage, in one machine."""
    pipeline: Degree = 1
    """Number of pipeline stages. Only training has more than 1."""
    sharding: Sharding = Sharding.NONE
    """Sharding of the training state."""
    copies: Degree = 1
    """Copies of a fully sharded training state: with more than 1, each machine has one (HSDP)."""
    recompute: bool = False
    """Whether training recomputes the activations of a layer in the backward pass."""
    micro_batch: Degree = 1
    """Samples that a pipeline takes at a time in training."""
    batch: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Sequences that a replica keeps running, for generation with eta >= 1 apart from training; 0 means as many as
    fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Units of one device class, with the layout of each of the group's tasks."""

    device_class: Annotated[str, Field(max_length=1000)]
    """Key of the device class (`DeviceClass.key`)."""
    unit_gpus: Degree
    """Number of devices of one unit."""
    num_units: Count
    layouts: Annotated[
        tuple[tuple[Task, Layout], ...],
        ValidateAs(dict[Task, Layout], in_task_order),
        PlainSerializer(dict, return_type=dict[Task, Layout]),
    ]
    """One pair for each task of the group, in the order of `Task`."""

    @property
    def num_gpus(self) -> int:
        """Number of devices of all units."""
        return self.unit_gpus * self.num_units

    def resized(self, num_units: int) -> "Pool":
        """Return the pool with another number of units."""
        return Pool(device_class=self.device_class, unit_gpus=self.unit_gpus, num_units=num_units, layouts=self.layouts)

    def layout(self, task: Task) -> Layout:
        """Return the layout of a task of the group."""
        return next(layout for of, layout in self.layouts if of is task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tasks that share devices by turns, with these devices."""

    tasks: Annotated[tuple[Task, ...], Field(min_length=1, max_length=6)]
    """Tasks in the order of `Task`."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=10_000)]

    @property
    def trains(self) -> bool:
        """Whether one of the tasks is training."""
        return any(task in TRAINING for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A complete placement: every task of the job is in exactly one group."""

    groups: Annotated[tuple[Group, ...], Field(min_length=1, max_length=6)]

    def group_of(self, task: Task) -> Group:
        """Return the group that runs a task."""
        return next(group for group in self.groups if task in group.tasks)

    @property
    def num_gpus(self) -> int:
        """Number of devices of all groups."""
        return sum(pool.num_gpus for group in self.groups for pool in group.pools)
