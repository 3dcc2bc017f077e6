"""What the planner answers: a plan (`periplus.plan/1`), that there is none and why, or the best so far.

A plan is a proposal: the coordinator checks it against the newest state before anything starts.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from periplus import config
from periplus.errors import ConfigError

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
    """What the plan expects of one region: seconds from a publication to its last byte there, uncompressed."""

    region: str
    weights_s: float | None
    """None where the size of the model is not known."""
    rtt_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where, and which way the bytes go."""

    method: str
    trainer_region: str
    assignments: tuple[Assignment, ...]
    weights_tree: tuple[Edge, ...]
    trajectory_routes: tuple[Edge, ...]
    predictions: tuple[Prediction, ...]
    binding: str
    """What keeps the plan from being better, for a person."""

    @property
    def rollout_regions(self) -> tuple[str, ...]:
        """Regions with rollout workers, in the plan's order."""
        return tuple(a.region for a in self.assignments if a.task is TaskKind.ROLLOUT)

    @property
    def regions(self) -> tuple[str, ...]:
        """Every region that the plan uses, once."""
        return tuple(dict.fromkeys(a.region for a in self.assignments))

    def to_tree(self) -> dict[str, Any]:
        """The plan as plain JSON values, with its schema."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """The plan on one line."""
        return json.dumps(self.to_tree(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The inverse of to_json. Raises: ConfigError for what is no plan."""
        tree = config.check_schema(config.parse_json(text, "plan"), SCHEMA, "plan")
        try:
            return _plan_of(tree)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"plan: not a {SCHEMA}: {type(error).__name__}: {error}") from error


def _plan_of(tree: Mapping[str, Any]) -> Plan:
    return Plan(
        method=str(tree["method"]),
        trainer_region=str(tree["trainer_region"]),
        assignments=tuple(Assignment(**{**a, "task": TaskKind(a["task"])}) for a in tree["assignments"]),
        weights_tree=tuple(Edge(**edge) for edge in tree["weights_tree"]),
        trajectory_routes=tuple(Edge(**edge) for edge in tree["trajectory_routes"]),
        predictions=tuple(Prediction(**prediction) for prediction in tree["predictions"]),
        binding=str(tree["binding"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan exists. `conflict` is one sentence with the fewest facts that exclude each other."""

    conflict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """Time ran out: the best plan so far, if any, and a proven bound in the objective's unit."""

    incumbent: Plan | None
    bound: float


Outcome = Plan | Infeasible | BudgetExhausted
