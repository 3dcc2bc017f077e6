"""The one trainer that a job's home gateway follows, and the fencing of trainers of older forks.

Each resumption of a job is a new fork with a higher number. A trainer claims the slot when its stream opens:

    slot is empty                        it is followed
    followed trainer has a lower fork    it is followed, and the other one is told that it was replaced
    followed trainer has the same fork   it is refused with Conflict
    followed trainer has a higher fork   it is refused with Fenced, a kind of Conflict

A trainer whose connection broke claims the slot again in its own fork. It is refused until the end of its old stream
was noticed here, and then it is followed like a new trainer. So nobody else takes over while a trainer is followed.

Invariants: at most one trainer is followed. A trainer that was replaced cannot release its successor. While a trainer
is followed, publications of a lower fork are refused with Fenced, and those of any other connection than its own with
Denied: they could only repeat what it has signed, and would cut off what it is sending. This module knows no streams:
the caller decides what a new trainer means for the workers.
"""

import asyncio
from dataclasses import dataclass, field

from periplus.errors import Conflict, Denied, Fenced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FollowedTrainer:
    """A trainer that has claimed the slot.

    `peer` is its connection, as gRPC names it. `is_first` is False if the job had another trainer at this gateway
    before. `replaced` is set when a trainer of a newer fork takes over.
    """

    fork: int
    peer: str
    is_first: bool
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


class TrainerSlot:
    """The slot of one job."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._trainer: FollowedTrainer | None = None
        self._had_trainer = False

    @property
    def trainer(self) -> FollowedTrainer | None:
        """The trainer that is followed now, or None."""
        return self._trainer

    def claim(self, fork: int, peer: str) -> FollowedTrainer:
        """Follow a new trainer of this fork, and replace one of an older fork.

        Raises: Conflict if a trainer of the same fork is followed, Fenced if one of a newer fork is; then nothing has
        changed.
        """
        if self._trainer is not None:
            if self._trainer.fork >= fork:
                refusal = Fenced if self._trainer.fork > fork else Conflict
                raise refusal(
                    f"job {self._job_id} already has a trainer of fork {self._trainer.fork} at this gateway; "
                    f"the one of fork {fork} is refused; only a newer fork takes over"
                )
            self._trainer.replaced.set()
        self._trainer = FollowedTrainer(fork=fork, peer=peer, is_first=not self._had_trainer)
        self._had_trainer = True
        return self._trainer

    def release(self, trainer: FollowedTrainer) -> None:
        """Stop following this trainer, which has left. It has no effect if the trainer was replaced."""
        if self._trainer is trainer:
            self._trainer = None

    def check_publisher(self, fork: int, peer: str) -> None:
        """Raise Fenced if a trainer of a newer fork than `fork` is followed, Denied if one on another connection is."""
        if self._trainer is not None and fork < self._trainer.fork:
            raise self._fenced(fork, self._trainer.fork)
        if self._trainer is not None and peer != self._trainer.peer:
            raise Denied(f"only the trainer of job {self._job_id} publishes, on the connection of its own stream")

    async def until_replaced(self, trainer: FollowedTrainer) -> None:
        """Wait until this trainer is replaced, then raise Fenced."""
        await trainer.replaced.wait()
        raise self._fenced(trainer.fork, self._trainer.fork if self._trainer else trainer.fork + 1)

    def _fenced(self, fork: int, by_fork: int) -> Fenced:
        return Fenced(f"a trainer of fork {by_fork} took job {self._job_id} over from fork {fork}; stop")
