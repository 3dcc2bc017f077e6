"""Plans (`periplus.plan/1`): the planner's answer in the form that the coordinator, workers and files use.

A plan is a proposal: the coordinator checks it against the newest state before anything starts. What the coordinator
needs (`assignments`, `weights_tree`, `trajectory_routes`, `predictions`) follows from the placement and is written out
next to it. A plan of the static method has no placement, no evaluation and no bound, and one that is made by hand may
have no more than its processes. `PlanOutcome` is what planning
returns: a plan, the best plan when time ran out, or a proof that there is none.

Fields are the keys of a file, with their types and ranges (`Plan.to_tree`, `Plan.from_tree`). Only single keys are
checked. Whether a placement is valid and its numbers are right is checked by the cost oracle, which evaluates a plan
again when a command reads it (`planner.commands.output.read_plan`).
"""

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer
from pydantic.functional_validators import ValidateAs

from periplus.config import loading
from periplus.values.machine import Pace
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Infeasible
from planner.answer.placement import Placement
from planner.files.question_file import QuestionFile, question_file, question_of
from planner.problem.goal import Goal, Problem
from planner.problem.ranges import MOST_SECONDS, Degree, Name, PerSecond, Seconds, Seed, StepSeconds, UsdPerHour

SCHEMA = "periplus.plan/1"
"""Name and version of the format of plans."""


class TaskKind(StrEnum):
    """Kind of process that a region runs."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Like processes: their kind and region, how many there are, and what each of them computes with."""

    task: TaskKind
    region: Name
    num_workers: Annotated[int, Field(ge=0, le=10**12)]
    device: Annotated[str, Field(max_length=200)] = ""
    """Type of their accelerators. Empty for processes on cores."""
    machine: Annotated[str, Field(max_length=200)] = ""
    """Name of their machine. Empty for any machine of the region that has such devices free."""
    devices: Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(max_length=1024)] = ()
    """Indices of the devices of the only process. Empty for any that are free."""
    engine: Annotated[str, Field(max_length=40)] = ""
    """Inference engine of rollout workers. Empty for the job's."""
    tensor: Annotated[int, Field(ge=0, le=1024)] = 1
    """Devices that share each layer of a rollout worker's engine; 0 if its engines are servers that run already."""
    data: Degree = 1
    """Processes that share the trainer's steps, each on a device of its own."""
    sharding: Literal["", "full", "hybrid", "none"] = ""
    """How they divide weights and optimizer, for a job that leaves it open (`train.sharding`). Empty leaves it to the
    trainer."""
    by_turns: bool = False
    """Whether these rollout workers have no devices of their own, but use the trainer's by turns with it."""
    share: Annotated[float, Field(ge=0, le=1.000001)] | None = None
    """Fraction of a step's samples that these rollout workers make together. None if nothing was predicted."""
    usd_per_hour: UsdPerHour | None = None
    """Rent of all their devices. None if a price is unknown."""
    pace: Pace | None = None
    """Least seconds for each token, if their devices are emulated and not shared with other processes."""
    memory_bytes: Annotated[int, Field(ge=0, le=10**15)] = 0
    """Host memory of each of them. 0 in a plan by hand means as much as the planner counts for such a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEdge:
    """One link between two regions that a plan uses, in one direction."""

    src_region: Name
    dst_region: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted transfer of one version from the trainer's region to another region."""

    region: Name
    weights_s: Seconds | None
    """Seconds from the publication of a version to its last byte in the region. None if the size of the model is
    unknown."""
    rtt_s: Seconds
    """Round-trip time of the route from the trainer's region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Throughput that follows from the evaluation's step time."""

    samples_per_s: PerSecond
    completion_tokens_per_s: PerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRegion:
    """Simulated seconds of one region that generates."""

    region: Name
    weights_s: Seconds
    """Mean seconds from the end of a training step until the version has arrived in the region, without loading it."""
    generation_s: Seconds
    """Seconds per step in which an engine of the region has a sequence, mean over its engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFigures:
    """Result of simulating a plan for `num_steps` steps. `stalled` says why the run stalled, and is empty if it did
    not."""

    step_s: StepSeconds | None
    """Mean seconds per step. None if the run stalled."""
    samples_per_s: PerSecond
    max_age: Annotated[int, Field(ge=0, le=10**6)]
    """Largest age of a token that was trained on, in versions."""
    num_steps: Annotated[int, Field(ge=0, le=10**6)]
    seed: Seed
    stalled: Annotated[str, Field(max_length=10_000)] = ""
    training_s: Seconds | None = None
    """Seconds per step of the tasks that the trainer's processes compute; `waiting_s` is the rest of the step. None if
    the run stalled."""
    waiting_s: Seconds | None = None
    regions: tuple[SimulatedRegion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan: processes by region, data flows, predictions, and what was proved.

    `placement`, `evaluation`, `rates`, `goal` and `question` are None in plans of the static method.
    """

    __pydantic_config__ = loading.STRICT

    method: Annotated[str, Field(max_length=200)]
    trainer_region: Name
    assignments: Annotated[tuple[Assignment, ...], Field(min_length=1)]
    weights_tree: tuple[PlanEdge, ...] = ()
    trajectory_routes: tuple[PlanEdge, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    binding: Annotated[str, Field(max_length=100_000)] = ""
    """One sentence that names what limits the step time."""
    seed: Seed | None = None
    goal: Goal | None = None
    placement: Placement | None = None
    evaluation: Evaluation | None = None
    rates: Rates | None = None
    bound: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    """Proved lower bound on what the goal minimises (`step_s`, or dollars per hour) over all placements."""
    gap: Annotated[float, Field(ge=0, le=1)] | None = None
    """1 - bound / value: by which fraction the best placement may be better. None if nothing is proved."""
    simulated: SimulatedFigures | None = None
    """Result of simulating the plan. None if it was not simulated."""
    figures: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """For each kind of device that the plan uses, a sentence on the measurement that its figures are from."""
    question: (
        Annotated[
            Problem,
            ValidateAs(QuestionFile, question_of),
            PlainSerializer(question_file, return_type=QuestionFile),
        ]
        | None
    ) = None
    """The problem that the plan answers. It is left out of plans that are sent to workers."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Every region that the plan uses, once."""
        return tuple(dict.fromkeys(a.region for a in self.assignments))

    def to_tree(self) -> dict[str, Any]:
        """Return the plan as plain JSON values with its schema. What equals its default is left out."""
        return {"schema": SCHEMA, **loading.tree_of(self)}

    def to_json(self) -> str:
        """Return the plan as JSON on one line."""
        return json.dumps(self.to_tree(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan of a text that `to_json` made. Raises: ConfigError if it is not a plan."""
        return cls.from_tree(loading.parse_json(text, "plan"), "plan")

    @classmethod
    def from_tree(cls, tree: object, source: str) -> "Plan":
        """Return the plan of values that `to_tree` made. Keys at the top that are not a plan's are ignored.

        Such a key is the explanation that `periplus plan --explain` prints. Raises: ConfigError, which names `source`.
        """
        values, known = loading.check_schema(tree, SCHEMA, source), {field.name for field in fields(cls)}
        return loading.validate(cls, {key: value for key, value in values.items() if key in known}, source)


PlanOutcome = Found[Plan] | BudgetExhausted[Plan] | Infeasible
"""Answer of the planner, one of three types, to be matched."""
