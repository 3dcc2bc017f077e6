"""A ledger's driver that is fed with values: workers that say hello, and frames that answer their leases."""

from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from periplus.spool.format import Position
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, StopReason, Trajectory
from periplus.values.transport_keys import FrameKey
from tests.periplus.values.test_trajectory import GOOD
from tests.support.ledger.checked import item_of, limits
from trainer.intake.committed import Committed, kept
from trainer.intake.effects import IntakeEffect, LineWritten
from trainer.intake.frame_retention import Retention
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.messages import HelloReceived
from trainer.ledger.machine import Ledger
from trainer.ledger.values import Granted, Lease, RoomOffered

T = TypeVar("T")

BUNDLE = b"the job's tokenizer and model config"
HOME = "home"
FRAME_BYTES = 10
START = Policy(0, 0)


def driver_of(*, kept_bytes: int = 100, **changed: Any) -> LedgerDriver:
    """Two samples a group and one group a step, but for what is changed."""
    ledger = Ledger(limits(**changed), Lineage(0), START, item_of)
    return LedgerDriver(ledger, Retention(kept_bytes), bundle_digest=BUNDLE, home_region=HOME)


def hello(worker_id: str, region: str = HOME) -> HelloReceived:
    return HelloReceived(worker_id=worker_id, region=region, bundle_digest=BUNDLE, epoch=1)


def join(driver: LedgerDriver, worker_id: str, room: int, region: str = HOME) -> list[Lease]:
    """A worker says hello and offers room; what it is leased."""
    driver.on_message(hello(worker_id, region), 0.0)
    return leases_in(driver.on_message(RoomOffered(worker_id, room), 0.0))


def of(effects: tuple[IntakeEffect, ...], kind: type[T]) -> list[T]:
    """Effects of one kind, or lines of one kind."""
    values = [effect.entry if isinstance(effect, LineWritten) else effect for effect in effects]
    return [value for value in values if isinstance(value, kind)]


def leases_in(effects: tuple[IntakeEffect, ...]) -> list[Lease]:
    return [lease for granted in of(effects, Granted) for lease in granted.leases]


def sampled(lease: Lease, worker_id: str = "a", policy: Policy = START, **changed: Any) -> Trajectory:
    """What an honest worker makes of a lease, but for what is changed."""
    answered = replace(
        GOOD,
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        purpose=lease.purpose,
        policies=(PolicyRun(policy, len(GOOD.completion_ids)),),
        stop_reason=StopReason.EOS,
        worker_id=worker_id,
    )
    return replace(answered, **changed)


class Frames:
    """Commits frames one after the other, as the intake does."""

    def __init__(self) -> None:
        self._sequences = count()

    def commit(self, *trajectories: Trajectory, worker_id: str = "a", region: str = HOME, **changed: Any) -> Committed:
        sequence = next(self._sequences)
        committed = Committed(
            key=FrameKey(worker_id=worker_id, epoch=1, sequence=sequence),
            region=region,
            num_bytes=FRAME_BYTES,
            kept=kept(Position(1, sequence), trajectories),
        )
        return replace(committed, **changed)
