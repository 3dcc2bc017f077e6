"""What a case of bench/experiments.py returns: figures with their targets, and what else was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its target: it is reached if `value` `op` `target` holds. The value is compared before rounding."""

    name: str
    value: float
    unit: str
    op: Literal["<=", ">=", "=="]
    target: float

    @property
    def is_reached(self) -> bool:
        """Whether the value meets the target."""
        match self.op:
            case "<=":
                return self.value <= self.target
            case ">=":
                return self.value >= self.target
            case "==":
                return self.value == self.target

    def entry(self) -> dict[str, Any]:
        """Return the figure as an entry of a record's `reach`."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "op": self.op,
            "target": self.target,
            "ok": self.is_reached,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of one case. `config` says with which sizes it was measured, `results` what was measured beside."""

    figures: tuple[Figure, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
