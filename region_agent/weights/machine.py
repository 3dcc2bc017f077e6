"""Decisions of one job's weight cache, as a synchronous machine: events in; disk jobs, notices and answers out.

    take, take_over, refill, doubt, *_damaged, reader_*    what has happened      -> notices, if any
    next_step(now_s)                                       what to do now         -> one disk job or none, and notices
    finished(job, outcome, now_s)                          how the job ended      -> notices
    route, have, is_behind, lacks_copy                     what readers and the gateway above are told

The machine decides which versions are held and written (`held_transitions`), what is derived for which reader
(`derivations`), how the copy follows the gateway above (`takeovers`), when it is proven again, and when a full state is
requested. It has no task, file, log or clock.

Invariants:
- At most one disk job is open: `next_step` is called only after `finished`.
- While a job is open that writes, or a publication for the copy alone is being taken over, what is held does not
  change: publications and damages wait. While a publication is derived they need not wait, because that job has
  everything that it reads.
- Readers are routed only while nothing of this is under way (`is_settling`), by what is on disk or in memory then.
- After an error of the disk, or a fault of ours, writing is tried again after `RETRY_S`, or when another publication
  comes.
- After a takeover the caller gives what the log has after the new copy (`refill`), before anything else is taken.
- Order of jobs: files to be removed, publications for the copy alone, ordered derivations, upkeep.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from periplus.publication import Publication, PublicationKind
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink
from region_agent.weights.derivations import Derivations, RouteAnswer
from region_agent.weights.held_transitions import HeldChange, abandoned, after_job, next_upkeep, shortened, taken
from region_agent.weights.held_versions import HeldVersions
from region_agent.weights.jobs import (
    AdvanceCopy,
    CacheNotice,
    CopyMoved,
    CopyRefused,
    CopyServes,
    CreateCopy,
    DiskAccepts,
    DiskFailed,
    DiskJob,
    DiskRefuses,
    JobFaulted,
    JobOutcome,
    MakeDerived,
    ProveCopy,
    TakenOver,
)
from region_agent.weights.reader_routes import RouteRates
from region_agent.weights.takeovers import Takeovers

RETRY_S = 5.0
"""Seconds between attempts to write to a disk that refused. Room comes from people, or from other jobs' ends. Chosen by
hand."""

COPY_AGAIN_S = 60.0
"""Seconds between requests for a full state after a refusal. Each may cost a full state over the WAN. Chosen by
hand.
"""

DOUBT_AGAIN_S = 60.0
"""Seconds between proofs of a copy that readers distrust. Each proof reads all of it. Chosen by hand."""

_NEVER_S = float("-inf")
"""Time of what has not happened yet."""


@dataclass(frozen=True, slots=True)
class CacheStep:
    """The disk job to be done now, or None until something else happens, and what has changed."""

    job: DiskJob | None
    notices: tuple[CacheNotice, ...]


class WeightCacheMachine:
    """The decisions of one job's weight cache. `held` is what the gateway holds now."""

    def __init__(self, held: HeldVersions, *, chain_versions: int) -> None:
        self.held = held
        self._chain_versions = chain_versions
        self._derivations = Derivations()
        self._takeovers = Takeovers()
        self._open_job: DiskJob | None = None
        self._incoming: deque[Publication | tuple[ChainLink, str]] = deque()  # publications, and damaged links
        self._cleanups: deque[DiskJob] = deque()
        # The copy's version when a notice last said so; whether the disk has refused and not yet taken everything; and
        # the times from which to write again, of the last request for a full state, and of the last ordered proof.
        self._settled_policy = None if held.copy is None else held.copy.policy
        self._is_unsaved = False
        self._retry_s = self._requested_s = self._doubted_s = _NEVER_S
        self._is_doubted = False

    # ---- what the gateway above is told ---------------------------------------------------------------------------

    def have(self, newest: Policy | None) -> Policy | None:
        """Return the version from which a subscription above starts; None if a full state is needed first.

        `newest` is the log's newest version. A missing copy counts as such only if the disk would take one.
        """
        # With a disk that refuses, another full state would not help: readers are served from memory meanwhile.
        if not (self.held.has_state or self._incoming or self._is_unsaved):
            return None
        return self._reached if self.is_behind(newest) else newest

    def is_behind(self, newest: Policy | None) -> bool:
        """Return whether the copy and its chain lead only to an older state than the log's newest."""
        reached = self._reached
        return reached is not None and newest is not None and reached < newest

    def lacks_copy(self, newest: Policy | None, now_s: float) -> bool:
        """Return whether a full state is to be requested from above; at most every `COPY_AGAIN_S` seconds."""
        lacks = newest is not None and self.have(newest) is None and now_s - self._requested_s >= COPY_AGAIN_S
        self._requested_s = now_s if lacks else self._requested_s
        return lacks

    @property
    def _reached(self) -> Policy | None:
        # A publication that waits will be held, so what it leads to counts as reached.
        coming = (each.opening for each in reversed(self._incoming) if isinstance(each, Publication))
        states = (opening for opening in coming if opening.kind is not PublicationKind.BUNDLE)
        last = next(states, None)
        return self.held.newest if last is None else last.policy

    # ---- what happens ---------------------------------------------------------------------------------------------

    def take(self, publication: Publication | None, highest_fork: int) -> list[CacheNotice]:
        """Take a complete, admitted publication, if any, and note the highest fork that was seen."""
        if highest_fork > self.held.highest_fork:
            self.held = replace(self.held, highest_fork=highest_fork)
        if publication is not None:
            self._retry_s = _NEVER_S
            self._incoming.append(publication)
        return self._drained()

    def take_over(self, publication: Publication) -> None:
        """Order that the copy is brought to a publication that the gateway above sent for it alone."""
        self._takeovers.order(publication)

    def refill(self, publications: Iterable[Publication]) -> list[CacheNotice]:
        """Take what the log has after the version that a takeover has reached, before what has waited meanwhile."""
        self._incoming.extendleft(reversed(tuple(publications)))
        return self._drained()

    def doubt(self, now_s: float) -> None:
        """Order another proof of the copy, unless the last was ordered within `DOUBT_AGAIN_S` seconds."""
        if now_s - self._doubted_s >= DOUBT_AGAIN_S:
            self._doubted_s, self._retry_s, self._is_doubted = now_s, _NEVER_S, True

    def link_damaged(self, link: ChainLink, why: str) -> list[CacheNotice]:
        """Note that a link could not be read. If it is still in the chain, chain and copy are abandoned."""
        self._incoming.append((link, why))
        return self._drained()

    def derived_damaged(self, number: int) -> None:
        """Note that a derived publication can no longer be read. Another one may be made."""
        self._derivations.failed(number)

    def reader_came(self, number: int) -> None:
        """Note that a reader begins to receive a derived publication."""
        self._derivations.reader_came(number)

    def reader_left(self, number: int) -> list[CacheNotice]:
        """Note that a reader receives a derived publication no longer."""
        self._derivations.reader_left(number)
        return self._drained()

    # ---- what readers get -----------------------------------------------------------------------------------------

    @property
    def is_settling(self) -> bool:
        """Whether what is held is about to change, so that readers must wait for their route."""
        # A disk that refuses may do so for hours, so readers do not wait until a copy is created or recovered.
        is_waiting = self.held.is_waiting and not self._is_unsaved
        return self._is_writing or is_waiting or bool(self._takeovers or self._incoming)

    def route(
        self, have: Policy | None, chain_bytes: int | None, newest: Policy | None, rates: RouteRates
    ) -> RouteAnswer | None:
        """Return the cheapest route from `have` to the newest state, or None (see `Derivations.route`)."""
        return self._derivations.route(self.held, have, chain_bytes, newest, rates)

    # ---- what is done ---------------------------------------------------------------------------------------------

    def next_step(self, now_s: float) -> CacheStep:
        """Return the disk job to be done now, if any. The caller answers with `finished`."""
        assert self._open_job is None
        job: DiskJob | None = None
        notices = self._drained()
        if not self._cleanups:
            job, refused = self._takeovers.next_job(self.held)
            notices += [*refused, *self._drained()]  # which may leave something to clean up
        if job is None and self._cleanups:
            job = self._cleanups.popleft()
        if job is None:
            job, given_up = self._derivations.next_job(self.held)
            notices += given_up
        if job is None and now_s >= self._retry_s:
            self._retry_s = _NEVER_S
            job = self._next_upkeep()
            notices += self._settled() if job is None else []
        self._open_job = job
        return CacheStep(job, tuple(notices))

    def retry_in_s(self, now_s: float) -> float | None:
        """Return in how many seconds `next_step` is to be called again even if nothing happens; None if never."""
        is_due = self._is_unsaved or self._retry_s != _NEVER_S
        return max(0.0, self._retry_s - now_s) if is_due else None

    def finished(self, job: DiskJob, outcome: JobOutcome, now_s: float) -> list[CacheNotice]:
        """Take the outcome of the open job."""
        assert job is self._open_job
        self._open_job = None
        # A derivation changes nothing that is held.
        if isinstance(job, MakeDerived):
            return self._derivations.finished(job.order, outcome) + self._drained()
        notices = self._changed(after_job(self.held, job, outcome))
        if self._takeovers.is_open and isinstance(job, CreateCopy | AdvanceCopy):
            change, ended = self._takeovers.finished(self.held, job.link, outcome)
            notices += self._changed(change) + ended
            # `TakenOver` says where the copy is now, so `_moved` must not say it again.
            self._settled_policy = self._copy_policy
            if any(isinstance(notice, TakenOver) for notice in ended):
                return notices  # `refill` takes what has waited
        elif isinstance(outcome, DiskFailed):
            notices += self._disk_failed(outcome, now_s)
        elif isinstance(outcome, JobFaulted):
            self._retry_s = now_s + RETRY_S
        return notices + self._drained()

    # ---- inside ---------------------------------------------------------------------------------------------------

    @property
    def _is_writing(self) -> bool:
        return self._open_job is not None and not isinstance(self._open_job, MakeDerived)

    @property
    def _copy_policy(self) -> Policy | None:
        return None if self.held.copy is None else self.held.copy.policy

    def _drained(self) -> list[CacheNotice]:
        """Take what has waited, if what is held may change now, and forget what became useless."""
        notices: list[CacheNotice] = []
        while self._incoming and not (self._is_writing or self._takeovers):
            match self._incoming.popleft():
                case Publication() as publication:
                    notices += self._changed(taken(self.held, publication))
                case link, why:
                    # Nobody needs a damaged link that has left the chain meanwhile.
                    if self.held.holds(link):
                        notices += self._changed(abandoned(self.held, why))
        return notices + self._derivations.forgotten(self.held)

    def _changed(self, change: HeldChange) -> list[CacheNotice]:
        self.held = change.held
        self._cleanups += change.cleanups
        if not change.refused:
            return []
        # What was made from a wrong copy is wrong too, and readers that have begun must not finish it.
        given_up = self._derivations.give_up_all("the copy that it was made from is refused")
        return [CopyRefused(change.refused), *given_up]

    def _disk_failed(self, outcome: DiskFailed, now_s: float) -> list[CacheNotice]:
        # Only the first refusal is told; the attempts after it would say the same.
        notices: list[CacheNotice] = [] if self._is_unsaved else [DiskRefuses(outcome.error)]
        self._is_unsaved, self._retry_s = True, now_s + RETRY_S
        return notices + self._changed(shortened(self.held, chain_versions=self._chain_versions)) + self._moved()

    def _next_upkeep(self) -> DiskJob | None:
        is_doubted, self._is_doubted = self._is_doubted, False
        if is_doubted and self.held.copy is not None and not self.held.is_copy_unknown:
            return ProveCopy()
        is_read = self._derivations.num_full_readers > 0
        return next_upkeep(self.held, chain_versions=self._chain_versions, is_copy_read=is_read)

    def _settled(self) -> list[CacheNotice]:
        """Return what is to be told when nothing is left to write."""
        notices: list[CacheNotice] = [DiskAccepts()] if self._is_unsaved else []
        self._is_unsaved = False
        return notices + self._moved()

    def _moved(self) -> list[CacheNotice]:
        notices: list[CacheNotice] = []
        copy, before, self._settled_policy = self.held.copy, self._settled_policy, self._copy_policy
        if copy is not None and copy.policy != before:
            notices.append(CopyMoved(copy.policy, len(self.held.chain), is_new=before is None))
        if copy is not None and self.held.reaches:
            notices.append(CopyServes(copy.policy))
        return notices
