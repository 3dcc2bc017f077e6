"""What must be done after a message or a frame came in, as values: the ledger's driver returns them (ledger_driver.py).

The shell around it (ledger_service.py) does what they say, in their order. Nothing here decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from periplus.audit.records import Entry
from periplus.values.policy import Policy
from trainer.intake.committed import KeptTrajectory
from trainer.ledger.values import Granted, Revoked


@dataclass(frozen=True, slots=True)
class LineWritten:
    """Write this line to the audit, before anything that follows it is done."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class EventLogged:
    """Log an event: a level of the `logging` module, a fixed name, and fields."""

    level: int
    name: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """The trajectories that a step trains on, and the policy that the step starts from."""

    policy: Policy
    kept: tuple[KeptTrajectory, ...]


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """The samples of an evaluation in the order of the items asked for, without those that no worker could produce."""

    kept: tuple[KeptTrajectory, ...]


IntakeEffect = LineWritten | EventLogged | Granted | Revoked | LedgerBatch | EvaluationDone
"""What the shell must do: write, log, send (once the lines before are flushed), or hand to the training loop."""
