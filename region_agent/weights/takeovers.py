"""Takeovers: publications that the gateway above sent for the copy here alone, and the jobs that apply them.

A *takeover* brings the copy at once to a full state, which replaces it, or along a fold, which continues from the
newest state here; so the copy is first brought there, link by link. Takeovers are done one after another, in the order
in which they came. Each ends with one notice: `TakenOver`, or `TakeOverFailed` with the error for who sent it. A
failure leaves a copy that is proven, or one that upkeep recovers or gives up.
"""

from collections import deque
from dataclasses import replace

from periplus.errors import PeriplusError, StateError, WrongBase
from periplus.publication import Publication, PublicationKind
from region_agent.weights.chain import ChainLink, InMemory
from region_agent.weights.held_transitions import HeldChange, forgetting
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.jobs import (
    AdvanceCopy,
    CacheNotice,
    ContentRefused,
    CopyProven,
    CreateCopy,
    DiskFailed,
    JobFaulted,
    JobOutcome,
    TakenOver,
    TakeOverFailed,
)


class Takeovers:
    """Takeovers that wait or are under way. `is_open`: a job of the first one is being performed."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: deque[InMemory] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def order(self, publication: Publication) -> None:
        """Take a complete publication that is meant for the copy."""
        self._waiting.append(InMemory(publication))

    def next_job(self, held: HeldVersions) -> tuple[CreateCopy | AdvanceCopy | None, list[CacheNotice]]:
        """Return the next job of the first takeover that can be done, and refuse those before it that cannot."""
        notices: list[CacheNotice] = []
        while self._waiting:
            job = _job_for(held, self._waiting[0])
            if not isinstance(job, WrongBase):
                self.is_open = True
                return job, notices
            notices.append(self._failed(job))
        return None, notices

    def finished(
        self, held: HeldVersions, done: ChainLink, outcome: JobOutcome
    ) -> tuple[HeldChange, list[CacheNotice]]:
        """Take the outcome of a job of `next_job` that applied `done`. `held` has it already."""
        self.is_open = False
        link = self._waiting[0]
        match outcome:
            case CopyProven() if done is link:
                self._waiting.popleft()
                ended = TakenOver(link.opening.policy, link.closing.state_digest)
                return _taken_over(held, link), [ended]
            case CopyProven():
                return HeldChange(held), []  # the copy was brought one link further
            case ContentRefused(error, _) | DiskFailed(error, _):
                return HeldChange(held), [self._failed(error)]
            case JobFaulted(why):
                fault = StateError(f"a fault of this gateway stopped {link.opening}: {why}")
                return HeldChange(held), [self._failed(fault)]
            case _:
                raise AssertionError(f"{outcome} is no outcome of a takeover")

    def _failed(self, error: PeriplusError) -> TakeOverFailed:
        self._waiting.popleft()
        return TakeOverFailed(error)


def _job_for(held: HeldVersions, link: InMemory) -> CreateCopy | AdvanceCopy | WrongBase:
    opening = link.opening
    if opening.kind is PublicationKind.ANCHOR:
        return CreateCopy(link)
    if not held.reaches or held.newest != opening.base:
        here = "no version is here" if held.newest is None else f"the newest version here is {held.newest}"
        return WrongBase(f"{opening} starts from {opening.base}, but {here}")
    # A fold continues from the newest state, so each link of the chain is applied before it, one job at a time.
    return AdvanceCopy(held.chain[0] if held.chain else link)


def _taken_over(held: HeldVersions, link: InMemory) -> HeldChange:
    """Keep of the chain what continues from the copy, which is at `link` now."""
    after = held.links_from(link.opening.policy) or ()
    dropped = held.chain[: len(held.chain) - len(after)]
    return HeldChange(replace(held, anchor=None, chain=after), forgetting(dropped))
