"""A ledger whose clock a test moves: it is told events, keeps its effects, and checks its state after each event."""

from dataclasses import replace
from typing import Any, TypeVar

from periplus.values.policy import Lineage, Policy
from tests.support.ledger.surroundings import Checkpoint, joining, result_of
from trainer.ledger.values import (
    Arrival,
    BatchReady,
    BatchWanted,
    ClockTicked,
    Effect,
    Event,
    Granted,
    JudgedResult,
    Lease,
    LedgerLimits,
    Result,
    ResultArrived,
    StepDone,
)

T = TypeVar("T")

TIMEOUT_S = 10.0
HOLD_S = 5.0
MAX_TOKENS = 10

SMALL: dict[str, Any] = {
    "groups_per_step": 1,
    "group_size": 2,
    "bound": 0,
    "steps": 9,
    "lease_timeout_s": TIMEOUT_S,
    "max_hold_s": HOLD_S,
    "max_sample_tokens": MAX_TOKENS,
    "intake_tokens": 1_000,
    "depth": 99.0,
}


def item_of(group: int) -> int:
    return 100 + group


def limits(**changed: Any) -> LedgerLimits:
    return LedgerLimits(**{**SMALL, **changed})


def of_kind(effects: tuple[Effect, ...], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def leases_of(effects: tuple[Effect, ...]) -> list[Lease]:
    return [lease for grant in of_kind(effects, Granted) for lease in grant.leases]


def answer(lease: Lease, policy: Policy, worker_id: str = "a", num_tokens: int = 3, **changed: Any) -> Result:
    """Return the honest result of a lease, with some fields changed."""
    return replace(result_of(lease, worker_id, policy, num_tokens=num_tokens, num_sampled=num_tokens), **changed)


class CheckedLedger:
    """A ledger, its clock, and all effects up to now. Each method tells it one thing after the other."""

    def __init__(
        self,
        *,
        lineage: Lineage | None = None,
        start: int = 0,
        next_group: int = 0,
        open_groups: tuple[int, ...] = (),
        **changed: Any,
    ) -> None:
        lineage = lineage or Lineage(0)
        self.now_s = 0.0
        self.effects: list[Effect] = []
        checkpoint = Checkpoint(Policy(lineage.fork, start), lineage, next_group, open_groups)
        self.machine = checkpoint.ledger(limits(**changed), item_of)

    @property
    def policy(self) -> Policy:
        return self.machine.policy

    def tell(self, event: Event, *, after_s: float = 0.0) -> tuple[Effect, ...]:
        self.now_s += after_s
        effects = self.machine.apply(event, self.now_s)
        self.machine.state.check(self.machine.limits.max_sample_tokens)
        self.effects += effects
        return effects

    def tick(self, after_s: float = 0.0) -> tuple[Effect, ...]:
        return self.tell(ClockTicked(), after_s=after_s)

    def worker(self, worker_id: str, room: int, policy: Policy | None = None) -> list[Lease]:
        """A worker joins, by default with the present weights. Return what it is leased at once."""
        *_, granted = [self.tell(event) for event in joining(worker_id, policy or self.policy, room)]
        return leases_of(granted)

    def deliver(self, *leases: Lease, worker_id: str = "a", **changed: Any) -> tuple[Effect, ...]:
        """Deliver honest results of the present policy, all of which are accepted. Return the effects."""
        effects: list[Effect] = []
        for lease in leases:
            told = self.tell(ResultArrived(answer(lease, self.policy, worker_id, **changed)))
            assert [judged.arrival for judged in of_kind(told, JudgedResult)] == [Arrival.ACCEPTED]
            effects += told
        return tuple(effects)

    def admit(self, result: Result) -> Arrival:
        """Deliver any result, and return what the ledger made of it."""
        (judged,) = of_kind(self.tell(ResultArrived(result)), JudgedResult)
        return judged.arrival

    def train(self, *, for_s: float = 1.0) -> BatchReady:
        """Ask for a batch, which is there at once, and train on it."""
        (batch,) = of_kind(self.tell(BatchWanted()), BatchReady)
        self.tell(StepDone(), after_s=for_s)
        return batch

    def granted(self) -> list[Lease]:
        """Return all leases up to now."""
        return leases_of(tuple(self.effects))
