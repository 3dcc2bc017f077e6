"""What the planner answers: a plan (`periplus.plan/1`), that there is none and why, or the best so far.

A plan is a proposal: the coordinator checks it against the newest state before anything starts. What the coordinator
needs (`assignments`, the trees and routes, `predictions`) follows from the placement and is written out beside it. A
plan that was made by the static method has no placement, no evaluation and no bound.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from periplus import config
from periplus.errors import ConfigError
from planner import plan_text
from planner.answer.evaluation import Evaluation
from planner.answer.outcome import Fact
from planner.answer.placement import Placement
from planner.plan_entries import PlanFile
from planner.question.goal import Goal, Problem

SCHEMA = "periplus.plan/1"


class TaskKind(StrEnum):
    TRAINER = "trainer"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """So many processes of one kind in one region."""

    task: TaskKind
    region: str
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A directed use of the link between two regions."""

    src_region: str
    dst_region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the plan expects of one region: seconds from a publication to its last byte there."""

    region: str
    weights_s: float | None
    """None where the size of the model is not known."""
    rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The evaluation's step time in other units."""

    samples_per_s: float
    completion_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the simulator made of the plan: means over `num_steps` steps. `stalled`: why it came to a stand."""

    step_s: float | None
    samples_per_s: float
    max_age: int
    num_steps: int
    seed: int
    stalled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where, which way the bytes go, what to expect of it and what was proved."""

    method: str
    trainer_region: str
    assignments: tuple[Assignment, ...]
    weights_tree: tuple[Edge, ...]
    trajectory_routes: tuple[Edge, ...]
    predictions: tuple[Prediction, ...]
    binding: str
    """What keeps the plan from being better, for a person."""
    seed: int | None = None
    goal: Goal | None = None
    placement: Placement | None = None
    evaluation: Evaluation | None = None
    rates: Rates | None = None
    bound: float | None = None
    """Proved: no placement has less of what the goal minimises (`step_s`, or dollars an hour)."""
    gap: float | None = None
    """1 - bound / value: how much less the best placement may have. None where nothing is proved."""
    simulated: Played | None = None
    question: Problem | None = None
    """What was asked. Left out of plans that travel to workers."""

    @property
    def rollout_regions(self) -> tuple[str, ...]:
        """Regions with rollout workers, in the plan's order."""
        return tuple(a.region for a in self.assignments if a.task is TaskKind.ROLLOUT)

    @property
    def regions(self) -> tuple[str, ...]:
        """Every region that the plan uses, once."""
        return tuple(dict.fromkeys(a.region for a in self.assignments))

    def to_tree(self) -> dict[str, Any]:
        """The plan as plain JSON values, with its schema. What is not known is left out."""
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
            "assignments": [asdict(each) for each in self.assignments],
            "weights_tree": [asdict(each) for each in self.weights_tree],
            "trajectory_routes": [asdict(each) for each in self.trajectory_routes],
            "predictions": [asdict(each) for each in self.predictions],
            "binding": self.binding,
            **{key: value for key, value in known.items() if value is not None},
        }

    def to_json(self) -> str:
        """The plan on one line."""
        return json.dumps(self.to_tree(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The inverse of to_json. Raises: ConfigError for what is no plan."""
        return cls.from_tree(config.parse_json(text, "plan"), "plan")

    @classmethod
    def from_tree(cls, tree: object, source: str) -> "Plan":
        """The inverse of to_tree. Raises: ConfigError naming `source` for what is no plan."""
        values = config.check_schema(tree, SCHEMA, source)
        config.validate(PlanFile, values, source)
        try:
            return _plan_of(values, source)
        except KeyError as error:
            raise ConfigError(f"{source}: not a {SCHEMA}: the key {error.args[0]} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{source}: not a {SCHEMA}: {type(error).__name__}: {error}") from error


def _plan_of(tree: Mapping[str, Any], source: str) -> Plan:
    def of(key: str, read: Any) -> Any:
        return None if tree.get(key) is None else read(tree[key])

    return Plan(
        method=str(tree["method"]),
        trainer_region=str(tree["trainer_region"]),
        assignments=tuple(Assignment(**{**a, "task": TaskKind(a["task"])}) for a in tree["assignments"]),
        weights_tree=tuple(Edge(**edge) for edge in tree["weights_tree"]),
        trajectory_routes=tuple(Edge(**edge) for edge in tree["trajectory_routes"]),
        predictions=tuple(Prediction(**prediction) for prediction in tree["predictions"]),
        binding=str(tree["binding"]),
        seed=of("seed", int),
        goal=of("goal", plan_text.goal_of),
        placement=of("placement", plan_text.placement_of),
        evaluation=of("evaluation", plan_text.evaluation_of),
        rates=of("rates", lambda values: Rates(**values)),
        bound=of("bound", float),
        gap=of("gap", float),
        simulated=of("simulated", lambda values: Played(**values)),
        question=of("question", lambda values: plan_text.question_of(values, f"{source}: question")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan exists. `conflict` is one sentence with the fewest facts that exclude each other."""

    conflict: str
    facts: tuple[Fact, ...] = ()
    """The same, one by one, where a search found them."""
    is_minimal: bool = False
    """Whether it is known that a plan exists without any one of them."""
    is_cut: bool = False
    """Whether it is not known because time ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """Time ran out: the best plan so far, if any, and what was proved by then, in the objective's unit."""

    incumbent: Plan | None
    bound: float | None


Outcome = Plan | Infeasible | BudgetExhausted
