"""Streams of records to the readers of one job: links of the chain, and derived publications while they are made.

The machine chooses a reader's route; the streams read what it chose, from memory or from files. They tell the machine
who reads what, and which files turned out to be damaged. A derived publication is made by the executor (`make`) once
the machine orders it, and its readers receive each part as soon as it is there.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from periplus import clock
from periplus.errors import StorageError, Unreachable
from periplus.publication import DerivedWriter, PublicationRecord
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink
from region_agent.weights.derived import DerivedPublication
from region_agent.weights.disk.weight_folder import WeightFolder
from region_agent.weights.jobs import (
    CacheNotice,
    DerivedForgotten,
    DerivedGivenUp,
    DerivedMade,
    DerivedNotMade,
    MakeDerived,
)
from region_agent.weights.machine import WeightCacheMachine
from region_agent.weights.orders import DerivedOrder
from region_agent.weights.reader_routes import RouteKind


@dataclass(frozen=True, slots=True)
class Stream:
    """Records that lead a reader to `policy`. Reading them may raise Unreachable or StorageError; then ask again."""

    records: AsyncGenerator[PublicationRecord]
    policy: Policy


class ReaderStreams:
    """All streams of one job. `changed` receives the machine's notices, and wakes the executor."""

    def __init__(
        self,
        machine: WeightCacheMachine,
        folder: WeightFolder,
        changed: Callable[[Iterable[CacheNotice]], None],
    ) -> None:
        self._machine = machine
        self._folder = folder
        self._changed = changed
        self._derived: dict[int, DerivedPublication] = {}  # by the number of the order
        self._is_stopping = False

    def of_links(self, links: Sequence[ChainLink]) -> Stream:
        """Return the stream of links of the chain, of which there is at least one."""
        return Stream(self._read_links(links), links[-1].opening.policy)

    def of_derived(self, order: DerivedOrder) -> Stream:
        """Return the stream of a derived publication, which is made if nobody has asked for it before."""
        made = self._derived.get(order.number)
        if made is None:
            writer = DerivedWriter(
                order.attestation,
                kind=order.kind,
                base=order.key.have,
                base_digest=order.base_digest,
                max_chunks=order.max_chunks,
            )
            path = self._folder.derived_path(order.number)
            made = self._derived[order.number] = DerivedPublication(writer, self._folder.layer, path)
            # The machine has noted the order while it chose the route: wake the executor, which makes it.
            self._changed(())
        return Stream(self._read_derived(made, order), made.policy)

    def make(self, job: MakeDerived) -> DerivedMade | DerivedNotMade:
        """Make a derived publication. It runs in a thread. Raises: only what is a fault of ours."""
        made, started_s = self._derived[job.order.number], clock.monotonic_s()
        made.make(self._until_stopping(self._folder.parts(job)))
        if made.failure is not None:
            return DerivedNotMade(str(made.failure))
        return DerivedMade(made.num_bytes, clock.monotonic_s() - started_s)

    def end(self, notice: DerivedGivenUp | DerivedForgotten) -> None:
        """End the readers of a derived publication. One that is forgotten has no readers, and loses its file."""
        made = self._derived.get(notice.number)
        if made is None:
            return
        match notice:
            case DerivedGivenUp(_, why):
                made.give_up(why)
            case DerivedForgotten(number):
                made.give_up("it is outdated")  # whoever was about to read it asks again
                self._derived.pop(number).remove()

    def stop(self) -> None:
        """Stop making derived publications, and tell the readers of unfinished ones."""
        self._is_stopping = True
        for made in self._derived.values():
            if made.closing is None:
                made.give_up("this gateway does not serve the job any more")

    def remove_files(self) -> None:
        """Remove the files of all derived publications."""
        for made in self._derived.values():
            made.remove()

    async def _read_derived(self, made: DerivedPublication, order: DerivedOrder) -> AsyncGenerator[PublicationRecord]:
        self._machine.reader_came(order.number)
        try:
            try:
                async for record in made.records():
                    yield record
            except StorageError:
                self._machine.derived_damaged(order.number)
                raise
            have = made.policy if order.key.kind is RouteKind.FULL else None
            # Send the chain right after the copy, because otherwise the copy might advance past the reader's state.
            while have is not None and (links := self._machine.held.links_from(have)):
                async with contextlib.aclosing(self._read_links(links)) as records:
                    async for record in records:
                        yield record
                have = links[-1].opening.policy
        finally:
            self._changed(self._machine.reader_left(order.number))  # the copy may advance again

    async def _read_links(self, links: Sequence[ChainLink]) -> AsyncGenerator[PublicationRecord]:
        for link in links:
            # Read in threads, one record at a time: the disk may be slow, and so may the reader.
            records = link.records()
            try:
                while (record := await asyncio.to_thread(next, records, None)) is not None:
                    yield record
            except StorageError as error:
                # A link that is no longer in the chain was dropped, and another route exists.
                self._changed(self._machine.link_damaged(link, str(error)))
                raise

    def _until_stopping(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            if self._is_stopping:
                raise Unreachable("this gateway is stopping; ask another")
            yield part
