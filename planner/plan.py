"""Plans (`periplus.plan/1`): the planner's answer in the form that the coordinator, workers and files use.

A plan is a proposal: the coordinator checks it against the newest state before anything starts. What the coordinator
needs (`assignments`, `weights_tree`, `trajectory_routes`, `predictions`) follows from the placement and is written out
next to it. A plan of the static method has no placement, no evaluation and no bound, and one that is made by hand may
have no more than its processes. `PlanOutcome` is what planning
returns: a plan, the best plan when time ran out, or a proof that there is none.

Plans convert to plain JSON values and back (`Plan.to_tree`, `Plan.from_tree`); `planner.plan_entries` checks the keys
and ranges of a file, `planner.plan_text` converts the nested values.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from periplus.config import loading
from periplus.errors import ConfigError
from periplus.values.machine import Pace
from planner import plan_text
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import BudgetExhausted, Found, Infeasible
from planner.answer.placement import Placement
from planner.plan_entries import PlanFile
from planner.problem.goal import Goal, Problem

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
    region: str
    num_workers: int
    device: str = ""
    """Type of their accelerators. Empty for processes on cores."""
    machine: str = ""
    """Name of their machine. Empty for any machine of the region that has such devices free."""
    devices: tuple[int, ...] = ()
    """Indices of the devices of the only process. Empty for any that are free."""
    engine: str = ""
    """Inference engine of rollout workers. Empty for the job's."""
    tensor: int = 1
    """Devices that share each layer of a rollout worker's engine; 0 if its engines are servers that run already."""
    data: int = 1
    """Processes that share the trainer's steps, each on a device of its own."""
    share: float | None = None
    """Fraction of a step's samples that these rollout workers make together. None if nothing was predicted."""
    usd_per_hour: float | None = None
    """Rent of all their devices. None if a price is unknown."""
    pace: Pace | None = None
    """Least seconds for each token, if their devices are emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEdge:
    """One link between two regions that a plan uses, in one direction."""

    src_region: str
    dst_region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted transfer of one version from the trainer's region to another region."""

    region: str
    weights_s: float | None
    """Seconds from the publication of a version to its last byte in the region. None if the size of the model is
    unknown."""
    rtt_s: float
    """Round-trip time of the route from the trainer's region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Throughput that follows from the evaluation's step time."""

    samples_per_s: float
    completion_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFigures:
    """Result of simulating a plan for `num_steps` steps. `stalled` says why the run stalled, and is empty if it did
    not."""

    step_s: float | None
    """Mean seconds per step. None if the run stalled."""
    samples_per_s: float
    max_age: int
    """Largest age of a token that was trained on, in versions."""
    num_steps: int
    seed: int
    stalled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan: processes by region, data flows, predictions, and what was proved.

    `placement`, `evaluation`, `rates`, `goal` and `question` are None in plans of the static method.
    """

    method: str
    trainer_region: str
    assignments: tuple[Assignment, ...]
    weights_tree: tuple[PlanEdge, ...] = ()
    trajectory_routes: tuple[PlanEdge, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    binding: str = ""
    """One sentence that names what limits the step time."""
    seed: int | None = None
    goal: Goal | None = None
    placement: Placement | None = None
    evaluation: Evaluation | None = None
    rates: Rates | None = None
    bound: float | None = None
    """Proved lower bound on what the goal minimises (`step_s`, or dollars per hour) over all placements."""
    gap: float | None = None
    """1 - bound / value: by which fraction the best placement may be better. None if nothing is proved."""
    simulated: SimulatedFigures | None = None
    """Result of simulating the plan. None if it was not simulated."""
    question: Problem | None = None
    """The problem that the plan answers. It is left out of plans that are sent to workers."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Every region that the plan uses, once."""
        return tuple(dict.fromkeys(a.region for a in self.assignments))

    def to_tree(self) -> dict[str, Any]:
        """Return the plan as plain JSON values with its schema. Unknown values are left out."""
        # Keys that a plan of the static method lacks. They are left out instead of being null.
        known: dict[str, Any] = {
            "seed": self.seed,
            "goal": self.goal and plan_text.goal_tree(self.goal),
            "placement": self.placement and plan_text.placement_tree(self.placement),
            "evaluation": self.evaluation and plan_text.evaluation_tree(self.evaluation),
            "rates": self.rates and asdict(self.rates),
            "bound": self.bound,
            "gap": self.gap,
            "simulated": self.simulated and asdict(self.simulated),
            "question": self.question and plan_text.question_tree(self.question),
        }
        return {
            "schema": SCHEMA,
            "method": self.method,
            "trainer_region": self.trainer_region,
            "assignments": [_assignment_tree(each) for each in self.assignments],
            "weights_tree": [asdict(each) for each in self.weights_tree],
            "trajectory_routes": [asdict(each) for each in self.trajectory_routes],
            "predictions": [asdict(each) for each in self.predictions],
            "binding": self.binding,
            **{key: value for key, value in known.items() if value is not None},
        }

    def to_json(self) -> str:
        """Return the plan as JSON on one line."""
        return json.dumps(self.to_tree(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan of a text that `to_json` made. Raises: ConfigError if it is not a plan."""
        return cls.from_tree(loading.parse_json(text, "plan"), "plan")

    @classmethod
    def from_tree(cls, tree: object, source: str) -> "Plan":
        """Return the plan of values that `to_tree` made. Raises: ConfigError, which names `source`."""
        values = loading.check_schema(tree, SCHEMA, source)
        # Types and ranges first, with messages that name the key. What is left to fail is how values fit together.
        loading.validate(PlanFile, values, source)
        try:
            return _plan_of(values, source)
        except KeyError as error:
            raise ConfigError(f"{source}: not a {SCHEMA}: the key {error.args[0]} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{source}: not a {SCHEMA}: {type(error).__name__}: {error}") from error


def _assignment_tree(each: Assignment) -> dict[str, Any]:
    # What has its default is left out: most processes are one device each.
    defaults = {field.name: field.default for field in fields(Assignment)}
    return {key: value for key, value in asdict(each).items() if value != defaults[key]}


def _plan_of(tree: Mapping[str, Any], source: str) -> Plan:
    def of(key: str, read: Any) -> Any:
        return None if tree.get(key) is None else read(tree[key])

    return Plan(
        method=str(tree["method"]),
        trainer_region=str(tree["trainer_region"]),
        assignments=tuple(
            Assignment(
                **{
                    **a,
                    "task": TaskKind(a["task"]),
                    "devices": tuple(a.get("devices", ())),
                    "pace": Pace(**a["pace"]) if a.get("pace") else None,
                }
            )
            for a in tree["assignments"]
        ),
        weights_tree=tuple(PlanEdge(**edge) for edge in tree.get("weights_tree", ())),
        trajectory_routes=tuple(PlanEdge(**edge) for edge in tree.get("trajectory_routes", ())),
        predictions=tuple(Prediction(**prediction) for prediction in tree.get("predictions", ())),
        binding=str(tree.get("binding", "")),
        seed=of("seed", int),
        goal=of("goal", plan_text.goal_of),
        placement=of("placement", plan_text.placement_of),
        evaluation=of("evaluation", plan_text.evaluation_of),
        rates=of("rates", lambda values: Rates(**values)),
        bound=of("bound", float),
        gap=of("gap", float),
        simulated=of("simulated", lambda values: SimulatedFigures(**values)),
        question=of("question", lambda values: plan_text.question_of(values, f"{source}: question")),
    )


PlanOutcome = Found[Plan] | BudgetExhausted[Plan] | Infeasible
"""Answer of the planner, one of three types, to be matched."""
