"""Walks of the machine over a disk that fails: what is served is proven, what counts as saved is, and it recovers."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.errors import CorruptFrame, DiskFull, StateError, WrongBase
from periplus.publication import Publication, PublicationKind
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, InMemory
from region_agent.weights.derivations import FollowLog, SendDerived, SendLinks
from region_agent.weights.held_versions import MOST_CHAINS, HeldVersions
from region_agent.weights.jobs import (
    AdvanceCopy,
    CacheNotice,
    CopyMoved,
    CopyRefused,
    CopyServes,
    CreateCopy,
    DerivedForgotten,
    DerivedReady,
    DiskAccepts,
    DiskFailed,
    DiskJob,
    DiskRefuses,
    ForgetLink,
    MakeDerived,
    ProveCopy,
    RecoverCopy,
    RemoveCopy,
    SaveFork,
    SaveLink,
    TakenOver,
    TakeOverFailed,
)
from region_agent.weights.machine import COPY_AGAIN_S, DOUBT_AGAIN_S, RETRY_S, WeightCacheMachine
from region_agent.weights.reader_routes import RouteKind, RouteRates
from tests.support.cases.examples import examples
from tests.support.gateway.simulated_weights import FakeLink, Fate, SimulatedDisk, anchor, bundle, delta, publication

CHAIN_VERSIONS = 2
SLOW, FAST = RouteRates(link_bytes_per_s=1.0), RouteRates(link_bytes_per_s=1e12)


@dataclass
class Cache:
    """A machine, its disk, the log of publications beside it, and its readers, by a test's hand."""

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    now_s: float = 0.0
    fork: int = 0
    newest: int = -1
    deltas: dict[Policy, Publication] = field(default_factory=dict)
    told: list[CacheNotice] = field(default_factory=list)
    jobs: list[DiskJob] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    open_job: DiskJob | None = None
    num_takeovers: int = 0

    def __post_init__(self) -> None:
        self.machine = WeightCacheMachine(self.disk.restarted(), chain_versions=CHAIN_VERSIONS)

    @property
    def held(self) -> HeldVersions:
        return self.machine.held

    @property
    def log_newest(self) -> Policy | None:
        return None if self.newest < 0 else Policy(self.fork, self.newest)

    def restart(self) -> None:
        self.readers, self.open_job, self.num_takeovers = [], None, 0
        self.__post_init__()

    # ---- what comes in --------------------------------------------------------------------------------------------

    def publish(self, *publications: Publication) -> None:
        for each in publications:
            opening = each.opening
            self.fork = max(self.fork, opening.policy.fork)
            if opening.kind is not PublicationKind.BUNDLE:
                self.newest = opening.policy.version
            if opening.base is not None:
                self.deltas[opening.base] = each
            self.hear(self.machine.take(each, self.fork))

    def hear(self, notices: "list[CacheNotice] | tuple[CacheNotice, ...]") -> None:
        for notice in notices:
            self.told.append(notice)
            match notice:
                case TakenOver(policy):
                    self.num_takeovers -= 1
                    if self.log_newest is None or policy > self.log_newest:
                        self.fork, self.newest = policy.fork, policy.version
                    self.hear(self.machine.refill(self.logged_after(policy)))
                case TakeOverFailed():
                    self.num_takeovers -= 1
                case CopyServes(policy):
                    assert self.disk.copy is not None, "only what is on disk may leave the memory"
                    assert self.disk.next is None
                    assert self.disk.copy.opening.policy == policy
                case DerivedForgotten(number):
                    assert number not in self.readers, "somebody reads it"

    def logged_after(self, policy: Policy) -> list[Publication]:
        found = []
        while (each := self.deltas.get(policy)) is not None and each.opening.policy.fork == self.fork:
            found.append(each)
            policy = each.opening.policy
        return found

    def take_over(self, each: Publication) -> None:
        self.num_takeovers += 1
        self.machine.take_over(each)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        step = self.machine.next_step(self.now_s)
        self.open_job = step.job
        self.hear(step.notices)

    def end(self, fate: Fate = "ok") -> None:
        job, self.open_job = self.open_job, None
        if job is not None:
            self.jobs.append(job)
            is_upkeep = not self.num_takeovers
            outcome = self.disk.perform(job, fate)
            self.hear(self.machine.finished(job, outcome, self.now_s))
            if isinstance(outcome, DiskFailed) and is_upkeep:
                assert len(self.held.chain) <= MOST_CHAINS * CHAIN_VERSIONS, "it is bounded however long the disk fails"

    def settle(self, fate: Fate = "ok") -> list[DiskJob]:
        """Take steps until there are none. Return the jobs."""
        self.end(fate)
        first = len(self.jobs)
        for _ in range(300):
            self.begin()
            if self.open_job is None:
                return self.jobs[first:]
            self.end(fate)
        raise AssertionError("it never ends")

    def read(self, have: Policy | None, rates: RouteRates = SLOW) -> SendDerived | SendLinks | FollowLog | None:
        """Ask for a route, as a reader that the log does not help, and begin to read."""
        answer = self.machine.route(have, None, self.log_newest, rates)
        if isinstance(answer, SendDerived):
            assert self.held.reaches
            assert have is None or answer.order.key.target >= have
            self.machine.reader_came(answer.order.number)
            self.readers.append(answer.order.number)
        elif isinstance(answer, SendLinks):
            at = have
            for link in answer.links:
                assert link.opening.base == at
                assert isinstance(link, InMemory) or link in self.disk.files
                at = link.opening.policy
            assert at == self.held.newest
        return answer

    def leave(self) -> None:
        if self.readers:
            self.hear(self.machine.reader_left(self.readers.pop(0)))

    # ---- invariants -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        held, files = self.held, self.disk.files
        links = [*held.chain, *([] if held.bundle is None else [held.bundle])]
        assert all(isinstance(link, InMemory) or link in files for link in links), "what counts as saved is on disk"
        assert held.saved_fork == self.disk.fork <= held.highest_fork
        at = held.anchor.opening.policy if held.anchor is not None else held.copy.policy if held.copy else None
        for link in held.chain:
            assert at is None or link.opening.base == at, "the chain has no gap"
            at = link.opening.policy
        if held.copy is not None and not held.is_copy_unknown:
            self.check_copy()

    def check_copy(self) -> None:
        assert self.held.copy is not None
        assert self.disk.copy is not None
        assert self.disk.next is None, "a half-written copy does not count"
        assert self.disk.copy.opening.policy == self.held.copy.policy


def filled(num_deltas: int = 2) -> Cache:
    cache = Cache()
    cache.publish(bundle(), anchor(0), *(delta(version, version + 1) for version in range(num_deltas)))
    cache.settle()
    return cache


def is_bundle(link: ChainLink) -> bool:
    return link.opening.kind is PublicationKind.BUNDLE


def damaged(cache: Cache, link: ChainLink) -> None:
    cache.hear(cache.machine.link_damaged(link, "a bit flipped"))


EVENTS = st.one_of(
    st.sampled_from(
        ("delta", "delta", "delta", "anchor", "bundle", "gap", "old", "fork", "lie", "wait", "doubt", "rot", "restart")
    ),
    st.sampled_from(
        ("take full", "take old", "take fold", "take lie", "take stray", "read", "catch up", "leave", "damage")
    ),
    st.sampled_from(("begin", "settle", "settle", "end ok", "end ok", "end full", "end torn", "end fault")),
    st.sampled_from(("settle full", "settle torn", "settle fault")),
)


def happen(cache: Cache, what: str) -> None:
    newest, fork, reached = max(cache.newest, 0), cache.fork, cache.held.newest
    match what.split(" "):
        case ["delta"] if cache.newest >= 0:
            cache.publish(delta(newest, newest + 1, fork))
        case ["lie"] if cache.newest >= 0:
            cache.publish(delta(newest, newest + 1, fork, is_lie=True))
        case ["gap"] if cache.newest >= 0:
            cache.publish(delta(newest + 1, newest + 2, fork))
        case ["anchor"]:
            cache.publish(anchor(cache.newest + 1, fork))
        case ["old"] if cache.newest > 1:
            cache.hear(cache.machine.take(delta(newest - 2, newest - 1, fork), fork))
        case ["bundle"]:
            cache.publish(bundle(fork))
        case ["fork"]:
            cache.publish(bundle(fork + 1), anchor(0, fork + 1))
        case ["take", "full"]:
            cache.take_over(anchor(newest + 1, fork, is_derived=True))
        case ["take", "old"]:
            cache.take_over(anchor(max(0, newest - 2), fork, is_derived=True))
        case ["take", "fold"] if reached is not None:
            policy = Policy(reached.fork, reached.version + 3)
            cache.take_over(publication(PublicationKind.DELTA, policy, reached, is_derived=True))
        case ["take", "stray"]:
            cache.take_over(delta(newest + 7, newest + 8, fork, is_derived=True))
        case ["take", "lie"]:
            cache.take_over(anchor(newest, fork, is_derived=True, is_lie=True))
        case ["read"] if not cache.machine.is_settling:
            cache.read(None)
        case ["catch", "up"] if not cache.machine.is_settling and cache.held.chain:
            cache.read(cache.held.chain[0].opening.base)
        case ["leave"]:
            cache.leave()
        case ["damage"] if cache.held.chain and not isinstance(cache.held.chain[0], InMemory):
            damaged(cache, cache.held.chain[0])
        case ["rot"]:
            cache.disk.is_bad = cache.disk.copy is not None
        case ["doubt"]:
            cache.machine.doubt(cache.now_s)
        case ["wait"]:
            cache.now_s += DOUBT_AGAIN_S
        case ["begin"] if cache.open_job is None:
            cache.begin()
        case ["end", fate]:
            cache.end(fate)  # type: ignore[arg-type]
        case ["settle"]:
            cache.settle()
        case ["settle", fate]:
            cache.settle(fate)  # type: ignore[arg-type]
        case ["restart"]:
            cache.restart()


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2 * MOST_CHAINS), st.lists(EVENTS, max_size=60))
def test_whatever_happens_what_is_served_is_proven_and_it_serves_again_once_the_disk_works(
    num_deltas: int, events: list[str]
) -> None:
    cache = filled(num_deltas)
    for what in events:
        happen(cache, what)
        cache.check()
    # The disk works from now on, all readers leave, and the trainer publishes a full state.
    while cache.readers:
        cache.leave()
    cache.now_s += DOUBT_AGAIN_S
    cache.disk.is_bad = False
    cache.settle()
    cache.publish(anchor(cache.newest + 1, cache.fork))
    cache.settle()
    cache.publish(delta(cache.newest, cache.newest + 1, cache.fork))
    cache.settle()
    cache.check()
    assert cache.held.reaches
    assert cache.held.newest == cache.log_newest == cache.machine.have(cache.log_newest)
    assert not cache.machine.is_settling
    assert cache.num_takeovers == 0, "each takeover has ended once"
    assert all(isinstance(link, FakeLink) for link in cache.held.chain)
    is_clean = not any("fault" in each for each in events)
    left = sorted(cache.disk.files, key=is_bundle)  # a fault in what cleans up leaves files until the next start
    assert not is_clean or left == [link for link in (*cache.held.chain, cache.held.bundle) if link is not None]
    assert cache.machine.retry_in_s(cache.now_s) is None
    answer = cache.read(None)
    assert isinstance(answer, SendDerived)
    cache.settle()
    assert [each.order for each in cache.told if isinstance(each, DerivedReady)][-1] == answer.order


# ---- single decisions ------------------------------------------------------------------------------------------------


def advancing() -> Cache:
    """The copy is about to follow the first link."""
    cache = filled()
    cache.publish(delta(2, 3))
    while not isinstance(cache.open_job, AdvanceCopy):
        cache.end()
        cache.begin()
    return cache


def test_a_version_counts_as_the_copys_only_once_its_job_is_done() -> None:
    cache = advancing()
    assert cache.held.copy is not None
    assert cache.held.copy.policy == Policy(0, 0)
    assert cache.machine.is_settling, "readers wait until it is done"
    cache.settle()
    assert [each for each in cache.told if isinstance(each, CopyMoved)][-1] == CopyMoved(Policy(0, 1), 2, is_new=False)


def test_what_comes_while_a_job_writes_waits_and_counts_as_had() -> None:
    cache = filled()
    cache.publish(delta(2, 3))
    cache.begin()
    assert isinstance(cache.open_job, SaveLink)
    cache.publish(delta(3, 4))
    assert cache.held.newest == Policy(0, 3)
    assert cache.machine.have(Policy(0, 4)) == Policy(0, 4)
    cache.settle()
    assert cache.held.newest == Policy(0, 4)


def test_what_comes_while_a_publication_is_derived_need_not_wait() -> None:
    cache = filled()
    cache.read(None)
    cache.begin()
    assert isinstance(cache.open_job, MakeDerived)
    cache.publish(delta(2, 3))
    assert cache.held.newest == Policy(0, 3)
    assert not cache.machine.is_settling


def test_a_torn_copy_is_recovered_before_anything_else_uses_it() -> None:
    cache = advancing()
    cache.end("torn")
    assert cache.held.is_copy_unknown
    assert cache.read(None) is None, "nothing is derived from it"
    cache.now_s += RETRY_S
    assert isinstance(cache.settle()[0], RecoverCopy)
    assert cache.held.reaches
    assert cache.held.copy is not None
    assert cache.held.copy.policy == Policy(0, 1)


def test_a_corrupt_copy_is_found_by_a_doubt_and_a_full_state_is_wanted() -> None:
    cache = filled()
    order = cache.read(None)
    assert isinstance(order, SendDerived)
    cache.disk.is_bad = True
    cache.machine.doubt(cache.now_s)
    cache.settle()
    assert CopyRefused("a bit flipped") in cache.told
    assert cache.disk.copy is None
    assert cache.read(None) is None
    assert cache.machine.lacks_copy(cache.log_newest, cache.now_s)
    assert not cache.machine.lacks_copy(cache.log_newest, cache.now_s + COPY_AGAIN_S - 1), "it was asked for"
    assert cache.machine.lacks_copy(cache.log_newest, cache.now_s + COPY_AGAIN_S)


def test_a_copy_is_doubted_only_so_often() -> None:
    cache = filled()
    for now_s, num_proofs in ((0.0, 1), (DOUBT_AGAIN_S - 1, 0), (DOUBT_AGAIN_S, 1)):
        cache.machine.doubt(now_s)
        assert [type(job) for job in cache.settle()] == [ProveCopy] * num_proofs


def test_a_full_disk_is_told_once_tried_again_after_a_pause_and_when_something_comes() -> None:
    cache = filled()
    cache.publish(delta(2, 3))
    assert len(cache.settle("full")) == 1
    assert cache.settle("full") == []
    cache.now_s += RETRY_S
    assert cache.machine.retry_in_s(cache.now_s) == 0
    assert len(cache.settle("full")) == 1
    cache.publish(delta(3, 4))
    assert len(cache.settle("full")) == 1
    assert cache.machine.retry_in_s(cache.now_s) == RETRY_S
    assert cache.held.reaches, "it costs nothing yet"
    cache.now_s += RETRY_S
    cache.settle()
    assert [type(each) for each in cache.told if isinstance(each, DiskRefuses | DiskAccepts)] == [
        DiskRefuses,
        DiskAccepts,
    ]


def test_a_disk_that_stays_full_costs_the_copy_but_not_the_newest_links() -> None:
    cache = filled(num_deltas=0)
    for version in range(MOST_CHAINS * CHAIN_VERSIONS + 1):
        assert cache.held.reaches
        cache.publish(delta(version, version + 1))
        cache.settle("full")
    assert cache.held.copy is None
    assert len(cache.held.chain) == CHAIN_VERSIONS
    assert cache.held.newest == cache.log_newest


def test_a_fault_of_ours_abandons_what_is_here_and_is_not_repeated_at_once() -> None:
    cache = filled()
    cache.publish(bundle(1))
    jobs = cache.settle("fault")
    assert all(isinstance(job, ForgetLink | RemoveCopy) for job in jobs), "only what cleans up goes on"
    assert cache.machine.retry_in_s(cache.now_s) == pytest.approx(RETRY_S), "it is tried again though nothing happens"
    cache.now_s += RETRY_S
    assert cache.settle()
    assert cache.machine.retry_in_s(cache.now_s) is None
    assert cache.held.copy is None
    assert cache.held.chain == ()


def test_a_damaged_link_ends_chain_and_copy_but_not_if_it_was_dropped_already() -> None:
    cache = filled()
    first = cache.held.chain[0]
    cache.publish(anchor(5))
    damaged(cache, first)
    cache.settle()
    assert cache.held.newest == Policy(0, 5)
    cache.publish(delta(5, 6))
    cache.settle()
    damaged(cache, cache.held.chain[0])
    assert cache.held.newest is None
    cache.settle()
    assert cache.disk.copy is None


def test_a_delta_from_a_version_that_is_not_here_ends_copy_chain_and_a_waiting_anchor() -> None:
    cache = filled()
    cache.publish(anchor(5), delta(7, 8))
    assert cache.held.anchor is None
    assert not cache.held.has_state
    assert cache.machine.have(Policy(0, 8)) is None


def test_a_full_state_from_above_replaces_the_copy_and_the_chain_goes_on_from_the_log() -> None:
    cache = filled(num_deltas=4)
    assert cache.held.copy is not None
    assert cache.held.copy.policy == Policy(0, 2)
    cache.take_over(anchor(1, is_derived=True))
    cache.begin()
    assert isinstance(cache.open_job, CreateCopy)
    cache.publish(delta(4, 5))
    cache.settle()
    assert cache.held.newest == Policy(0, 5)
    assert TakenOver(Policy(0, 1), b"0.1") in cache.told
    assert not any(isinstance(each, CopyRefused) for each in cache.told)
    assert not any(isinstance(each, CopyMoved) and each.policy == Policy(0, 1) for each in cache.told)


def test_a_copy_that_was_given_up_is_removed_before_the_next_one_is_created() -> None:
    cache = filled()
    cache.take_over(delta(9, 10, is_derived=True))
    cache.publish(delta(7, 8), anchor(9))  # they wait for the takeover, which is refused
    cache.settle()
    cache.check()
    assert cache.held.reaches


def test_nothing_is_derived_from_a_copy_that_a_takeover_left_half_written() -> None:
    cache = filled()
    cache.read(None)
    cache.take_over(delta(2, 6, is_derived=True))
    cache.begin()
    cache.end("torn")
    cache.begin()
    assert isinstance(cache.open_job, RecoverCopy)


def test_what_was_given_up_while_it_was_made_is_made_anew_for_the_next_reader() -> None:
    cache = filled(num_deltas=0)
    first = cache.read(None)
    cache.begin()
    assert isinstance(cache.open_job, MakeDerived)
    cache.publish(delta(5, 6), anchor(0))  # the copy is refused, and the same comes again
    cache.settle()
    second = cache.read(None)
    assert isinstance(first, SendDerived)
    assert isinstance(second, SendDerived)
    assert first.order.key == second.order.key
    assert first.order.number != second.order.number


def test_a_fold_from_above_is_applied_after_the_chain_and_one_from_elsewhere_is_refused() -> None:
    cache = filled()
    cache.take_over(delta(2, 6, is_derived=True))
    cache.take_over(delta(2, 7, is_derived=True))
    jobs = cache.settle()
    assert [job.link.opening.policy.version for job in jobs if isinstance(job, AdvanceCopy)] == [1, 2, 6]
    assert cache.held.newest == Policy(0, 6)
    assert isinstance(cache.told[-2 if isinstance(cache.told[-1], CopyServes) else -1], TakeOverFailed)


@pytest.mark.parametrize(
    ("fate", "is_lie", "error"),
    [
        ("ok", True, CorruptFrame),
        ("full", False, DiskFull),
        ("torn", False, DiskFull),
        ("fault", False, StateError),
    ],
)
def test_a_takeover_that_fails_is_told_to_who_sent_it(fate: Fate, is_lie: bool, error: type[Exception]) -> None:
    cache = filled(num_deltas=0)
    cache.take_over(delta(0, 1, is_derived=True, is_lie=is_lie))
    cache.begin()
    cache.end(fate)
    assert [type(each.error) for each in cache.told if isinstance(each, TakeOverFailed)] == [error]
    cache.settle()
    cache.check()
    assert not cache.machine.is_settling


def test_a_fold_onto_nothing_is_refused_without_a_job() -> None:
    cache = Cache()
    cache.take_over(delta(0, 1, is_derived=True))
    assert cache.settle() == []
    assert [type(each.error) for each in cache.told if isinstance(each, TakeOverFailed)] == [WrongBase]


def test_the_highest_fork_is_saved_before_anything_of_it() -> None:
    cache = filled()
    cache.publish(bundle(3), anchor(0, 3))
    jobs = [job for job in cache.settle() if not isinstance(job, ForgetLink)]
    assert jobs[0] == SaveFork(3)


def test_who_is_on_a_slow_link_gets_one_fold_and_who_is_on_a_fast_one_the_links() -> None:
    cache = filled()
    answer = cache.read(Policy(0, 0), SLOW)
    assert isinstance(answer, SendDerived)
    assert answer.order.key.kind is RouteKind.FOLD
    assert isinstance(cache.read(Policy(0, 0), FAST), SendLinks)
    assert cache.machine.route(Policy(0, 0), 10, cache.log_newest, FAST) == FollowLog()
