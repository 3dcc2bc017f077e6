"""What a feed takes from above, for whom, and what it asks for when disk and memory do not agree."""

import asyncio
from functools import cache

import pytest

from periplus.errors import CorruptFrame, Fenced
from periplus.publication import Publication, PublicationRecord
from periplus.values.policy import Policy
from region_agent.gateway.publication_feed import PublicationFeed
from region_agent.weights.weight_cache import WeightCache
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.loopback import played, saving, weight_cache
from tests.support.publication.versions import Versions, small_states


@cache
def made() -> Versions:
    return Versions(small_states(6, num_elements=2_000))


class Asked:
    """A feed, and how often it asked the gateway above for a full state."""

    def __init__(self, weights: WeightCache | None = None) -> None:
        self.num_requests = 0
        self.feed = PublicationFeed(weights or weight_cache(), self._count)

    def _count(self) -> None:
        self.num_requests += 1


def records(*publications: Publication) -> list[PublicationRecord]:
    return [record for publication in publications for record in publication.records()]


def append(feed: PublicationFeed, *publications: Publication) -> None:
    for record in records(*publications):
        feed.append(record)


async def from_above(feed: PublicationFeed, *publications: Publication) -> None:
    async with saving(feed):
        for record in records(*publications):
            await feed.append_from_above(record)


async def settle(weights: WeightCache) -> None:
    """Let the weight cache do what it has to, once."""
    is_settled = asyncio.Event()

    async def on_settled() -> None:
        is_settled.set()

    running = asyncio.create_task(weights.run(on_settled))
    await is_settled.wait()
    running.cancel()
    await asyncio.wait({running})


@played
async def test_each_record_wakes_readers_and_one_that_looked_before_does_not_wait() -> None:
    feed = Asked().feed
    seen = feed.num_changes
    waiting = asyncio.create_task(feed.changed(seen))
    await asyncio.sleep(0)
    assert not waiting.done()
    first, second, *_ = records(made().bundle())
    feed.append(first)
    await waiting
    seen = feed.num_changes
    feed.append(second)
    await feed.changed(seen)
    assert feed.num_changes == seen + 1


def test_a_refused_record_is_counted_by_its_error_and_wakes_nobody() -> None:
    feed = Asked().feed
    append(feed, made().bundle(), made().anchor(3))
    before = feed.num_changes
    for _ in range(2):
        with pytest.raises(Fenced):
            feed.append(made().anchor(1).opening)
    with pytest.raises(CorruptFrame):
        feed.append(made().derived_anchor(4).opening)
    assert feed.num_refused == {"Fenced": 2, "CorruptFrame": 1}
    assert feed.num_changes == before
    assert feed.log.newest == made().policy(3)


def test_one_anchor_is_requested_at_a_time_and_the_next_one_when_it_has_come() -> None:
    asked = Asked()
    append(asked.feed, made().bundle(), made().anchor(0))
    asked.feed.request_anchor("a reader has no route", signed=False)
    asked.feed.request_anchor("another reader", signed=False)
    append(asked.feed, *made().chain(0, 1))
    assert (asked.num_requests, asked.feed.anchor_requested) == (1, True), "a delta is no anchor"
    append(asked.feed, made().anchor(2))
    assert not asked.feed.anchor_requested
    asked.feed.request_anchor("a later reader", signed=False)
    assert asked.num_requests == 2


@played
async def test_who_wants_what_the_trainer_signed_is_remembered_until_such_an_anchor_has_come() -> None:
    asked = Asked()
    await from_above(asked.feed, made().bundle(), made().derived_anchor(0), *made().chain(0, 1))
    asked.feed.request_anchor("a reader was led astray", signed=True)
    asked.feed.request_anchor("another reader", signed=False)
    await from_above(asked.feed, made().derived_anchor(1))
    assert asked.feed.wants_signed, "what came was not signed"
    await from_above(asked.feed, made().anchor(2))
    assert not asked.feed.wants_signed


def test_a_lost_connection_forgets_the_request_and_wakes_readers_so_that_they_repeat_it() -> None:
    asked = Asked()
    asked.feed.request_anchor("of a test", signed=True)
    before = asked.feed.num_changes
    asked.feed.connection_lost()
    assert asked.feed.num_changes > before
    assert asked.feed.wants_signed, "the next connection must ask for the same"
    asked.feed.request_anchor("of a test", signed=False)
    assert asked.num_requests == 2


@played
async def test_a_derived_state_goes_only_into_the_copy_and_readers_go_on_from_it() -> None:
    feed = Asked().feed
    await from_above(feed, made().bundle(), made().derived_anchor(2))
    assert feed.weight_cache.copy_policy == made().policy(2)
    assert feed.log.newest == made().policy(2)
    assert feed.log.kept_bytes == 0, "a relay must not pass on what it cannot verify"
    await from_above(feed, *made().chain(2, 4))
    assert feed.log.newest == made().policy(4)


@played
async def test_a_copy_that_does_not_lead_where_it_should_makes_the_feed_ask_for_signed_states() -> None:
    feed = Asked().feed
    await from_above(feed, made().bundle(), made().derived_anchor(0))
    assert not feed.wants_signed
    with pytest.raises(CorruptFrame):
        await from_above(feed, made().derived_delta(0, 2, made=made().states[1]))
    assert feed.wants_signed
    assert feed.num_refused == {"CorruptFrame": 1}
    assert feed.log.newest == made().policy(0)


@played
async def test_an_anchor_that_was_asked_for_is_taken_though_readers_have_newer_and_the_disk_is_full() -> None:
    disk = FaultyWeightFiles()
    disk.room_bytes = 0
    feed = Asked(weight_cache(disk)).feed
    append(feed, made().bundle(), made().anchor(0), *made().chain(0, 4))
    await settle(feed.weight_cache)
    assert feed.weight_cache.copy_policy is None
    assert feed.weight_cache.have == made().policy(4)
    disk.room_bytes = None
    feed.request_anchor("of a test", signed=False)
    await from_above(feed, made().anchor(1), *made().chain(1, 4))
    assert feed.weight_cache.copy_policy == made().policy(1)
    assert feed.weight_cache.have == made().policy(4)
    assert not feed.anchor_requested
    assert feed.log.newest == Policy(0, 4)


@played
async def test_an_anchor_that_nobody_asked_for_is_refused_when_readers_have_newer() -> None:
    feed = Asked().feed
    await from_above(feed, made().bundle(), made().anchor(2))
    with pytest.raises(Fenced):
        await from_above(feed, made().anchor(1))


@played
async def test_a_closed_feed_wakes_its_readers() -> None:
    feed = Asked().feed
    waiting = asyncio.create_task(feed.changed(feed.num_changes))
    await asyncio.sleep(0)
    feed.close()
    await waiting
    assert feed.is_closed


@played
async def test_a_settled_cache_wakes_readers_and_asks_for_no_copy_of_nothing() -> None:
    asked = Asked()
    before = asked.feed.num_changes
    await asked.feed.settled()
    assert asked.feed.num_changes > before
    assert asked.num_requests == 0


@pytest.mark.parametrize(("distrust", "is_remote"), [(False, False), (False, True), (True, False), (True, True)])
def test_only_a_gateway_that_distrusts_copies_wants_an_anchor_though_deltas_would_do(
    distrust: bool, is_remote: bool
) -> None:
    cursor = Asked().feed.open(None, False, distrust=distrust, is_remote=is_remote)
    assert cursor.distrust == distrust
    assert cursor.wants_anchor == (distrust and is_remote)
