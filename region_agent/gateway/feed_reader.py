"""The records that one reader of a publication feed is to be sent, one after another, until the job leaves.

The log's cursor says what comes next. If the reader is more than one version behind, the weight cache chooses the
cheapest route to the newest weights: the log's own signed publications, or a stream that it reads or derives from the
copy on disk. If there is no route, a full state is requested from above, and the reader waits for a change of the feed.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import assert_never

from periplus.errors import StorageError, Unreachable
from periplus.process.telemetry import event
from periplus.publication import Closing, Cursor, Derive, NeedsAnchor, Opening, PublicationRecord, Send, Wait
from periplus.values.policy import Policy
from region_agent.gateway.publication_feed import PublicationFeed
from region_agent.weights.streams import Stream
from region_agent.weights.weight_cache import Along

log = logging.getLogger(__name__)


class FeedReader:
    """The reader. `cursor` comes from `PublicationFeed.open`; `is_remote` tells that it is another region's gateway."""

    def __init__(self, feed: PublicationFeed, cursor: Cursor, reader_id: str, *, is_remote: bool) -> None:
        self._feed = feed
        self._cursor = cursor
        self._reader_id = reader_id
        self._is_remote = is_remote

    @property
    def have(self) -> Policy | None:
        """Weights that the reader has now, counting every publication of which all records were yielded."""
        return self._cursor.have

    async def records(self) -> AsyncGenerator[PublicationRecord]:
        """Yield each record when it is to be sent, until the feed is closed. Whoever stops earlier must close it."""
        feed = self._feed
        while not feed.is_closed:
            # Read the counter first, so that no change is missed between the outcome and the wait for a change.
            seen, outcome = feed.num_changes, feed.log.next(self._cursor)
            match outcome:
                case Send(record, after):
                    self._cursor = after
                    yield record
                case Wait():
                    await feed.changed(seen)
                case NeedsAnchor():
                    feed.request_anchor(f"{self._reader_id} accepts only what the trainer signed", signed=True)
                    await feed.changed(seen)
                case Derive():
                    async with contextlib.aclosing(self._to_newest(outcome)) as records:
                        async for record in records:
                            yield record
                case _:
                    assert_never(outcome)

    async def _to_newest(self, request: Derive) -> AsyncGenerator[PublicationRecord]:
        feed = self._feed
        seen = feed.num_changes
        route = await feed.weight_cache.derive(request.have, request.chain_bytes, is_remote=self._is_remote)
        match route:
            case Along():
                self._cursor = feed.log.along(self._cursor)
            case Stream():
                async with contextlib.aclosing(self._streamed(route)) as records:
                    async for record in records:
                        yield record
            # Nothing leads there now. Wait for a change: an anchor, a finished disk job, or a copy.
            case None:
                if feed.num_changes == seen:  # else there may be a route by now
                    why = f"no route leads from {request.have or 'no weights'} to the newest weights"
                    feed.request_anchor(why, signed=False)
                await feed.changed(seen)
            case _:
                assert_never(route)

    async def _streamed(self, route: Stream) -> AsyncGenerator[PublicationRecord]:
        # Each closing that was sent has brought the reader to its opening's version.
        coming = route.policy
        async with contextlib.aclosing(route.records) as records:
            while True:
                try:
                    record = await anext(records, None)
                except (Unreachable, StorageError) as error:  # deriving failed: go on from what the reader has by now
                    event(log, logging.WARNING, "derived_broken", job=self._feed.job_id, policy=coming, why=error)
                    return
                if record is None:
                    return
                yield record
                if isinstance(record, Opening):
                    coming = record.policy
                elif isinstance(record, Closing):
                    self._cursor = self._feed.log.after(self._cursor, coming)
