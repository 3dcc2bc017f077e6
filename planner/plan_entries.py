"""Keys of a plan file (`periplus.plan/1`), with their types and ranges.

Each model mirrors one class of the planner, which its docstring names; that class says what the fields mean. The models
only check single keys. Whether a placement is valid and its numbers are right is checked by the cost oracle, which
evaluates a plan again when a command reads it (`planner.commands.output.read_plan`).

Additional keys at the top level are accepted, such as the explanation that `periplus plan --explain` prints.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from periplus.config.loading import Config
from periplus.values.machine import Pace
from planner.answer.placement import Sharding
from planner.files.ranges import Name
from planner.problem.goal import Objective
from planner.problem.workload import Task

MAX_STEP_S = 1e7
"""Largest limit on seconds per step: four months. It is longer than any useful step, and still small enough for the
solver's floating-point numbers. Chosen by hand."""
MAX_USD_PER_HOUR = 1e7
"""Largest limit on dollars per hour. Chosen by hand."""
_MOST_SECONDS = 1e18
"""Largest predicted or simulated seconds. Searches treat steps from `IMPOSSIBLE_STEP_S` as impossible, so sums of times
stay below this. Chosen by hand."""
_MOST = 10**12
"""Largest number of units or workers. Chosen by hand."""

_Seconds = Annotated[float, Field(ge=-_MOST_SECONDS, le=_MOST_SECONDS)]
_Usd = Annotated[float, Field(ge=0, le=1e18)]
_Count = Annotated[int, Field(ge=1, le=_MOST)]
_Regions = Annotated[tuple[Name, ...], Field(max_length=10_000)]


class GoalEntry(Config):
    """Keys of a `planner.problem.goal.Goal`."""

    objective: Objective = Objective.THROUGHPUT
    max_step_s: float | None = Field(default=None, ge=1e-6, le=MAX_STEP_S)
    max_usd_per_hour: float | None = Field(default=None, ge=1e-6, le=MAX_USD_PER_HOUR)
    step_margin: float = Field(default=0.0, ge=0, le=10)
    usd_margin: float = Field(default=0.0, ge=0, le=10)


class TaskRegionsEntry(Config):
    """A task with the only regions in which it may run (in `pins`), or with regions that it must not use (in
    `forbidden`)."""

    task: Task
    regions: _Regions


class RulesEntry(Config):
    """Keys of a `planner.problem.goal.Rules`."""

    pins: tuple[TaskRegionsEntry, ...] = Field(max_length=1000)
    forbidden: tuple[TaskRegionsEntry, ...] = Field(max_length=1000)
    forbidden_regions: _Regions
    max_regions: int | None = Field(ge=1, le=10**6)
    min_regions: int = Field(ge=1, le=10**6)
    generating: _Regions
    spot_for_rollouts_only: bool


class LimitsEntry(Config):
    """Keys of a `planner.problem.goal.Limits`."""

    max_tensor: int = Field(ge=1, le=2**20)
    max_pipeline: int = Field(ge=1, le=2**20)
    max_data: int = Field(ge=1, le=2**20)
    max_train_blocks: int = Field(ge=1, le=2)
    colocates: bool
    max_eta: int = Field(ge=0, le=2**20)
    engine_tensors: tuple[int, ...] | None = None
    roles_on_trainer: tuple[Task, ...]


class QuestionEntry(Config):
    """Keys of a `planner.problem.goal.Problem`. Readers of fleet and workload files check `fleet` and `workload`."""

    fleet: dict[str, JsonValue]
    workload: dict[str, JsonValue]
    goal: GoalEntry
    rules: RulesEntry
    limits: LimitsEntry


class LayoutEntry(Config):
    """Keys of a `planner.answer.placement.Layout`."""

    tensor: int = Field(ge=1, le=1024)
    pipeline: int = Field(default=1, ge=1, le=1024)
    sharding: Sharding = Sharding.NONE
    recompute: bool = False
    micro_batch: int = Field(default=1, ge=1, le=1024)
    batch: int = Field(default=0, ge=0, le=10**6)


class PoolEntry(Config):
    """Keys of a `planner.answer.placement.Pool`."""

    device_class: str = Field(max_length=1000)
    unit_gpus: int = Field(ge=1, le=1024)
    num_units: _Count
    layouts: dict[Task, LayoutEntry]


class GroupEntry(Config):
    """Keys of a `planner.answer.placement.Group`."""

    tasks: tuple[Task, ...] = Field(min_length=1, max_length=6)
    pools: tuple[PoolEntry, ...] = Field(min_length=1, max_length=10_000)


class PlacementEntry(Config):
    """Keys of a `planner.answer.placement.Placement`."""

    groups: tuple[GroupEntry, ...] = Field(min_length=1, max_length=6)


class RegionTimesEntry(Config):
    """Keys of a `planner.answer.evaluation.RegionTimes`."""

    region: Name
    weights_s: _Seconds
    trajectories_s: _Seconds
    window_s: _Seconds


class EvaluationEntry(Config):
    """Keys of a `planner.answer.evaluation.Evaluation`."""

    step_s: float = Field(gt=0, le=_MOST_SECONDS)
    usd_per_hour: _Usd
    usd_egress_per_hour: _Usd
    task_s: dict[Task, _Seconds]
    regions: tuple[RegionTimesEntry, ...]
    binding: str = Field(max_length=1000)
    idle: tuple[Annotated[int, Field(ge=0, le=10_000)], ...] = ()
    limited: tuple[tuple[Annotated[int, Field(ge=0, le=10_000)], Annotated[float, Field(ge=0, le=1e18)]], ...] = ()


class AssignmentEntry(Config):
    """Keys of a `planner.plan.Assignment`."""

    task: Literal["trainer", "rollout"]
    region: Name
    num_workers: int = Field(ge=0, le=_MOST)
    device: str = Field(default="", max_length=200)
    machine: str = Field(default="", max_length=200)
    devices: tuple[Annotated[int, Field(ge=0, le=1023)], ...] = Field(default=(), max_length=1024)
    engine: str = Field(default="", max_length=40)
    tensor: int = Field(default=1, ge=0, le=1024)
    data: int = Field(default=1, ge=1, le=1024)
    share: float | None = Field(default=None, ge=0, le=1.000001)
    usd_per_hour: float | None = Field(default=None, ge=0, le=1e18)
    pace: Pace | None = None


class EdgeEntry(Config):
    """Keys of a `planner.plan.PlanEdge`."""

    src_region: Name
    dst_region: Name


class PredictionEntry(Config):
    """Keys of a `planner.plan.Prediction`."""

    region: Name
    weights_s: _Seconds | None
    rtt_s: _Seconds


class RatesEntry(Config):
    """Keys of a `planner.plan.Rates`."""

    samples_per_s: float = Field(ge=0, le=1e18)
    completion_tokens_per_s: float = Field(ge=0, le=1e18)


class SimulatedFiguresEntry(Config):
    """Keys of a `planner.plan.SimulatedFigures`."""

    step_s: float | None = Field(gt=0, le=_MOST_SECONDS)
    samples_per_s: float = Field(ge=0, le=1e18)
    max_age: int = Field(ge=0, le=10**6)
    num_steps: int = Field(ge=0, le=10**6)
    seed: int = Field(ge=0, le=2**63)
    stalled: str = Field(default="", max_length=10_000)


class PlanFile(Config):
    """Keys of a `planner.plan.Plan`. Keys that are not listed here are ignored."""

    model_config = ConfigDict(extra="ignore")

    method: str = Field(max_length=200)
    trainer_region: Name
    assignments: tuple[AssignmentEntry, ...] = Field(min_length=1)
    weights_tree: tuple[EdgeEntry, ...] = ()
    trajectory_routes: tuple[EdgeEntry, ...] = ()
    predictions: tuple[PredictionEntry, ...] = ()
    binding: str = Field(default="", max_length=100_000)
    seed: int | None = Field(default=None, ge=0, le=2**63)
    goal: GoalEntry | None = None
    placement: PlacementEntry | None = None
    evaluation: EvaluationEntry | None = None
    rates: RatesEntry | None = None
    bound: float | None = Field(default=None, ge=0, le=_MOST_SECONDS)
    gap: float | None = Field(default=None, ge=0, le=1)
    simulated: SimulatedFiguresEntry | None = None
    question: QuestionEntry | None = None
