"""A weight cache without event loop: the machine's disk jobs are performed at once, and nobody's time passes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from periplus.errors import PeriplusError
from periplus.publication import Publication, Trust
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink
from region_agent.weights.derivations import SendDerived
from region_agent.weights.disk.files import WeightFiles
from region_agent.weights.disk.full_state import FullState
from region_agent.weights.disk.weight_folder import WeightFolder
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.jobs import (
    CacheNotice,
    ContentRefused,
    CopyRefused,
    DerivedMade,
    DiskFailed,
    JobFaulted,
    MakeDerived,
    TakeOverFailed,
)
from region_agent.weights.machine import RETRY_S, WeightCacheMachine
from region_agent.weights.reader_routes import RouteRates


class WeightStore:
    """The machine and the folder of one job. `refused` is the last reason why a copy was refused."""

    def __init__(self, folder: WeightFolder, machine: WeightCacheMachine, refused: str) -> None:
        self.folder, self.machine, self.refused = folder, machine, refused
        self.layer = folder.layer
        self.now_s = 0.0

    @classmethod
    def open(cls, folder: Path, trust: Trust, *, chain_versions: int, layer: WeightFiles | None = None) -> Self:
        opened, held, refused = WeightFolder.open(folder, trust, layer)
        return cls(opened, WeightCacheMachine(held, chain_versions=chain_versions), refused)

    @property
    def held(self) -> HeldVersions:
        return self.machine.held

    @property
    def copy(self) -> FullState | None:
        assert (self.folder.copy is None) == (self.held.copy is None)
        return self.folder.copy

    @property
    def chain(self) -> tuple[ChainLink, ...]:
        return self.held.chain

    @property
    def newest(self) -> Policy | None:
        return self.held.newest

    def put(self, publication: Publication) -> None:
        self._hear(self.machine.take(publication, 0))

    def see_fork(self, fork: int) -> None:
        self._hear(self.machine.take(None, fork))

    def settle(self) -> None:
        """Perform jobs until none is left. Raises: the first error of a job, once no job can be done any more."""
        self.now_s += RETRY_S
        errors: list[PeriplusError] = []
        while (step := self.machine.next_step(self.now_s)).job is not None:
            self._hear(step.notices)
            is_derived = isinstance(step.job, MakeDerived)  # nobody reads it here
            outcome = DerivedMade(0, 0.0) if is_derived else self.folder.perform(step.job)
            assert not isinstance(outcome, JobFaulted)
            if isinstance(outcome, ContentRefused | DiskFailed):
                errors.append(outcome.error)
            errors += self._hear(self.machine.finished(step.job, outcome, self.now_s))
        errors += self._hear(step.notices)
        if errors:
            raise errors[0]

    def become(self, publication: Publication) -> None:
        self.machine.take_over(publication)
        self.settle()

    def read_copy(self) -> int:
        """Begin to receive the full state, as a reader without any, and return the number of what is read."""
        answer = self.machine.route(None, None, self.newest, RouteRates())
        assert isinstance(answer, SendDerived)
        self.machine.reader_came(answer.order.number)
        return answer.order.number

    def close(self, *, remove: bool = False) -> None:
        self.folder.close(remove=remove)

    def _hear(self, notices: Sequence[CacheNotice]) -> list[PeriplusError]:
        for notice in notices:
            if isinstance(notice, CopyRefused):
                self.refused = notice.why
        return [notice.error for notice in notices if isinstance(notice, TakeOverFailed)]
