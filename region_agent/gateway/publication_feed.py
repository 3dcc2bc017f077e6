"""Publication feed of one job in one gateway: what comes from above, and the waking of the readers below.

    from the trainer           append             -> the log, and from there every reader and the weight cache
    from the gateway above     append_from_above  -> the same, or only the weight cache's copy of the full state
    readers (feed_reader.py)   open, changed, request_anchor

The log (periplus/publication/log.py) keeps signed publications in memory, with a cursor for each reader. The weight
cache (weights/) keeps a copy of the full state on disk, and derives from it what readers need beyond the log.

Two kinds of publications go only into the copy and not to readers: derived ones, and signed ones that repair a copy
that is missing or behind while readers are newer already. If the copy cannot be brought to such a state, the next
subscription to the gateway above asks for signed publications only.

Invariants:

- A refused record changes nothing but the count of refusals.
- At most one request for an anchor (a full state) is open. It ends when the anchor has come, or when the connection up
  is lost.
- `num_changes` grows with every change that may interest a reader. A reader that read it before it looked at the log
  misses no change.
"""

import asyncio
import logging
from collections.abc import Callable

from periplus import clock
from periplus.errors import Fenced, PeriplusError, StorageError, WireError
from periplus.process.telemetry import event
from periplus.publication import (
    Assembler,
    Closing,
    Cursor,
    Opening,
    Publication,
    PublicationKind,
    PublicationLog,
    PublicationRecord,
)
from periplus.values.policy import Policy
from region_agent.weights.chain import MAX_RELAYED_BYTES
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)


class PublicationFeed:
    """The feed. `send_request` is called when a request for an anchor must be sent up; it must not wait."""

    def __init__(self, weight_cache: WeightCache, send_request: Callable[[], None]) -> None:
        self.weight_cache = weight_cache
        self._send_request = send_request
        self._num_changes = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self._num_refused: dict[str, int] = {}
        self._anchor_requested = False
        self._wants_signed = False
        self._coming_kind: PublicationKind | None = None  # kind of the publication whose opening came last
        self._for_copy: Assembler | None = None  # collects a publication that goes only into the copy

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.weight_cache.job_id

    @property
    def log(self) -> PublicationLog:
        """The job's signed publications in memory."""
        return self.weight_cache.log

    @property
    def num_changes(self) -> int:
        """Number of changes so far that may have interested a reader."""
        return self._num_changes

    @property
    def is_closed(self) -> bool:
        """Whether the job has no task here any more, so that readers must leave."""
        return self._is_closed

    @property
    def num_refused(self) -> dict[str, int]:
        """Number of refused records, by the name of the error."""
        return dict(self._num_refused)

    @property
    def anchor_requested(self) -> bool:
        """Whether a requested anchor has not come yet."""
        return self._anchor_requested

    @property
    def wants_signed(self) -> bool:
        """Whether the requested anchor must be one that the trainer signed."""
        return self._wants_signed

    # ---- readers --------------------------------------------------------------------------------------------------

    def open(self, have: Policy | None, has_bundle: bool, *, distrust: bool, is_remote: bool) -> Cursor:
        """Return the cursor of a new reader that has the weights of `have`, or no weights if it is None.

        A reader with `distrust` accepts only what the trainer signed, because a derived publication did not prove true.
        Then the copy here is proved again.
        """
        if distrust:
            self.weight_cache.doubt()
        return self.log.open(have, has_bundle, distrust=distrust, wants_anchor=distrust and is_remote)

    async def changed(self, seen: int) -> None:
        """Wait until `num_changes` differs from `seen`, the value that the caller read before it looked for records."""
        while self._num_changes == seen:
            await self._changed.wait()

    def request_anchor(self, why: str, *, signed: bool) -> None:
        """Request a full state from above, unless a request is open.

        With `signed`, accept only one that the trainer signed.
        """
        self._wants_signed = self._wants_signed or signed
        if not self._anchor_requested:
            self._anchor_requested = True
            event(log, logging.INFO, "anchor_requested", job=self.job_id, why=why, signed=signed)
            self._send_request()

    # ---- what comes in --------------------------------------------------------------------------------------------

    def append(self, record: PublicationRecord) -> None:
        """Append a signed record from above to the log, and wake readers.

        Raises: WireError, Fenced; then nothing has changed.
        """
        try:
            completed = self.log.append(record)
        except (WireError, Fenced) as error:
            self._refuse(error)
            raise
        # The log has admitted the record, so nothing below may refuse it.
        self.weight_cache.take(completed)
        if isinstance(record, Opening):
            self._coming_kind = record.kind
        elif isinstance(record, Closing) and self._coming_kind is PublicationKind.ANCHOR:
            self._anchor_requested = self._wants_signed = False
        self._wake()

    async def append_from_above(self, record: PublicationRecord) -> None:
        """Take a record that the gateway above sends, for the log or for the copy (see the module's docstring).

        Raises: WireError, Fenced, StorageError.
        """
        if isinstance(record, Opening):
            is_for_copy = record.is_derived or self._is_repair(record)
            self._for_copy = (
                Assembler(self.weight_cache.trust, max_content_bytes=MAX_RELAYED_BYTES) if is_for_copy else None
            )
        if self._for_copy is None:
            self.append(record)
            return
        try:
            completed = self._for_copy.feed(record)
            if completed is not None:
                # Forget it before the copy is brought there, which may fail: the next opening begins anew.
                self._for_copy = None
                await self._become(completed)
        except (WireError, Fenced) as error:
            self._refuse(error)
            raise

    def _is_repair(self, opening: Opening) -> bool:
        newest, policy = self.log.newest, opening.policy
        if newest is None or newest.fork != policy.fork:
            return False
        # Readers have `newest`. What is not newer can only help a copy that is missing or behind.
        match opening.kind:
            case PublicationKind.ANCHOR:
                is_needed = self.weight_cache.have is None or self.weight_cache.is_behind or self._anchor_requested
                return policy < newest and is_needed
            case PublicationKind.DELTA:
                return policy <= newest and self.weight_cache.is_behind
            case _:
                return False

    async def _become(self, publication: Publication) -> None:
        opening = publication.opening
        if opening.kind is PublicationKind.DELTA and not opening.is_derived:
            # A signed delta extends the chain behind the readers, until the copy leads to the newest state again.
            self.weight_cache.take(publication)
            return
        try:
            await self.weight_cache.become(publication)
        except (WireError, Fenced, StorageError):
            # What was derived may be wrong, or the copy may be: ask for what the trainer signed.
            self._wants_signed = True
            raise
        self._anchor_requested = False
        self._wake()

    def _refuse(self, error: PeriplusError) -> None:
        name = type(error).__name__
        count = self._num_refused[name] = self._num_refused.get(name, 0) + 1
        event(log, logging.WARNING, "publication_refused", job=self.job_id, error=name, count=count, why=error)

    # ---- what happens around it -----------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wake readers when the weight cache has no work left, and request a full state if it lacks a copy."""
        self._wake()
        if self.weight_cache.lacks_copy(clock.monotonic_s()):
            self.request_anchor("the copy was refused", signed=False)

    def connection_lost(self) -> None:
        """Forget an open request, because the connection up was lost or replaced. Readers repeat it if need be."""
        self._anchor_requested = False
        self._wake()

    def close(self) -> None:
        """Make all readers leave, because the job has no task here any more."""
        self._is_closed = True
        self.weight_cache.stop()
        self._wake()

    def _wake(self) -> None:
        self._num_changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
