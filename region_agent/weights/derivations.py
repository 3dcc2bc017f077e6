"""Derived publications of one gateway: which are ordered, made and read, which a reader gets, and which are forgotten.

A derived publication (`orders`) is made once for all readers with equal requests, and `derived.DerivedPublication`
streams it. It is *outdated* once copy or chain have moved on. One that is outdated or failed is forgotten when nobody
reads it and it is not being made. One that could not be made is not tried again while it would be the same; one that
cannot be read any more is made anew.
"""

from dataclasses import dataclass
from enum import StrEnum

from periplus.values.policy import Policy
from region_agent.weights import reader_routes
from region_agent.weights.chain import ChainLink
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.jobs import (
    CacheNotice,
    DerivedForgotten,
    DerivedGivenUp,
    DerivedImpossible,
    DerivedMade,
    DerivedNotMade,
    DerivedReady,
    JobFaulted,
    JobOutcome,
    MakeDerived,
)
from region_agent.weights.orders import DerivedKey, DerivedOrder, is_current, key_of, order_of, sources_of
from region_agent.weights.reader_routes import RouteKind, RouteRates, Situation


@dataclass(frozen=True, slots=True)
class FollowLog:
    """The reader is best served by the log's own signed publications, or there is nothing else."""


@dataclass(frozen=True, slots=True)
class SendLinks:
    """The reader is sent these links of the chain."""

    links: tuple[ChainLink, ...]


@dataclass(frozen=True, slots=True)
class SendDerived:
    """The reader is sent this derived publication, while it is being made or after."""

    order: DerivedOrder


RouteAnswer = FollowLog | SendLinks | SendDerived


class DerivedState(StrEnum):
    """Progress of a derived publication. A failed one serves no more readers."""

    ORDERED = "ordered"
    MAKING = "making"
    MADE = "made"
    FAILED = "failed"


@dataclass(slots=True)
class _Derived:
    order: DerivedOrder
    state: DerivedState = DerivedState.ORDERED
    is_given_up: bool = False  # while it is being made
    num_bytes: int = 0
    num_readers: int = 0


class Derivations:
    """All derived publications that somebody reads or may still ask for.

    `num_full_readers` counts who is being sent a full state.
    """

    def __init__(self) -> None:
        self.num_full_readers = 0
        self._by_number: dict[int, _Derived] = {}
        self._impossible: set[DerivedKey] = set()
        self._last_number = 0

    # ---- readers --------------------------------------------------------------------------------------------------

    def route(
        self,
        held: HeldVersions,
        have: Policy | None,
        chain_bytes: int | None,
        newest: Policy | None,
        rates: RouteRates,
    ) -> RouteAnswer | None:
        """Return the cheapest route from `have` to the newest state, or None if there is none here.

        `chain_bytes` is the payload of the log's own signed publications, or None if they do not reach its `newest`.
        """
        for cost in reader_routes.costs(self._situation(held, have, chain_bytes, newest), rates):
            # Cheapest first. A route that cannot be taken now (no links, or what was derived has failed) gives way to
            # the next.
            if cost.kind is RouteKind.CHAIN:
                if chain_bytes is not None:
                    return FollowLog()
                if links := held.links_from(have):
                    return SendLinks(links)
            elif (order := self._shared(held, key_of(held, cost.kind, have))) is not None:
                return SendDerived(order)
        return None

    def reader_came(self, number: int) -> None:
        """Note that a reader begins to receive this publication."""
        derived = self._by_number.get(number)
        if derived is not None:
            derived.num_readers += 1
            self.num_full_readers += derived.order.key.kind is RouteKind.FULL

    def reader_left(self, number: int) -> None:
        """Note that a reader that came receives it no longer."""
        derived = self._by_number.get(number)
        if derived is not None:
            derived.num_readers -= 1
            self.num_full_readers -= derived.order.key.kind is RouteKind.FULL

    # ---- making ---------------------------------------------------------------------------------------------------

    def next_job(self, held: HeldVersions) -> tuple[MakeDerived | None, list[CacheNotice]]:
        """Return the job for the oldest order that can still be made, and give up those before it that cannot."""
        notices: list[CacheNotice] = []
        for number, derived in self._by_number.items():
            if derived.state is DerivedState.ORDERED:
                # Copy and chain may have moved since the order: only now is it decided what it is derived from.
                sources = sources_of(held, derived.order.key)
                if not isinstance(sources, str):
                    derived.state = DerivedState.MAKING
                    return MakeDerived(derived.order, sources), notices
                derived.state = DerivedState.FAILED
                notices.append(DerivedGivenUp(number, sources))
        return None, notices

    def finished(self, order: DerivedOrder, outcome: JobOutcome) -> list[CacheNotice]:
        """Take the outcome of a job of `next_job`."""
        derived = self._by_number[order.number]
        match outcome:
            case DerivedMade(num_bytes):
                derived.num_bytes = num_bytes
                # One that was given up while it was being made gets no more readers.
                derived.state = DerivedState.FAILED if derived.is_given_up else DerivedState.MADE
                return [DerivedReady(order, outcome)]
            case DerivedNotMade(why) | JobFaulted(why):
                # Made again from the same copy and chain it would fail again, so its key is not tried until they move.
                derived.state = DerivedState.FAILED
                self._impossible.add(order.key)
                return [DerivedGivenUp(order.number, why), DerivedImpossible(order, why)]
            case _:
                raise AssertionError(f"{outcome} is no outcome of a derivation")

    # ---- forgetting -----------------------------------------------------------------------------------------------

    def failed(self, number: int) -> None:
        """Note that a publication serves no more readers. Another one may be made for the same key."""
        derived = self._by_number.get(number)
        if derived is not None and derived.state is DerivedState.MAKING:
            derived.is_given_up = True
        elif derived is not None:
            derived.state = DerivedState.FAILED

    def give_up_all(self, why: str) -> list[CacheNotice]:
        """Give up all publications, because the copy that they were made from is refused."""
        for number in self._by_number:
            self.failed(number)
        return [DerivedGivenUp(number, why) for number in self._by_number]

    def forgotten(self, held: HeldVersions) -> list[CacheNotice]:
        """Forget those that are failed or outdated, not read and not being made."""
        gone = [number for number, derived in self._by_number.items() if not _is_kept(held, derived)]
        for number in gone:
            del self._by_number[number]
        # Once copy or chain have moved, the same request leads to another key.
        self._impossible = {key for key in self._impossible if is_current(held, key)}
        return [DerivedForgotten(number) for number in gone]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _shared(self, held: HeldVersions, key: DerivedKey) -> DerivedOrder | None:
        # Readers with equal requests share one publication, also while it is being made.
        for derived in self._by_number.values():
            if derived.order.key == key and derived.state is not DerivedState.FAILED and not derived.is_given_up:
                return derived.order
        order = None if key in self._impossible else order_of(held, key, self._last_number + 1)
        if order is not None:
            self._last_number = order.number
            self._by_number[order.number] = _Derived(order)
        return order

    def _situation(
        self, held: HeldVersions, have: Policy | None, chain_bytes: int | None, newest: Policy | None
    ) -> Situation:
        links = held.links_from(have) or ()
        # The sizes of the deltas on disk, or the sum of those in the log if the chain does not start at the reader's
        # state.
        chain = [link.closing.payload_bytes for link in links] or ([] if chain_bytes is None else [chain_bytes])
        # Nothing is derived from a copy that does not lead to the newest state, since the reader would have to ask
        # again.
        copy = held.copy if held.reaches and held.newest == newest else None
        return Situation(
            chain=chain or None,
            # A fold is computed from the copy on, so through the deltas before the reader's state too.
            num_folded=len(held.chain) if copy is not None and links else None,
            copy_content=None if copy is None else copy.content_bytes,
            is_behind_copy=copy is not None and (have is None or have < copy.policy),
            after_copy=held.chain_bytes,
            made_fold=self._made_bytes(key_of(held, RouteKind.FOLD, have)),
            made_full=self._made_bytes(key_of(held, RouteKind.FULL, None)),
        )

    def _made_bytes(self, key: DerivedKey) -> int | None:
        made = (derived for derived in self._by_number.values() if derived.order.key == key)
        return next((derived.num_bytes for derived in made if derived.state is DerivedState.MADE), None)


def _is_kept(held: HeldVersions, derived: _Derived) -> bool:
    is_useful = derived.state is not DerivedState.FAILED and is_current(held, derived.order.key)
    return is_useful or derived.num_readers > 0 or derived.state is DerivedState.MAKING
