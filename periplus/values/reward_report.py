"""What a trajectory's metadata say of its reward: the value of each reward function, and which of them failed.

The worker writes it (`to_metadata`), and the trainer reads it (`of_metadata`). The metadata are JSON, or empty for a
reward that has no parts. Other keys of the metadata are left alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from periplus.errors import RewardCrashed, RewardFailed, RewardTimedOut

PARTS = "reward_parts"
"""Key of the values of reward functions, before weights, by label."""

FAILURES = "reward_failures"
"""Key of the kinds of failure of reward functions, by label."""


class RewardFailureKind(StrEnum):
    """Why a reward function gave no value for a completion."""

    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    RAISED = "raised"


def failure_kind(error: RewardFailed) -> RewardFailureKind:
    """Return the kind of an error."""
    match error:
        case RewardTimedOut():
            return RewardFailureKind.TIMED_OUT
        case RewardCrashed():
            return RewardFailureKind.CRASHED
        case _:
            return RewardFailureKind.RAISED


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """The values of a sample's reward functions before weights, and the kinds of failure, by label.

    A function that failed has both, since a value stands in for its own. One that did not judge the sample has neither.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    def to_metadata(self) -> str:
        """Return the report as a trajectory's metadata."""
        said = {PARTS: dict(self.parts), FAILURES: dict(self.failures)}
        said = {key: value for key, value in said.items() if value}
        return json.dumps(said) if said else ""

    @classmethod
    def of_metadata(cls, metadata: str) -> "RewardReport":
        """Return the report in a trajectory's metadata; an empty one if there is none that can be read."""
        try:
            tree = json.loads(metadata or "{}")
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(tree, dict):
            return cls()
        parts, failures = tree.get(PARTS, {}), tree.get(FAILURES, {})
        return cls(
            parts={
                key: float(value)
                for key, value in (parts.items() if isinstance(parts, dict) else ())
                if isinstance(value, int | float) and not isinstance(value, bool)
            },
            failures={key: str(value) for key, value in (failures.items() if isinstance(failures, dict) else ())},
        )
