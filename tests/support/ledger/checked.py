"""A ledger with a hand on its clock: tell it events, get at its effects. Its books are checked after every event."""

from dataclasses import replace
from typing import Any, TypeVar

from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun
from trainer.ledger.machine import Ledger
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
    PolicyReached,
    Result,
    ResultArrived,
    RoomOffered,
    StepDone,
    WorkerJoined,
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


def of(effects: tuple[Effect, ...], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def leases_of(effects: tuple[Effect, ...]) -> list[Lease]:
    return [lease for grant in of(effects, Granted) for lease in grant.leases]


def answer(lease: Lease, policy: Policy, worker_id: str = "a", num_tokens: int = 3, **changed: Any) -> Result:
    """What an honest worker makes of a lease, but for what is changed."""
    result = Result(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=lease.purpose,
        worker_id=worker_id,
        policies=(PolicyRun(policy, num_tokens),),
        num_tokens=num_tokens,
        reward=0.0,
    )
    return replace(result, **changed)


class Desk:
    """A ledger, its clock, and every effect so far."""

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
        self.ledger = Ledger(
            limits(**changed),
            lineage,
            Policy(lineage.fork, start),
            item_of,
            next_group=next_group,
            open_groups=open_groups,
        )

    @property
    def policy(self) -> Policy:
        return self.ledger.policy

    def tell(self, event: Event, *, after_s: float = 0.0) -> tuple[Effect, ...]:
        self.now_s += after_s
        effects = self.ledger.apply(event, self.now_s)
        self.ledger.state.check(self.ledger.limits.max_sample_tokens)
        self.effects += effects
        return effects

    def tick(self, after_s: float = 0.0) -> tuple[Effect, ...]:
        return self.tell(ClockTicked(), after_s=after_s)

    def worker(self, worker_id: str, room: int, policy: Policy | None = None) -> list[Lease]:
        """Hello, weights and room of a worker; what it is leased."""
        self.tell(WorkerJoined(worker_id))
        self.tell(PolicyReached(worker_id, policy or self.policy))
        return leases_of(self.tell(RoomOffered(worker_id, room)))

    def deliver(self, *leases: Lease, worker_id: str = "a", **changed: Any) -> tuple[Effect, ...]:
        """Honest results at the present policy, all of which are accepted."""
        effects: list[Effect] = []
        for lease in leases:
            told = self.tell(ResultArrived(answer(lease, self.policy, worker_id, **changed)))
            assert [estimate.arrival for estimate in of(told, JudgedResult)] == [Arrival.ACCEPTED]
            effects += told
        return tuple(effects)

    def judge(self, result: Result) -> Arrival:
        (estimate,) = of(self.tell(ResultArrived(result)), JudgedResult)
        return estimate.arrival

    def train(self, *, for_s: float = 1.0) -> BatchReady:
        """A batch is wanted, is there, and is trained on."""
        (batch,) = of(self.tell(BatchWanted()), BatchReady)
        self.tell(StepDone(), after_s=for_s)
        return batch

    def granted(self) -> list[Lease]:
        """Every lease so far."""
        return leases_of(tuple(self.effects))
