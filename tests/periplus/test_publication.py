"""The log is tested against readers that know the rules of weights: a delta fits only the state that it starts from."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.codec.frame import CodecId
from periplus.errors import CorruptFrame, Fenced, WireError, WrongBase
from periplus.policy import Policy
from periplus.publication import (
    Assembler,
    Chunk,
    Closing,
    Cursor,
    NeedsAnchor,
    Opening,
    Publication,
    PublicationKind,
    PublicationLog,
    PublicationRecord,
    Restart,
    Send,
    Wait,
    check_opening,
    publication,
    split,
)

CHUNK_BYTES = 4


def bundle(fork: int = 0) -> Publication:
    return publication(
        job_id="j", kind=PublicationKind.BUNDLE, policy=Policy(fork, 0), codec=CodecId.FILES_ZSTD, payload=b"tokenizer",
        content_bytes=9,
    )  # fmt: skip


def anchor(version: int, fork: int = 0, num_bytes: int = 10) -> Publication:
    policy = Policy(fork, version)
    return publication(
        job_id="j", kind=PublicationKind.ANCHOR, policy=policy, codec=CodecId.STATE_PLANES_ZSTD,
        payload=b"a" * num_bytes, content_bytes=20, state_digest=_digest(policy),
    )  # fmt: skip


def delta(base: int, version: int, fork: int = 0, num_bytes: int = 6) -> Publication:
    policy = Policy(fork, version)
    return publication(
        job_id="j", kind=PublicationKind.DELTA, policy=policy, base=Policy(fork, base), codec=CodecId.STATE_XOR_ZSTD,
        payload=b"d" * num_bytes, content_bytes=20, state_digest=_digest(policy),
    )  # fmt: skip


def _digest(policy: Policy) -> bytes:
    return blake3(str(policy).encode()).digest()


def records(*publications: Publication) -> list[PublicationRecord]:
    return [record for p in publications for record in split(p, CHUNK_BYTES)]


def log_of(*publications: Publication, max_bytes: int = 1000) -> PublicationLog:
    log = PublicationLog(max_bytes=max_bytes)
    for record in records(*publications):
        log.append(record)
    return log


def new_assembler() -> Assembler:
    return Assembler(max_payload_bytes=1000, max_content_bytes=1000)


@dataclass
class Reader:
    """A worker or gateway that follows a log, and checks that what it is sent can be applied."""

    cursor: Cursor
    have: Policy | None = None
    has_bundle: bool = False
    assembler: Assembler = field(default_factory=new_assembler)
    applied: list[str] = field(default_factory=list)

    def step(self, log: PublicationLog) -> bool:
        """Whether there was something to do."""
        match log.next(self.cursor):
            case Send(record, cursor):
                self.cursor = cursor
                done = self.assembler.feed(record)
                if done is not None:
                    self._apply(done)
                return True
            case Restart(has_bundle):
                self.cursor = log.open(None, has_bundle)
                return True
            case _:
                return False

    def follow(self, log: PublicationLog) -> list[str]:
        while self.step(log):
            pass
        return self.applied

    def _apply(self, done: Publication) -> None:
        opening = done.opening
        self.applied.append(f"{opening.kind} {opening.policy}")
        if opening.kind is PublicationKind.BUNDLE:
            assert not self.has_bundle
            self.has_bundle = True
            return
        assert self.has_bundle
        assert self.have is None or opening.policy > self.have, "a reader is never sent what it has"
        if opening.kind is PublicationKind.DELTA:
            assert opening.base == self.have, "a delta fits what the reader has"
        self.have = opening.policy


def reader_of(log: PublicationLog, have: Policy | None = None, has_bundle: bool = False) -> Reader:
    return Reader(log.open(have, has_bundle), have, has_bundle)


# ---- values and the assembler ----------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 70))
def test_what_is_split_is_assembled(payload_bytes: int, chunk_bytes: int) -> None:
    sent = anchor(3, num_bytes=payload_bytes)
    assembler = new_assembler()
    *earlier, last = [assembler.feed(record) for record in split(sent, chunk_bytes)]
    assert earlier == [None] * len(earlier)
    assert last is not None
    assert all(len(r.data) <= chunk_bytes for r in split(sent, chunk_bytes) if isinstance(r, Chunk))
    assert replace(last, opening=replace(last.opening, num_chunks=1)) == sent


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_bytes": 0},
        {"payload_bytes": 101},
        {"num_chunks": 0},
        {"num_chunks": 11},
        {"num_chunks": 7},
        {"content_bytes": 201},
        {"content_bytes": -1},
        {"base": None},
        {"base": Policy(0, 3)},
        {"kind": PublicationKind.ANCHOR},
    ],
)
def test_an_opening_beyond_the_caps_or_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    good = replace(delta(2, 3, num_bytes=10).opening, num_chunks=3)
    check_opening(good, max_payload_bytes=100, max_content_bytes=200)
    with pytest.raises(CorruptFrame):
        check_opening(replace(good, **wrong), max_payload_bytes=100, max_content_bytes=200)


def _departures() -> Iterator[tuple[str, list[PublicationRecord]]]:
    opening, first, second, third, closing = records(anchor(1))
    assert isinstance(first, Chunk)
    assert isinstance(third, Chunk)
    assert isinstance(closing, Closing)
    yield "chunk first", [first]
    yield "closing first", [closing]
    yield "chunk twice", [opening, first, first]
    yield "chunk left out", [opening, first, third]
    yield "closing early", [opening, first, second, closing]
    yield "chunk too many", [opening, first, second, third, Chunk(3, b"")]
    yield "chunk too short", [opening, replace(first, data=b"aaa")]
    yield "chunk too long", [opening, replace(first, data=b"aaaaa")]
    yield "other bytes", [opening, first, second, replace(third, data=b"xx"), closing]
    yield "no state digest", [opening, first, second, third, replace(closing, state_digest=b"")]
    yield "closing twice", [opening, first, second, third, closing, closing]


@pytest.mark.parametrize("sent", [sent for _, sent in _departures()], ids=[what for what, _ in _departures()])
def test_a_departure_from_the_order_is_refused_and_changes_nothing(sent: list[PublicationRecord]) -> None:
    assembler, log = new_assembler(), PublicationLog(max_bytes=1000)
    for record in sent[:-1]:
        assembler.feed(record)
        log.append(record)
    for take in (assembler.feed, log.append):
        with pytest.raises(CorruptFrame):
            take(sent[-1])
        with pytest.raises(CorruptFrame):
            take(sent[-1])


def test_after_a_refusal_the_right_record_still_completes() -> None:
    *earlier, last, closing = records(anchor(1))
    assembler = new_assembler()
    for record in earlier:
        assembler.feed(record)
    with pytest.raises(CorruptFrame):
        assembler.feed(closing)
    assembler.feed(last)
    assert assembler.feed(closing) is not None


def test_an_opening_drops_an_unfinished_publication() -> None:
    assembler = new_assembler()
    for record in records(anchor(1))[:3]:
        assembler.feed(record)
    *_, last = [assembler.feed(record) for record in records(anchor(2))]
    assert last is not None
    assert last.opening.policy == Policy(0, 2)


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_a_newcomer_gets_the_bundle_the_newest_anchor_and_later_deltas() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1), anchor(1), delta(1, 2), delta(2, 4))
    assert reader_of(log).follow(log) == ["bundle 0.0", "anchor 0.1", "delta 0.2", "delta 0.4"]


def test_a_reader_on_the_chain_gets_only_later_deltas() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1), delta(1, 2))
    assert reader_of(log, Policy(0, 1), True).follow(log) == ["delta 0.2"]
    assert reader_of(log, Policy(0, 2), True).follow(log) == []
    assert reader_of(log, Policy(0, 2), False).follow(log) == ["bundle 0.0"]


def test_a_reader_at_or_past_an_anchor_skips_it() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1))
    reader = reader_of(log)
    reader.follow(log)
    for record in records(anchor(1), delta(1, 2)):
        log.append(record)
    assert reader.follow(log)[-2:] == ["delta 0.1", "delta 0.2"]


def test_an_anchor_is_skipped_also_while_it_comes() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1))
    for record in records(anchor(1))[:2]:
        log.append(record)
    assert log.next(log.open(Policy(0, 1), True)) == Wait()
    assert reader_of(log).follow(log) == ["bundle 0.0", "anchor 0.0", "delta 0.1"]


def test_a_reader_that_is_one_version_late_gets_the_delta_though_an_anchor_has_come() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1), anchor(1))
    assert reader_of(log, Policy(0, 0), True).follow(log) == ["delta 0.1"]


def test_an_anchor_that_skips_versions_brings_everybody_forward() -> None:
    log = log_of(bundle(), anchor(0), anchor(5))
    assert log.next(log.open(Policy(0, 0), True)) == Restart(has_bundle=True)
    assert reader_of(log, Policy(0, 0), True).follow(log) == ["anchor 0.5"]


def test_records_are_passed_on_before_their_publication_is_complete() -> None:
    log, sent = PublicationLog(max_bytes=1000), records(anchor(0))
    cursor = log.open(None, True)
    for record in sent:
        assert log.next(cursor) == Wait()
        log.append(record)
        outcome = log.next(cursor)
        assert isinstance(outcome, Send)
        assert outcome.record == record
        cursor = outcome.cursor
    assert cursor == log.open(Policy(0, 0), True)


def test_nothing_is_sent_before_the_bundle() -> None:
    log = log_of(anchor(0))
    assert log.next(log.open(None, False)) == Wait()


def test_a_higher_fork_supersedes_everything_and_the_lower_is_fenced() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1), delta(1, 2))
    late = reader_of(log)
    for _ in range(7):
        late.step(log)
    for record in records(anchor(1, fork=1)):
        log.append(record)
    assert late.follow(log) == ["bundle 0.0", "anchor 1.1"]
    assert reader_of(log, Policy(0, 2), True).follow(log) == ["anchor 1.1"]
    with pytest.raises(Fenced, match="stop publishing"):
        log.append(delta(2, 3).opening)
    assert log.newest == Policy(1, 1)


def test_a_publisher_that_died_midway_is_forgotten() -> None:
    log = log_of(bundle(), anchor(0))
    for record in records(delta(0, 1))[:2]:
        log.append(record)
    reader = reader_of(log)
    reader.follow(log)
    for record in records(delta(0, 2)):
        log.append(record)
    assert reader.follow(log) == ["bundle 0.0", "anchor 0.0", "delta 0.2"]


def test_a_repeat_is_a_no_op() -> None:
    sent = [bundle(), anchor(0), delta(0, 1), delta(1, 2)]
    log = log_of(*sent)
    reader = reader_of(log)
    expected = list(reader.follow(log))
    for record in records(*sent, sent[-1]):
        log.append(record)
    assert reader.follow(log) == expected
    assert reader_of(log).follow(log) == expected
    assert log.newest == Policy(0, 2)


def test_a_delta_that_does_not_continue_is_refused_and_changes_nothing() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1))
    with pytest.raises(WrongBase, match=r"delta 0\.3 is from 0\.2, the log is at 0\.1"):
        log.append(delta(2, 3).opening)
    assert log.newest == Policy(0, 1)
    for record in records(delta(1, 2)):
        log.append(record)


def test_a_log_without_an_anchor_says_so_to_a_newcomer_only() -> None:
    log = log_of(bundle(), delta(5, 6))
    assert log.next(log.open(None, True)) == NeedsAnchor()
    assert log.next(log.open(Policy(0, 4), True)) == NeedsAnchor()
    assert reader_of(log, Policy(0, 5), True).follow(log) == ["delta 0.6"]
    assert log.wants_anchor


def test_an_empty_log_waits_and_wants_nothing() -> None:
    log = PublicationLog(max_bytes=10)
    assert log.next(log.open(None, False)) == Wait()
    assert log.next(log.open(Policy(3, 3), True)) == Wait()
    assert not log.wants_anchor
    assert (log.newest, log.has_bundle) == (None, False)


def test_an_anchor_is_wanted_when_deltas_fill_half_of_the_room_and_no_longer_once_it_comes() -> None:
    log = log_of(bundle(), anchor(0), delta(0, 1), delta(1, 2), max_bytes=24)
    assert not log.wants_anchor
    for record in records(delta(2, 3)):
        log.append(record)
    assert log.wants_anchor
    log.append(records(anchor(3))[0])
    assert not log.wants_anchor


def test_deltas_beyond_the_room_are_dropped_and_the_anchor_with_them() -> None:
    log = log_of(bundle(), anchor(0), *(delta(v, v + 1) for v in range(10)), max_bytes=24)
    assert reader_of(log, Policy(0, 6), True).follow(log) == [f"delta 0.{v}" for v in (7, 8, 9, 10)]
    assert log.next(log.open(Policy(0, 5), True)) == NeedsAnchor()
    assert log.next(log.open(None, True)) == NeedsAnchor()


def test_a_reader_in_the_middle_of_what_is_dropped_gets_its_end_and_then_restarts() -> None:
    log = log_of(bundle(), anchor(0), max_bytes=12)
    slow = reader_of(log, None, True)
    slow.step(log)
    for record in records(*(delta(v, v + 1) for v in range(5)), anchor(5)):
        log.append(record)
    assert slow.follow(log) == ["anchor 0.0", "anchor 0.5"]


def test_a_relay_that_lost_its_anchor_is_filled_up_from_one_while_its_readers_go_on() -> None:
    log = log_of(bundle(), delta(2, 3), delta(3, 4))
    old = reader_of(log, Policy(0, 2), True)
    for record in records(anchor(1), delta(1, 2), delta(2, 3), delta(3, 4), delta(4, 5)):
        log.append(record)
        assert not isinstance(log.next(log.open(None, True)), Wait | Restart)
    assert old.follow(log) == ["delta 0.3", "delta 0.4", "delta 0.5"]
    assert reader_of(log, None, True).follow(log) == ["anchor 0.1", *(f"delta 0.{v}" for v in (2, 3, 4, 5))]


class Publisher:
    """A trainer that follows the rules, dies at times, and honours wants_anchor when it next publishes."""

    def __init__(self) -> None:
        self.policy = Policy(0, 0)
        self.readers_base: Policy | None = None
        self.queue: list[PublicationRecord] = records(bundle())

    def publish(self, log: PublicationLog, action: str, num_bytes: int) -> None:
        if self.queue:
            self._send(log, len(self.queue) if action != "die" else num_bytes % len(self.queue))
            if action != "die":
                return
        if action in ("die", "fork"):
            self.policy = Policy(self.policy.fork + 1, max(self.policy.version - 1, 0))
            self.readers_base = None
            self.queue = records(bundle(self.policy.fork))
        if self.readers_base is None or action == "anchor" or log.wants_anchor:
            version = self.policy.version + (action == "anchor" and num_bytes % 2)
            self.policy = Policy(self.policy.fork, version)
            self.queue += records(anchor(version, self.policy.fork, num_bytes))
        else:
            step = 1 + num_bytes % 2
            before, self.policy = self.policy, Policy(self.policy.fork, self.policy.version + step)
            self.queue += records(delta(before.version, self.policy.version, self.policy.fork, num_bytes))
        self.readers_base = self.policy

    def tick(self, log: PublicationLog, num_records: int) -> None:
        self._send(log, min(num_records, len(self.queue)))

    def _send(self, log: PublicationLog, num_records: int) -> None:
        for record in self.queue[:num_records]:
            log.append(record)
        self.queue = self.queue[num_records:]


class Relay:
    """A remote gateway: a log fed from another log over a connection that breaks."""

    def __init__(self, max_bytes: int) -> None:
        self.log = PublicationLog(max_bytes=max_bytes)
        self.cursor: Cursor | None = None

    def connect(self, home: PublicationLog, forget_state: bool = False) -> None:
        self.cursor = home.open(None if forget_state else self.log.newest, self.log.has_bundle)

    def step(self, home: PublicationLog) -> bool:
        if self.cursor is None:
            self.connect(home)
        assert self.cursor is not None
        match home.next(self.cursor):
            case Send(record, cursor):
                self.log.append(record)
                self.cursor = cursor
                return True
            case Restart(has_bundle):
                self.cursor = home.open(None, has_bundle)
                return True
            case _:
                return False


events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["delta", "delta", "delta", "anchor", "fork", "die"]), st.integers(1, 30)),
        st.tuples(st.just("tick"), st.integers(1, 6)),
        st.tuples(st.just("join home"), st.just(0)),
        st.tuples(st.just("join relay"), st.just(0)),
        st.tuples(st.just("disconnect"), st.just(0)),
        st.tuples(st.just("rejoin"), st.integers(0, 5)),
        st.tuples(st.just("relay"), st.integers(1, 9)),
        st.tuples(st.just("read"), st.integers(1, 39)),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(events, st.integers(20, 120))
def test_whoever_starts_at_any_time_and_follows_ends_with_the_newest_state(
    happened: list[tuple[str, int]], max_bytes: int
) -> None:
    home, relay, publisher = PublicationLog(max_bytes=max_bytes), Relay(max_bytes), Publisher()
    readers: list[tuple[PublicationLog, Reader]] = []
    for what, number in happened:
        match what:
            case "tick":
                publisher.tick(home, number)
            case "join home":
                readers.append((home, reader_of(home)))
            case "join relay":
                readers.append((relay.log, reader_of(relay.log)))
            case "disconnect":
                relay.cursor = None
            case "rejoin":
                for log, reader in readers[number : number + 1]:
                    reader.cursor, reader.assembler = log.open(reader.have, reader.has_bundle), new_assembler()
            case "relay":
                all(relay.step(home) for _ in range(number))
            case "read":
                for i, (log, reader) in enumerate(readers):
                    all(reader.step(log) for _ in range((number * (i + 1)) % 40))
            case _:
                publisher.publish(home, what, number)
    publisher.publish(home, "delta", 7)
    publisher.tick(home, 1000)
    publisher.publish(home, "delta", 7)
    publisher.tick(home, 1000)
    _settle(home, relay, [*readers, (home, reader_of(home)), (relay.log, reader_of(relay.log))])


def _settle(home: PublicationLog, relay: Relay, readers: list[tuple[PublicationLog, Reader]]) -> None:
    for _ in range(2):
        while relay.step(home):
            pass
        for log, reader in readers:
            reader.follow(log)
        if any(log.next(reader.cursor) == NeedsAnchor() for log, reader in readers if log is relay.log):
            relay.connect(home, forget_state=True)
    assert home.newest is not None
    assert relay.log.newest == home.newest
    for log, reader in readers:
        assert reader.have == home.newest, "relay" if log is relay.log else "home"


def _any_record(draw: st.DrawFn) -> PublicationRecord:
    opening = draw(st.sampled_from([bundle(), anchor(0), anchor(1), delta(0, 1), delta(1, 2, num_bytes=9)]))
    return draw(st.sampled_from(records(opening)))


@given(st.lists(st.composite(_any_record)(), max_size=40))
def test_records_in_any_order_are_taken_or_refused_with_a_typed_error(sent: list[PublicationRecord]) -> None:
    log, assembler = PublicationLog(max_bytes=30), new_assembler()
    for record in sent:
        for take in (log.append, assembler.feed):
            with suppress(WireError):
                take(record)
    reader_of(log).follow(log)


def test_an_opening_is_a_value() -> None:
    assert isinstance(anchor(0).opening, Opening)
    assert anchor(0).opening.chunk_bytes == 10
