"""The keys of a plan file, `periplus.plan/1`, with the ranges of their numbers.

What no single key can say is checked by the cost oracle, which judges a plan again when it is read.

Keys that other programs add at the top, such as the explanation that `periplus plan --explain` prints, are let through.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from periplus.config.loading import Config
from planner.answer.placement import Sharding
from planner.files.ranges import Name
from planner.problem.goal import Objective
from planner.problem.workload import Task

MAX_STEP_S = 1e7
"""A step of four months is beyond any plan, and still far from where solvers' numbers end."""
MAX_USD_PER_HOUR = 1e7
_MOST_SECONDS = 1e18
"""Largest predicted or simulated seconds. Steps beyond 10^9 seconds count as none, so sums stay below this."""
_MOST = 10**12
"""Range of the numbers of units and workers."""

_Seconds = Annotated[float, Field(ge=-_MOST_SECONDS, le=_MOST_SECONDS)]
_Usd = Annotated[float, Field(ge=0, le=1e18)]
_Count = Annotated[int, Field(ge=1, le=_MOST)]
_Regions = Annotated[tuple[Name, ...], Field(max_length=10_000)]


class GoalEntry(Config):
    """As `planner.problem.goal.Goal`."""

    objective: Objective = Objective.THROUGHPUT
    max_step_s: float | None = Field(default=None, ge=1e-6, le=MAX_STEP_S)
    max_usd_per_hour: float | None = Field(default=None, ge=1e-6, le=MAX_USD_PER_HOUR)
    step_margin: float = Field(default=0.0, ge=0, le=10)
    usd_margin: float = Field(default=0.0, ge=0, le=10)


class TaskRegionsEntry(Config):
    """A pin or a ban."""

    task: Task
    regions: _Regions


class RulesEntry(Config):
    """As `planner.problem.goal.Rules`."""

    pins: tuple[TaskRegionsEntry, ...] = Field(max_length=1000)
    forbidden: tuple[TaskRegionsEntry, ...] = Field(max_length=1000)
    forbidden_regions: _Regions
    max_regions: int | None = Field(ge=1, le=10**6)
    min_regions: int = Field(ge=1, le=10**6)
    generating: _Regions
    spot_for_rollouts_only: bool


class LimitsEntry(Config):
    """As `planner.problem.goal.Limits`."""

    max_tensor: int = Field(ge=1, le=2**20)
    max_pipeline: int = Field(ge=1, le=2**20)
    max_data: int = Field(ge=1, le=2**20)
    max_train_blocks: int = Field(ge=1, le=2)
    colocates: bool
    max_eta: int = Field(ge=0, le=2**20)
    roles_on_trainer: tuple[Task, ...]


class QuestionEntry(Config):
    """The fleet and the workload are checked by their own files' readers."""

    fleet: dict[str, JsonValue]
    workload: dict[str, JsonValue]
    goal: GoalEntry
    rules: RulesEntry
    limits: LimitsEntry


class LayoutEntry(Config):
    """As `planner.answer.placement.Layout`."""

    tensor: int = Field(ge=1, le=1024)
    pipeline: int = Field(default=1, ge=1, le=1024)
    sharding: Sharding = Sharding.NONE
    recompute: bool = False
    micro_batch: int = Field(default=1, ge=1, le=1024)
    batch: int = Field(default=0, ge=0, le=10**6)


class PoolEntry(Config):
    """As `planner.answer.placement.Pool`."""

    device_class: str = Field(max_length=1000)
    unit_gpus: int = Field(ge=1, le=1024)
    num_units: _Count
    layouts: dict[Task, LayoutEntry]


class GroupEntry(Config):
    """As `planner.answer.placement.Group`."""

    tasks: tuple[Task, ...] = Field(min_length=1, max_length=6)
    pools: tuple[PoolEntry, ...] = Field(min_length=1, max_length=10_000)


class PlacementEntry(Config):
    """As `planner.answer.placement.Placement`."""

    groups: tuple[GroupEntry, ...] = Field(min_length=1, max_length=6)


class RegionTimesEntry(Config):
    """As `planner.answer.evaluation.RegionTimes`."""

    region: Name
    weights_s: _Seconds
    trajectories_s: _Seconds
    window_s: _Seconds


class EvaluationEntry(Config):
    """As `planner.answer.evaluation.Evaluation`."""

    step_s: float = Field(gt=0, le=_MOST_SECONDS)
    usd_per_hour: _Usd
    usd_egress_per_hour: _Usd
    task_s: dict[Task, _Seconds]
    regions: tuple[RegionTimesEntry, ...]
    binding: str = Field(max_length=1000)
    idle: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = ()
    limited: tuple[tuple[Annotated[int, Field(ge=0, le=10_000)], Annotated[float, Field(ge=0, le=1e18)]], ...] = ()


class AssignmentEntry(Config):
    """As `planner.plan.Assignment`."""

    task: Literal["trainer", "rollout"]
    region: Name
    num_workers: int = Field(ge=0, le=_MOST)


class EdgeEntry(Config):
    """As `planner.plan.Edge`."""

    src_region: Name
    dst_region: Name


class PredictionEntry(Config):
    """As `planner.plan.Prediction`."""

    region: Name
    weights_s: _Seconds | None
    rtt_s: _Seconds


class RatesEntry(Config):
    """As `planner.plan.Rates`."""

    samples_per_s: float = Field(ge=0, le=1e18)
    completion_tokens_per_s: float = Field(ge=0, le=1e18)


class PlayedEntry(Config):
    """As `planner.plan.Played`."""

    step_s: float | None = Field(gt=0, le=_MOST_SECONDS)
    samples_per_s: float = Field(ge=0, le=1e18)
    max_age: int = Field(ge=0, le=10**6)
    num_steps: int = Field(ge=0, le=10**6)
    seed: int = Field(ge=0, le=2**63)
    stalled: str = Field(default="", max_length=10_000)


class PlanFile(Config):
    """Who runs where, what to expect of it, and the question that it answers."""

    model_config = ConfigDict(extra="ignore")

    method: str = Field(max_length=200)
    trainer_region: Name
    assignments: tuple[AssignmentEntry, ...] = Field(min_length=1)
    weights_tree: tuple[EdgeEntry, ...]
    trajectory_routes: tuple[EdgeEntry, ...]
    predictions: tuple[PredictionEntry, ...]
    binding: str = Field(max_length=100_000)
    seed: int | None = Field(default=None, ge=0, le=2**63)
    goal: GoalEntry | None = None
    placement: PlacementEntry | None = None
    evaluation: EvaluationEntry | None = None
    rates: RatesEntry | None = None
    bound: float | None = Field(default=None, ge=0, le=_MOST_SECONDS)
    gap: float | None = Field(default=None, ge=0, le=1)
    simulated: PlayedEntry | None = None
    question: QuestionEntry | None = None
