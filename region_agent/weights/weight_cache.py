"""The weight cache of one job: an async shell that saves what the log completes and derives what readers need.

    hub --take--> [queue] --put, settle in a thread--> store --> log.drop_before(copy)
    hub --derive--> route (routes.py) --> Along | Stream | None        made in `run`, streamed to its readers meanwhile

Disk work runs in threads, one job at a time. There are two locks: whoever reads the store holds the store lock, whoever
works on the disk holds the disk lock, and whoever changes the store holds both. So readers learn their route while
something is being made for others. A full disk is logged once and tried again; memory serves readers meanwhile. While
readers receive the full copy and the chain after it, the copy is not advanced, so that the chain continues from it. A
link of the chain that is damaged on disk invalidates chain and copy; another full state is then requested.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from periplus import clock
from periplus.errors import Conflict, CorruptSpool, DiskFull, StorageError, Unreachable, WireError, explained_error
from periplus.process.telemetry import event
from periplus.publication import (
    Assembler,
    DerivedWriter,
    Publication,
    PublicationKind,
    PublicationLog,
    PublicationRecord,
    Send,
    Trust,
)
from periplus.values.policy import Policy
from region_agent.weights import routes
from region_agent.weights.chain import MAX_RELAYED_BYTES, ChainLink, attestation_of
from region_agent.weights.changes import fold, full
from region_agent.weights.derived import DerivedPublication
from region_agent.weights.disk.files import WeightFiles
from region_agent.weights.disk.restore import restored_log
from region_agent.weights.disk.weight_store import WeightStore
from region_agent.weights.routes import RouteKind, RouteRates, Situation

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Seconds between attempts to write to a disk that refused. Room comes from people, or from other jobs' ends. Chosen by
hand."""

COPY_AGAIN_S = 60.0
"""Seconds between requests for a full state after a refusal. Each may cost a full state over the WAN. Chosen by
hand.
"""

DOUBT_AGAIN_S = 60.0
"""Seconds between proofs of a copy that readers distrust. Each proof reads all of it. Chosen by hand."""

LOCAL = RouteRates(link_bytes_per_s=1e9)
"""Assumed rates to readers in this region."""
REMOTE = RouteRates()
"""Assumed rates to readers in other regions. Measuring links is the coordinator's task, not this gateway's."""


@dataclass(frozen=True, slots=True)
class Along:
    """The log's own signed publications are the cheapest route, or the only one."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Records that lead a reader to `policy`. Reading them may raise Unreachable or StorageError; then ask again."""

    records: AsyncGenerator[PublicationRecord]
    policy: Policy


class WeightCache:
    """The weight cache of one job in one gateway."""

    def __init__(self, job_id: str, authority_key: bytes, store: WeightStore, publications: PublicationLog) -> None:
        self.job_id = job_id
        self.authority_key = authority_key
        self.trust = Trust(authority_key, job_id)
        self.log = publications
        self.num_derived = dict.fromkeys(RouteKind, 0)
        self._store = store
        self._store_lock = asyncio.Lock()  # taken before the disk lock if both are held
        self._disk_lock = asyncio.Lock()
        self._work = asyncio.Event()
        self._incoming: deque[Publication] = deque()
        self._made: dict[tuple[RouteKind, Policy | None, Policy], DerivedPublication] = {}
        self._orders: deque[tuple[DerivedPublication, tuple[RouteKind, Policy | None, Policy]]] = deque()
        self._num_full_readers = 0
        self._failed: set[tuple[RouteKind, Policy | None, Policy]] = set()
        self._making: DerivedPublication | None = None
        self._damaged: tuple[ChainLink, str] | None = None  # a link of the chain, found by its reader, and why
        self._why_unsaved = ""
        self._asked_s = -COPY_AGAIN_S
        self._doubted_s = -DOUBT_AGAIN_S
        self._is_doubted = False
        self._is_closing = False

    @classmethod
    def open(
        cls, job_id: str, authority_key: bytes, folder: Path, *, chain_versions: int, layer: WeightFiles | None = None
    ) -> Self:
        """Open the cache with what an earlier process left, proven.

        Call it in a thread. Raises: Conflict, StorageError.
        """
        trust = Trust(authority_key, job_id)
        store = WeightStore.open(folder, trust, chain_versions=chain_versions, layer=layer)
        try:
            publications = restored_log(store, trust)
        except (WireError, Conflict, CorruptSpool) as error:
            event(log, logging.ERROR, "weights_refused", job=job_id, why=error)
            highest_fork = store.highest_fork
            store.close(remove=True)
            store = WeightStore.open(folder, trust, chain_versions=chain_versions, layer=layer)
            store.see_fork(highest_fork)
            publications = restored_log(store, trust)
        weight_cache = cls(job_id, authority_key, store, publications)
        weight_cache._say_refused()
        return weight_cache

    @property
    def copy_policy(self) -> Policy | None:
        """Version of the proven full state on disk, or None."""
        return None if self._store.copy is None else self._store.copy.policy

    @property
    def have(self) -> Policy | None:
        """Version from which a subscription to the gateway above starts; None if a full state is needed first.

        A missing copy counts as such only if the disk would take one.
        """
        if not (self._store.has_state or self._incoming or self._why_unsaved):
            return None
        return self._reached if self.is_behind else self.log.newest

    @property
    def is_behind(self) -> bool:
        """Whether the copy and its chain lead only to an older state than the newest."""
        reached = self._reached
        return reached is not None and self.log.newest is not None and reached < self.log.newest

    @property
    def _reached(self) -> Policy | None:
        states = (each.opening for each in reversed(self._incoming) if each.opening.kind is not PublicationKind.BUNDLE)
        last = next(states, None)
        return self._store.newest if last is None else last.policy

    def lacks_copy(self, now_s: float) -> bool:
        """Return whether a full state is to be requested from above; at most every `COPY_AGAIN_S` seconds."""
        lacks = self.log.newest is not None and self.have is None and now_s - self._asked_s >= COPY_AGAIN_S
        self._asked_s = now_s if lacks else self._asked_s
        return lacks

    # ---- what comes in --------------------------------------------------------------------------------------------

    def take(self, publication: Publication | None) -> None:
        """Queue a publication that the log has completed, if any, and note the log's highest fork."""
        if publication is not None:
            self._incoming.append(publication)
        if publication is not None or self.log.highest_fork > self._store.highest_fork:
            self._work.set()

    def doubt(self) -> None:
        """Schedule another proof of the copy, because a reader's derived publication did not prove true.

        At most every `DOUBT_AGAIN_S` seconds.
        """
        if clock.monotonic_s() - self._doubted_s >= DOUBT_AGAIN_S:
            self._doubted_s = clock.monotonic_s()
            self._is_doubted = True
            self._work.set()

    async def become(self, publication: Publication) -> None:
        """Bring the copy to what the gateway above derived, and continue the log from there.

        Raises: CorruptFrame, WrongBase if it does not lead to what the trainer signed; StorageError.
        """
        taking = asyncio.ensure_future(self._take_over(publication))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait({taking})  # finish first: store and log must agree
            raise

    async def _take_over(self, publication: Publication) -> None:
        async with self._store_lock, self._disk_lock:
            self._drain()
            try:
                await self._in_thread(lambda: self._store.become(publication))
            finally:
                self._say_refused()
            policy, digest = publication.opening.policy, publication.closing.state_digest
            event(log, logging.INFO, "copy_created", job=self.job_id, policy=policy)
            self.log.rebase(policy, digest)
            self._refill()
            self.log.drop_before(policy)
        self._work.set()

    async def run(self, on_settled: Callable[[], Awaitable[None]]) -> None:
        """Save and derive until cancelled. A disk job that has begun is finished first."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._why_unsaved else None):
                    await self._work.wait()
            self._work.clear()
            while self._orders:
                async with self._disk_lock:
                    await self._make(*self._orders.popleft())
            async with self._store_lock, self._disk_lock:
                self._drain()
                await self._settle()
            await on_settled()

    def stop(self) -> None:
        """Stop making derived publications, and tell the readers of unfinished ones."""
        self._is_closing = True
        for made in self._made.values():
            if made.closing is None:
                made.give_up("this gateway does not serve the job any more")

    def close(self, *, job_is_done: bool) -> None:
        """Close the store; call it in a thread, after `stop` and after `run` has ended.

        With `job_is_done` nothing is left on disk. Raises: StorageError.
        """
        for made in self._made.values():
            made.remove()
        self._store.close(remove=job_is_done)

    # ---- what readers need ----------------------------------------------------------------------------------------

    async def derive(self, have: Policy | None, chain_bytes: int | None, *, is_remote: bool) -> Along | Stream | None:
        """Return the cheapest route from `have` to the newest state, or None if there is none here.

        `chain_bytes` is the payload of the log's own signed publications, or None if they do not reach.
        """
        async with self._store_lock:
            if self._is_closing:
                return None
            # What has arrived must be in the store before it can be weighed; a damaged chain is abandoned first.
            is_waiting = self._store.is_waiting and not self._why_unsaved
            if self._incoming or is_waiting or self._damaged is not None:
                async with self._disk_lock:
                    self._drain()
                    if self._damaged is not None or (self._store.is_waiting and not self._why_unsaved):
                        await self._settle()
            for each in routes.costs(self._situation(have, chain_bytes), REMOTE if is_remote else LOCAL):
                if each.kind is RouteKind.CHAIN and chain_bytes is not None:
                    return Along()
                links = self._store.links_from(have)
                if each.kind is RouteKind.CHAIN and links:
                    return Stream(self._signed(links), links[-1].opening.policy)
                made = None if each.kind is RouteKind.CHAIN else self._ordered(each.kind, have)
                if made is not None:
                    return Stream(self._read(made, self._key(each.kind, have)), made.policy)
        return None

    def _situation(self, have: Policy | None, chain_bytes: int | None) -> Situation:
        store = self._store
        links = store.links_from(have) or []
        chain = [link.closing.payload_bytes for link in links] or ([] if chain_bytes is None else [chain_bytes])
        copy = store.copy if store.reaches and store.newest == self.log.newest else None
        is_older = copy is not None and (have is None or have < copy.policy)
        return Situation(
            chain=chain or None,
            num_folded=len(store.chain) if copy is not None and links else None,
            copy_content=None if copy is None else copy.layout.content_bytes,
            is_behind_copy=is_older,
            after_copy=store.chain_bytes,
            made_fold=self._made_bytes(RouteKind.FOLD, have),
            made_full=self._made_bytes(RouteKind.FULL, None),
        )

    def _made_bytes(self, kind: RouteKind, have: Policy | None) -> int | None:
        made = self._made.get(self._key(kind, have))
        return made.num_bytes if made is not None and made.closing is not None else None

    def _key(self, kind: RouteKind, have: Policy | None) -> tuple[RouteKind, Policy | None, Policy]:
        """Return the key of a derived publication: route, start (of a fold) and target.

        Equal requests share one publication.
        """
        target = (
            self._store.copy.policy if kind is RouteKind.FULL and self._store.copy is not None else self._store.newest
        )
        return kind, have if kind is RouteKind.FOLD else None, target or Policy(0, 0)

    def _ordered(self, kind: RouteKind, have: Policy | None) -> DerivedPublication | None:
        """Return the derived publication for this route, ordering it if nobody has. None if it cannot be made."""
        key, copy = self._key(kind, have), self._store.copy
        made = self._made.get(key)
        if made is not None and made.failure is None:
            return made
        if copy is None or key in self._failed:
            return None
        if kind is RouteKind.FULL:
            writer = DerivedWriter(
                copy.attestation, kind=PublicationKind.ANCHOR, max_chunks=1 + len(copy.placement.spans)
            )
        else:
            links = self._store.links_from(have) or []
            writer = DerivedWriter(
                attestation_of(links[-1]),
                kind=PublicationKind.DELTA,
                base=have,
                base_digest=links[0].opening.base_digest,
                max_chunks=links[-1].closing.num_chunks,
            )
        self._forget_made()
        made = self._made[key] = DerivedPublication(writer, self._store.layer, self._store.new_path("derived"))
        self._orders.append((made, key))
        self._work.set()
        return made

    async def _make(self, made: DerivedPublication, key: tuple[RouteKind, Policy | None, Policy]) -> None:
        kind, have, target = key
        copy = self._store.copy
        if self._made.get(key) is not made:
            return  # no reader waits for it any more
        if copy is None or not copy.usable or (kind is RouteKind.FULL and copy.policy != target):
            made.give_up("the copy has moved on")
            return
        if kind is RouteKind.FULL:
            parts = full(copy)
        else:
            links = [link for link in self._store.chain if link.opening.policy <= target]
            if have is None or self._store.links_from(have) is None or not links or have < copy.policy:
                made.give_up("the chain has moved on")
                return
            parts = fold(copy, links, have)
        started_s = clock.monotonic_s()
        self._making = made
        try:
            await self._in_thread(lambda: made.make(self._until_closing(parts)))
        except Exception as error:  # a fault of ours must not end the gateway's other jobs
            log.exception("weights_failed", extra={"fields": {"job": self.job_id}})
            made.give_up(explained_error(error))
        finally:
            self._making = None
        if made.failure is not None:
            self._failed.add(key)
            event(log, logging.ERROR, "weights_not_derived", job=self.job_id, policy=target, why=made.failure)
            return
        self.num_derived[kind] += 1
        event(
            log,
            logging.INFO,
            "weights_derived",
            job=self.job_id,
            kind=made.opening.kind.value,
            policy=target,
            have=have or "none",
            num_bytes=made.num_bytes,
            make_s=round(clock.monotonic_s() - started_s, 3),
        )

    async def _read(
        self, made: DerivedPublication, key: tuple[RouteKind, Policy | None, Policy]
    ) -> AsyncGenerator[PublicationRecord]:
        is_full = key[0] is RouteKind.FULL
        made.num_readers += 1
        self._num_full_readers += is_full
        try:
            async for record in made.records():
                yield record
            have = made.policy if is_full else None
            # Send the chain right after the copy, because otherwise the copy might advance past the reader's state.
            while have is not None and (links := await self._links_from(have)):
                async with contextlib.aclosing(self._signed(links)) as records:
                    async for record in records:
                        yield record
                have = links[-1].opening.policy
        finally:
            made.num_readers -= 1
            self._num_full_readers -= is_full
            if not made.num_readers and self._made.get(key) is not made:
                made.remove()
            self._work.set()  # the copy may advance again

    async def _links_from(self, have: Policy) -> Sequence[ChainLink]:
        async with self._store_lock:
            return self._store.links_from(have) or ()

    async def _signed(self, links: Sequence[ChainLink]) -> AsyncGenerator[PublicationRecord]:
        for link in links:
            records = link.records()
            try:
                while (record := await asyncio.to_thread(next, records, None)) is not None:
                    yield record
            except StorageError as error:
                # A link that is no longer in the chain was dropped, and another route exists.
                if any(each is link for each in self._store.chain):
                    self._damaged = link, str(error)
                    self._work.set()
                raise

    def _forget_made(self) -> None:
        """Drop derived publications that no reader uses and that failed or lead to an old target."""
        for key, made in list(self._made.items()):
            is_current = made.failure is None and key == self._key(key[0], key[1])
            if not is_current and not made.num_readers and made is not self._making:
                self._made.pop(key).remove()
        self._failed = {key for key in self._failed if key == self._key(key[0], key[1])}

    def _until_closing(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            if self._is_closing:
                raise Unreachable("this gateway is stopping; ask another")
            yield part

    # ---- the disk -------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        while self._incoming:
            self._store.put(self._incoming.popleft())
        self._store.see_fork(self.log.highest_fork)

    def _refill(self) -> None:
        """Give the store what the log has after a state that is older than the log's newest."""
        if self._store.newest == self.log.newest or self._store.newest is None:
            return
        assembler = Assembler(self.trust, max_content_bytes=MAX_RELAYED_BYTES)
        cursor = self.log.open(self._store.newest, True, distrust=True)
        while isinstance(outcome := self.log.next(cursor), Send):
            cursor = outcome.cursor
            if (publication := assembler.feed(outcome.record)) is not None:
                self._store.put(publication)

    async def _settle(self) -> None:
        """Bring the store to disk and log what changed. Errors of the disk are kept for the next attempt."""
        before = self._store.copy.policy if self._store.copy is not None else None
        hold = self._num_full_readers > 0
        try:
            damaged, self._damaged = self._damaged, None
            if damaged is not None and any(each is damaged[0] for each in self._store.chain):
                self._store.abandon(damaged[1])
            if self._is_doubted:
                self._is_doubted = False
                await self._in_thread(self._store.doubt)
            await self._in_thread(lambda: self._store.settle(hold=hold))
            if self._why_unsaved:
                event(log, logging.INFO, "weights_saved", job=self.job_id)
            self._why_unsaved = ""
        except StorageError as error:
            if not self._why_unsaved:
                level = logging.WARNING if isinstance(error, DiskFull) else logging.ERROR
                event(log, level, "weights_unsaved", job=self.job_id, why=error)
            self._why_unsaved = str(error)
        except WireError:
            pass  # `_say_refused` logs it
        except Exception as error:  # a fault of ours must not end the gateway's other jobs
            log.exception("weights_failed", extra={"fields": {"job": self.job_id}})
            self._store.abandon(explained_error(error))
        self._say_refused()
        copy = self._store.copy
        if copy is not None and copy.policy != before:
            name = "copy_created" if before is None else "copy_advanced"
            event(log, logging.INFO, name, job=self.job_id, policy=copy.policy, chain=len(self._store.chain))
            self._forget_made()
        if copy is not None and self._store.reaches:
            self.log.drop_before(copy.policy)

    def _say_refused(self) -> None:
        if self._store.refused:
            event(log, logging.ERROR, "copy_refused", job=self.job_id, why=self._store.refused)
            self._store.refused = ""
            for made in self._made.values():
                made.give_up("the copy that it was made from is refused")
            self._forget_made()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise
