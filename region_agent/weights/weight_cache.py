"""The weight cache of one job, as the gateway uses it: an async shell around a machine that decides.

    feed --take, become, doubt--> machine (machine.py) --disk jobs--> executor (executor.py) --> folder (disk/)
    reader --derive--> machine --route--> Along | Stream | None         made by the executor, streamed meanwhile

The shell connects the parts: it gives the machine what comes in, hands its disk jobs to the executor, and performs its
notices in memory: it logs them, drops from the log of publications what the copy has, and tells readers. It decides
nothing itself. A full disk is logged once and tried again; memory serves readers meanwhile. `executor` states the rule
of who may touch what.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from periplus import clock
from periplus.errors import Conflict, CorruptSpool, PeriplusError, Unreachable, WireError
from periplus.process.telemetry import event
from periplus.publication import Assembler, Publication, PublicationLog, Send, Trust
from periplus.values.policy import Policy
from region_agent.weights.chain import MAX_RELAYED_BYTES
from region_agent.weights.derivations import FollowLog, SendDerived, SendLinks
from region_agent.weights.disk.files import WeightFiles
from region_agent.weights.disk.restore import restored_log
from region_agent.weights.disk.weight_folder import WeightFolder
from region_agent.weights.executor import DiskExecutor
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.jobs import (
    CacheNotice,
    CopyServes,
    DerivedForgotten,
    DerivedGivenUp,
    DerivedReady,
    DiskJob,
    JobOutcome,
    MakeDerived,
    TakenOver,
    TakeOverFailed,
)
from region_agent.weights.machine import WeightCacheMachine
from region_agent.weights.notice_log import log_notice
from region_agent.weights.reader_routes import RouteKind, RouteRates
from region_agent.weights.streams import ReaderStreams, Stream

log = logging.getLogger(__name__)

LOCAL = RouteRates(link_bytes_per_s=1e9)
"""Assumed rates to readers in this region."""

REMOTE = RouteRates()
"""Assumed rates to readers in other regions. Measuring links is the coordinator's task, not this gateway's."""

_STOPPING = "this gateway is stopping; ask another"
"""What readers and the gateway above are told at the end."""


@dataclass(frozen=True, slots=True)
class Along:
    """The log's own signed publications are the cheapest route, or the only one."""


class WeightCache:
    """The weight cache of one job in one gateway."""

    def __init__(
        self,
        job_id: str,
        authority_key: bytes,
        folder: WeightFolder,
        machine: WeightCacheMachine,
        publications: PublicationLog,
    ) -> None:
        self.job_id = job_id
        self.authority_key = authority_key
        self.trust = Trust(authority_key, job_id)
        self.log = publications
        self.num_derived = dict.fromkeys(RouteKind, 0)
        self._folder = folder
        self._machine = machine
        self._executor = DiskExecutor(job_id, machine, self._perform, self._on_notices)
        self._streams = ReaderStreams(machine, folder, self._on_notices_and_wake)
        self._takeovers: deque[asyncio.Future[None]] = deque()  # in the machine's order
        self._is_closing = False

    @classmethod
    def open(
        cls,
        job_id: str,
        authority_key: bytes,
        folder: Path,
        *,
        chain_versions: int,
        fork: int = 0,
        layer: WeightFiles | None = None,
    ) -> Self:
        """Open the cache for a job's fork with what an earlier process left, proven.

        Call it in a thread. Raises: Conflict, StorageError.
        """
        trust = Trust(authority_key, job_id)
        opened, held, refused = WeightFolder.open(folder, trust, layer)
        try:
            publications = restored_log(held, trust, fork)
        except (WireError, Conflict, CorruptSpool) as error:
            # Files that are whole one by one may not fit together. Begin with an empty folder, but keep the fence
            # against older forks.
            event(log, logging.ERROR, "weights_refused", job=job_id, why=error)
            opened.close(remove=True)
            highest_fork = held.highest_fork
            opened, _, refused = WeightFolder.open(folder, trust, layer)
            held = HeldVersions(highest_fork=highest_fork)
            publications = restored_log(held, trust, fork)
        if refused:
            event(log, logging.ERROR, "copy_refused", job=job_id, why=refused)
        machine = WeightCacheMachine(held, chain_versions=chain_versions)
        return cls(job_id, authority_key, opened, machine, publications)

    # ---- what the gateway above is told ---------------------------------------------------------------------------

    @property
    def copy_policy(self) -> Policy | None:
        """Version of the proven full state on disk, or None."""
        return None if self._machine.held.copy is None else self._machine.held.copy.policy

    @property
    def have(self) -> Policy | None:
        """Version from which a subscription to the gateway above starts; None if a full state is needed first.

        A missing copy counts as such only if the disk would take one.
        """
        return self._machine.have(self.log.newest)

    @property
    def is_behind(self) -> bool:
        """Whether the copy and its chain lead only to an older state than the newest."""
        return self._machine.is_behind(self.log.newest)

    def lacks_copy(self, now_s: float) -> bool:
        """Return whether a full state is to be requested from above; at most every `machine.COPY_AGAIN_S` seconds."""
        return self._machine.lacks_copy(self.log.newest, now_s)

    # ---- what comes in --------------------------------------------------------------------------------------------

    def take(self, publication: Publication | None) -> None:
        """Take a publication that the log has completed, if any, and note the log's highest fork."""
        if publication is not None or self.log.highest_fork > self._machine.held.highest_fork:
            self._on_notices_and_wake(self._machine.take(publication, self.log.highest_fork))

    def doubt(self) -> None:
        """Schedule another proof of the copy, because a reader's derived publication did not prove true.

        At most every `machine.DOUBT_AGAIN_S` seconds.
        """
        self._machine.doubt(clock.monotonic_s())
        self._executor.wake()

    async def become(self, publication: Publication) -> None:
        """Bring the copy to what the gateway above derived, and continue the log from there.

        It waits for `run`, which goes on with it even if the caller leaves. Raises: CorruptFrame, WrongBase if it does
        not lead to what the trainer signed; StorageError; Unreachable if this gateway stops.
        """
        if self._is_closing:
            raise Unreachable(_STOPPING)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The machine ends takeovers in the order of their orders, so the futures need no names.
        self._takeovers.append(done)
        self._machine.take_over(publication)
        self._executor.wake()
        await done

    async def run(self, on_settled: Callable[[], Awaitable[None]]) -> None:
        """Save and derive until cancelled. A disk job that has begun is finished first."""
        await self._executor.run(on_settled)

    def stop(self) -> None:
        """Stop making derived publications, and tell the readers of unfinished ones and all who wait for a disk job."""
        self._is_closing = True
        self._streams.stop()
        for done in self._takeovers:
            if not done.done():
                done.set_exception(Unreachable(_STOPPING))
        self._executor.stop()

    def close(self, *, job_is_done: bool) -> None:
        """Close the folder; call it in a thread, after `stop` and after `run` has ended.

        With `job_is_done` nothing is left on disk. Raises: StorageError.
        """
        self._streams.remove_files()
        self._folder.close(remove=job_is_done)

    # ---- what readers need ----------------------------------------------------------------------------------------

    async def derive(self, have: Policy | None, chain_bytes: int | None, *, is_remote: bool) -> Along | Stream | None:
        """Return the cheapest route from `have` to the newest state, or None if there is none here.

        `chain_bytes` is the payload of the log's own signed publications, or None if they do not reach. It waits for
        `run` while what is held is being changed.
        """
        # Only the executor's steps end this, so look again after each of them.
        while self._machine.is_settling and not self._is_closing:
            await self._executor.progress()
        if self._is_closing:
            return None
        match self._machine.route(have, chain_bytes, self.log.newest, REMOTE if is_remote else LOCAL):
            case FollowLog():
                return Along()
            case SendLinks(links):
                return self._streams.of_links(links)
            case SendDerived(order):
                return self._streams.of_derived(order)
            case None:
                return None

    # ---- disk jobs and notices ------------------------------------------------------------------------------------

    def _perform(self, job: DiskJob) -> JobOutcome:
        """Do a job. It runs in a thread."""
        return self._streams.make(job) if isinstance(job, MakeDerived) else self._folder.perform(job)

    def _on_notices(self, notices: Iterable[CacheNotice]) -> None:
        for notice in notices:
            log_notice(self.job_id, notice)
            match notice:
                case TakenOver(policy, digest):
                    self._continue_log(policy, digest)
                case TakeOverFailed(error):
                    self._end_takeover(error)
                case CopyServes(policy):
                    self.log.drop_before(policy)
                case DerivedGivenUp() | DerivedForgotten():
                    self._streams.end(notice)
                case DerivedReady(order):
                    self.num_derived[order.key.kind] += 1

    def _on_notices_and_wake(self, notices: Iterable[CacheNotice]) -> None:
        self._on_notices(notices)
        self._executor.wake()

    def _continue_log(self, policy: Policy, digest: bytes) -> None:
        """Continue the log from a version that the copy has reached, and the chain from what the log has after it."""
        # First the log continues from the copy's version. Then the chain takes what the log has beyond it, and the log
        # forgets what the copy has. The caller of `become` hears of it last.
        try:
            self.log.rebase(policy, digest)
        except Conflict as error:
            self._end_takeover(error)
            return
        self._on_notices(self._machine.refill(self._logged_after(self._machine.held.newest)))
        self.log.drop_before(policy)
        self._end_takeover(None)

    def _logged_after(self, policy: Policy | None) -> Iterator[Publication]:
        if policy is None or policy == self.log.newest:
            return
        assembler = Assembler(self.trust, max_content_bytes=MAX_RELAYED_BYTES)
        # As a reader that accepts only what was signed, so the log gives its own deltas and no route to choose.
        cursor = self.log.open(policy, True, distrust=True)
        while isinstance(outcome := self.log.next(cursor), Send):
            cursor = outcome.cursor
            if (publication := assembler.feed(outcome.record)) is not None:
                yield publication

    def _end_takeover(self, error: PeriplusError | None) -> None:
        done = self._takeovers.popleft()
        if done.done():
            return  # whoever waited for it has left
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
