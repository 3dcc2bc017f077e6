"""What one reader is sent, from where it goes on, and when a full state is requested for it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import cache

import pytest

from periplus.errors import StorageError
from periplus.publication import Closing, Opening, Publication, PublicationRecord
from periplus.values.policy import Policy
from region_agent.gateway.feed_reader import FeedReader
from region_agent.gateway.publication_feed import PublicationFeed
from region_agent.weights.streams import Stream
from region_agent.weights.weight_cache import Along
from tests.support.gateways import played, until, weight_cache
from tests.support.versions import Versions, small_states


@cache
def made() -> Versions:
    return Versions(small_states(6, num_elements=2_000))


class Follower:
    """A reader in a task of its own, and the names of the publications that it got to the end."""

    def __init__(self, feed: PublicationFeed, have: Policy | None, *, distrust: bool = False) -> None:
        cursor = feed.open(have, True, distrust=distrust, is_remote=False)
        self.reader = FeedReader(feed, cursor, "r", is_remote=False)
        self.got: list[str] = []
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        coming = ""
        async with contextlib.aclosing(self.reader.records()) as records:
            async for record in records:
                if isinstance(record, Opening):
                    coming = f"{record.kind} {record.policy}"
                elif isinstance(record, Closing):
                    self.got.append(coming)


def new_feed(requests: list[bool] | None = None) -> PublicationFeed:
    """A feed without a running weight cache; `requests` grows with each request for a full state."""
    return PublicationFeed(weight_cache(), lambda: None if requests is None else requests.append(True))


def append(feed: PublicationFeed, *publications: Publication) -> None:
    for publication in publications:
        for record in publication.records():
            feed.append(record)


@played
async def test_a_reader_gets_each_version_as_it_comes_until_the_feed_is_closed() -> None:
    feed = new_feed()
    append(feed, made().bundle(), made().anchor(0))
    follower = Follower(feed, made().policy(0))
    for version in (1, 2):
        append(feed, made().delta(version - 1, version))
        await until(lambda version=version: len(follower.got) == version)  # type: ignore[misc]
    assert follower.got == ["delta 0.1", "delta 0.2"]
    assert follower.reader.have == made().policy(2)
    feed.close()
    await follower.task


@played
async def test_a_reader_that_takes_only_signed_states_causes_one_request_and_gets_the_anchor() -> None:
    requests: list[bool] = []
    feed = new_feed(requests)
    append(feed, made().bundle(), made().anchor(0), made().delta(0, 1))
    feed.log.drop_before(made().policy(1))
    followers = [Follower(feed, None, distrust=True) for _ in range(2)]
    await until(lambda: feed.wants_signed)
    append(feed, made().delta(1, 2))
    append(feed, made().anchor(3))
    await until(lambda: all(follower.got == ["anchor 0.3"] for follower in followers))
    assert requests == [True]
    assert not feed.wants_signed


@played
async def test_a_reader_without_a_route_waits_and_a_route_that_came_meanwhile_needs_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[bool] = []
    feed = new_feed(requests)
    append(feed, made().bundle(), made().anchor(0), *made().chain(0, 2))
    num_asked = 0

    async def derive(have: Policy | None, chain_bytes: int | None, *, is_remote: bool) -> Along | None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:  # the log moves on while the cache is asked
            append(feed, made().delta(2, 3))
        return Along() if num_asked == 3 else None

    monkeypatch.setattr(feed.weight_cache, "derive", derive)
    follower = Follower(feed, made().policy(0))
    await until(lambda: num_asked == 2 and bool(requests))
    assert follower.got == []
    await feed.settled()
    await until(lambda: follower.got == ["delta 0.1", "delta 0.2", "delta 0.3"])
    assert requests == [True], "the first time there was a change to look at"


@played
async def test_a_reader_that_got_half_of_a_way_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = new_feed()
    append(feed, made().bundle(), made().anchor(0), *made().chain(0, 3))
    asked: list[Policy | None] = []

    async def broken() -> AsyncGenerator[PublicationRecord]:
        for record in (*made().delta(0, 1).records(), made().delta(1, 2).opening):
            yield record
        raise StorageError("its file has gone")

    async def derive(have: Policy | None, chain_bytes: int | None, *, is_remote: bool) -> Along | Stream:
        asked.append(have)
        return Along() if len(asked) > 1 else Stream(broken(), made().policy(3))

    monkeypatch.setattr(feed.weight_cache, "derive", derive)
    follower = Follower(feed, made().policy(0))
    await until(lambda: follower.reader.have == made().policy(3))
    assert follower.got == ["delta 0.1", "delta 0.2", "delta 0.3"]
    assert asked == [made().policy(0), made().policy(1)]


@played
async def test_a_reader_that_leaves_gives_up_the_stream_that_was_derived_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = new_feed()
    append(feed, made().bundle(), made().anchor(0), *made().chain(0, 3))
    is_given_up = asyncio.Event()

    async def endless() -> AsyncGenerator[PublicationRecord]:
        try:
            for record in made().delta(0, 1).records():
                yield record
            await asyncio.Event().wait()
        finally:
            is_given_up.set()

    async def derive(have: Policy | None, chain_bytes: int | None, *, is_remote: bool) -> Stream:
        return Stream(endless(), made().policy(3))

    monkeypatch.setattr(feed.weight_cache, "derive", derive)
    follower = Follower(feed, made().policy(0))
    await until(lambda: follower.got == ["delta 0.1"])
    assert not is_given_up.is_set()
    follower.task.cancel()
    await asyncio.wait({follower.task})
    assert is_given_up.is_set()
