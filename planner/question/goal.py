"""What a better plan has more or less of, what the operator forbids, what the runtime executes, how long to think."""

from dataclasses import dataclass
from enum import StrEnum

from planner.question.fleet import Fleet
from planner.question.workload import Task, Workload


class Objective(StrEnum):
    THROUGHPUT = "throughput"
    """Least seconds a step."""
    COST_AT_THROUGHPUT = "cost"
    """Least dollars an hour among plans of at most `max_step_s`."""
    THROUGHPUT_UNDER_BUDGET = "budget"
    """Least seconds a step among plans of at most `max_usd_per_hour`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective with the number that it needs."""

    objective: Objective = Objective.THROUGHPUT
    max_step_s: float | None = None
    max_usd_per_hour: float | None = None
    """Of rented devices and egress together."""
    step_margin: float = 0.0
    """A plan's predicted step times 1 + `step_margin` is within `max_step_s` (`planner.margins`)."""
    usd_margin: float = 0.0
    """A plan's predicted dollars an hour times 1 + `usd_margin` are within `max_usd_per_hour`."""

    @property
    def planned_step_s(self) -> float | None:
        """The most seconds a step that a plan may be predicted to take."""
        return None if self.max_step_s is None else self.max_step_s / (1 + self.step_margin)

    @property
    def planned_usd_per_hour(self) -> float | None:
        """The most dollars an hour that a plan may be predicted to cost."""
        return None if self.max_usd_per_hour is None else self.max_usd_per_hour / (1 + self.usd_margin)

    @property
    def needs_prices(self) -> bool:
        return self.objective is not Objective.THROUGHPUT

    @property
    def counts_usd(self) -> bool:
        """Whether dollars matter at all, egress included."""
        return self.needs_prices or self.max_usd_per_hour is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The operator's constraints. A pin names the regions that a task may use; what is not named is free."""

    pins: tuple[tuple[Task, frozenset[str]], ...] = ()
    forbidden: tuple[tuple[Task, frozenset[str]], ...] = ()
    """Regions that a task must not use (data residency forbids them all tasks)."""
    forbidden_regions: frozenset[str] = frozenset()
    max_regions: int | None = None
    min_regions: int = 1
    """Regions in use, all tasks together."""
    generating: frozenset[str] = frozenset()
    """Regions in which generation must run, beside any others."""
    spot_for_rollouts_only: bool = True

    @property
    def demands_regions(self) -> bool:
        """Whether regions must be used: then none of a placement's pools may idle to make it faster."""
        return self.min_regions > 1 or bool(self.generating)

    def allows(self, task: Task, region: str, is_spot: bool) -> bool:
        """Whether devices of that region may do that task."""
        if region in self.forbidden_regions or any(t is task and region in names for t, names in self.forbidden):
            return False
        if any(t is task and region not in names for t, names in self.pins):
            return False
        return not (is_spot and self.spot_for_rollouts_only and task is not Task.GENERATION)

    def tasks_beside(self, workload: Workload) -> tuple[Task, ...]:
        """Tasks that a pin or a ban names, but the workload lacks: such a rule says nothing."""
        named = {task for task, _ in (*self.pins, *self.forbidden)}
        return tuple(task for task in Task if task in named - {*workload.tasks})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the runtime executes, as far as placements are concerned; `STUDY` lifts it."""

    max_tensor: int
    max_pipeline: int
    max_data: int
    max_train_blocks: int
    """Different kinds of devices in one training mesh."""
    colocates: bool
    """Whether tasks of several kinds can share devices by turns."""
    max_eta: int
    roles_on_trainer: frozenset[Task] = frozenset()
    """Tasks that the trainer's process does itself: they are always in actor training's group."""


STUDY = Limits(max_tensor=8, max_pipeline=16, max_data=1 << 20, max_train_blocks=2, colocates=True, max_eta=1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything that decides what the best plan is."""

    fleet: Fleet
    workload: Workload
    goal: Goal = Goal()
    rules: Rules = Rules()
    limits: Limits = STUDY

    @property
    def asks_for_speed_alone(self) -> bool:
        """Whether time is all that counts, on whatever devices: neither dollars nor numbers of regions do."""
        goal, rules = self.goal, self.rules
        is_free = rules.max_regions is None and not rules.demands_regions
        return is_free and goal.objective is Objective.THROUGHPUT and goal.max_usd_per_hour is None
