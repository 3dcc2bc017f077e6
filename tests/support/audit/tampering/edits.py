"""The form of one change of a finished run, and the search for the lines that a change is about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict
from periplus.values.policy import Policy
from tests.support.audit.forger import Forger

T = TypeVar("T", bound=records.Entry)

STEP = Policy(0, 1)
"""The training step that most changes are about: the second of the first fork."""


@dataclass(frozen=True, slots=True)
class Tampering:
    """A change of a run. `caught`: the codes, any of which shows it after everything that follows was recomputed.

    `is_sealable`: such a recomputation makes all hashes agree again.
    """

    edit: Callable[[Forger], None]
    caught: tuple[Code, ...]
    name: str = ""
    is_sealable: bool = True

    def __str__(self) -> str:
        return self.name or self.edit.__name__


def at(forger: Forger, kind: type[Any], *, nth: int = 0, **fields: object) -> int:
    """Return the place of the nth record of a kind that has these fields."""
    fits = forger.indices(
        lambda r: isinstance(r, kind) and all(getattr(r, name) == value for name, value in fields.items())
    )
    return fits[nth]


def found(forger: Forger, kind: type[T], *, nth: int = 0, **fields: object) -> T:
    """Return the nth record of a kind that has these fields."""
    record = forger.entries[at(forger, kind, nth=nth, **fields)].record
    assert isinstance(record, kind)
    return record


def trained_on(forger: Forger, policy: Policy = STEP) -> tuple[records.UsedSample, ...]:
    """Return the samples of the step that starts from this policy."""
    return found(forger, records.ConsumeEntry, policy=policy).samples


def train_on(forger: Forger, samples: tuple[records.UsedSample, ...], policy: Policy = STEP) -> None:
    """Say that the step that starts from this policy had other samples."""
    forger.edit(at(forger, records.ConsumeEntry, policy=policy), samples=samples)


def first_trained(forger: Forger) -> int:
    """Return the place of the result line of the first sample that STEP trained on."""
    digest = trained_on(forger)[0].digest
    return at(forger, records.ResultEntry, verdict=AdmissionVerdict.ACCEPTED, digest=digest)


def first_trained_result(forger: Forger) -> records.ResultEntry:
    """Return the result line of the first sample that STEP trained on."""
    record = forger.entries[first_trained(forger)].record
    assert isinstance(record, records.ResultEntry)
    return record
