"""What a planning problem has besides fleet and workload: objective, operator's constraints, limits of the runtime.

`Problem` puts all of them together. It decides what the best plan is; how long a search may run is not part of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, PlainSerializer

from periplus.job.train_section import ShardingChoice
from periplus.values.machine import DeviceFamily
from planner.problem.device_classes import DeviceClass
from planner.problem.fleet import Fleet
from planner.problem.hardware import GpuType
from planner.problem.ranges import MAX_STEP_S, MAX_USD_PER_HOUR, DegreeLimit, Margin, RegionCount, Regions
from planner.problem.workload import Task, Workload

IMPOSSIBLE_STEP_S = 1e9
"""Seconds per step from which searches and estimates treat a placement as impossible: 31 years. Chosen by hand."""


class Objective(StrEnum):
    """Quantity that is minimised, and which limit of the goal applies."""

    THROUGHPUT = "throughput"
    """Minimise seconds per step."""
    COST_AT_THROUGHPUT = "cost"
    """Minimise dollars per hour among plans with at most `Goal.max_step_s` seconds per step."""
    THROUGHPUT_UNDER_BUDGET = "budget"
    """Minimise seconds per step among plans with at most `Goal.max_usd_per_hour` dollars per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective with the limit that it needs."""

    objective: Objective = Objective.THROUGHPUT
    max_step_s: Annotated[float, Field(ge=1e-6, le=MAX_STEP_S)] | None = None
    """Largest number of seconds per step. None without a limit."""
    max_usd_per_hour: Annotated[float, Field(ge=1e-6, le=MAX_USD_PER_HOUR)] | None = None
    """Largest sum of rent and egress, in dollars per hour. None without a limit."""
    step_margin: Margin = 0.0
    """Share by which a plan's predicted step must stay below `max_step_s`: predicted x (1 + margin) is at most the
    limit (`planner.problem.margins`)."""
    usd_margin: Margin = 0.0
    """The same share for the predicted dollars per hour and `max_usd_per_hour`."""

    @property
    def planned_step_s(self) -> float | None:
        """The largest predicted seconds per step that a plan may have; None without a limit."""
        return None if self.max_step_s is None else self.max_step_s / (1 + self.step_margin)

    @property
    def planned_usd_per_hour(self) -> float | None:
        """The largest predicted dollars per hour that a plan may have; None without a limit."""
        return None if self.max_usd_per_hour is None else self.max_usd_per_hour / (1 + self.usd_margin)

    @property
    def needs_prices(self) -> bool:
        """Whether the objective involves dollars, so that machines without a price cannot be used."""
        return self.objective is not Objective.THROUGHPUT

    @property
    def counts_usd(self) -> bool:
        """Whether dollars matter at all, as objective or as limit. Egress counts too."""
        return self.needs_prices or self.max_usd_per_hour is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Constraints that the operator sets on where tasks may run.

    A pin names the regions that a task may use. Tasks without a pin may use all regions.
    """

    pins: Annotated[tuple[tuple[Task, Regions], ...], Field(max_length=1000)] = ()
    """Pairs of a task and the only regions in which it may run."""
    forbidden: Annotated[tuple[tuple[Task, Regions], ...], Field(max_length=1000)] = ()
    """Pairs of a task and the regions in which it must not run. Data residency is expressed as such a pair for every
    task."""
    forbidden_regions: Regions = frozenset()
    """Regions in which no task may run."""
    max_regions: RegionCount | None = None
    """Largest number of regions in use, over all tasks. None without a limit."""
    min_regions: RegionCount = 1
    """Least number of regions in use, over all tasks."""
    generating: Regions = frozenset()
    """Regions in which generation must run. It may run in others as well."""
    spot_for_rollouts_only: bool = True
    """Whether spot machines may only generate."""

    @property
    def demands_regions(self) -> bool:
        """Whether some regions must be used. If so, no pool of a placement may idle to shorten the step."""
        return self.min_regions > 1 or bool(self.generating)

    def allows(self, task: Task, region: str, is_spot: bool) -> bool:
        """Return whether devices of that region, spot or not, may run that task."""
        if region in self.forbidden_regions or any(t is task and region in names for t, names in self.forbidden):
            return False
        # A task may have several pins; all of them hold.
        if any(t is task and region not in names for t, names in self.pins):
            return False
        return not (is_spot and self.spot_for_rollouts_only and task is not Task.GENERATION)

    def tasks_beside(self, workload: Workload) -> tuple[Task, ...]:
        """Return the tasks that a pin or a ban names but that the workload does not have. Such a rule has no effect."""
        named = {task for task, _ in (*self.pins, *self.forbidden)}
        return tuple(task for task in Task if task in named - {*workload.tasks})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the runtime, as far as they concern placements.

    `STUDY` stands for a runtime that can execute the whole plan space.
    """

    max_tensor: DegreeLimit
    """Largest tensor-parallel degree."""
    max_pipeline: DegreeLimit
    """Largest number of pipeline stages."""
    max_data: DegreeLimit
    """Largest number of data-parallel pipelines."""
    max_train_blocks: Annotated[int, Field(ge=1, le=2)]
    """Largest number of pools in one training mesh. Each pool is of another device class."""
    colocates: bool
    """Whether tasks of several kinds may share devices by turns."""
    turns_on: Annotated[frozenset[DeviceFamily], PlainSerializer(sorted)] = frozenset()
    """Kinds of devices that generation may share with the trainer's process by turns, also without `colocates`."""
    max_eta: Annotated[int, Field(ge=0, le=2**20)]
    """Largest staleness bound."""
    engine_tensors: Annotated[frozenset[int], PlainSerializer(sorted)] | None = None
    """Tensor-parallel degrees of replicas that generate on accelerators; on cores they have 1. None for all up to
    `max_tensor`."""
    fsdp: ShardingChoice | None = None
    """How several processes divide what they train: over all of them (`full`), over those of each machine where whole
    machines train (`hybrid`), or not at all (`none`); `auto` allows all three. None stands for no such runtime: it
    allows all of `Sharding`, and one copy."""
    roles_on_trainer: Annotated[frozenset[Task], PlainSerializer(sorted)] = frozenset()
    """Tasks that the trainer's process runs itself. They are always in the group of actor training."""

    def allows_group(self, tasks: Sequence[Task], of_workload: Sequence[Task]) -> bool:
        """Return whether the runtime can run exactly these tasks of a workload by turns on the same devices."""
        on_trainer = self.roles_on_trainer & set(of_workload)
        if self.colocates or len(tasks) == 1 or set(tasks) <= on_trainer:
            return True
        return bool(self.turns_on) and set(tasks) == {*on_trainer, Task.ACTOR_TRAINING, Task.GENERATION}

    def allows_turns(self, tasks: Sequence[Task], gpu: GpuType) -> bool:
        """Return whether tasks that are in one group may use devices of a type by turns."""
        shares = Task.GENERATION in tasks and Task.ACTOR_TRAINING in tasks
        return self.colocates or not shares or gpu.family in self.turns_on

    def allows_tensor(self, task: Task, degree: int, gpu: GpuType) -> bool:
        """Return whether a task may have this degree of tensor parallelism on devices of a type."""
        if task is not Task.GENERATION or self.engine_tensors is None:
            return degree <= self.max_tensor
        return degree == 1 if gpu.is_cpu else degree in self.engine_tensors


STUDY = Limits(max_tensor=8, max_pipeline=16, max_data=1 << 20, max_train_blocks=2, colocates=True, max_eta=1 << 20)
"""Limits for studies: the whole plan space of `docs/planner-model.md`, whatever the runtime executes today. 1 << 20
stands for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One planning problem: everything that decides which plan is best."""

    fleet: Fleet
    workload: Workload
    goal: Goal = Goal()
    rules: Rules = Rules()
    limits: Limits = STUDY

    def allows(self, tasks: Iterable[Task], at: DeviceClass) -> bool:
        """Return whether devices of a class may run all these tasks.

        The operator's rules must allow it, and the devices must have a price if the objective needs prices.
        """
        if self.goal.needs_prices and at.usd_per_gpu_hour is None:
            return False
        named = tuple(tasks)
        if not self.limits.allows_turns(named, at.gpu):
            return False
        return all(self.rules.allows(task, at.region.name, at.is_spot) for task in named)

    @property
    def asks_for_speed_alone(self) -> bool:
        """Whether only seconds per step count: there is no limit in dollars and no rule on numbers of regions."""
        goal, rules = self.goal, self.rules
        is_free = rules.max_regions is None and not rules.demands_regions
        return is_free and goal.objective is Objective.THROUGHPUT and goal.max_usd_per_hour is None
