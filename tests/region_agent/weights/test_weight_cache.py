"""What a weight cache does when a disk, a maker or its own end comes in between."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from periplus.errors import Fenced, Unreachable
from periplus.publication import Publication, PublicationRecord
from periplus.values.policy import Policy
from region_agent.weights.disk import restore, weight_folder
from region_agent.weights.disk.full_state import FullState
from region_agent.weights.reader_routes import RouteKind
from region_agent.weights.streams import Stream
from region_agent.weights.weight_cache import WeightCache
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.loopback import Reader, Trainer, gateway, play, until, weight_cache
from tests.support.publication.versions import Versions, small_states

NUM_VERSIONS = 8


@cache
def made() -> Versions:
    return Versions(small_states(NUM_VERSIONS, num_elements=20_000))


def at(index: int) -> Policy:
    return made().policy(index)


def take(weights: WeightCache, *publications: Publication) -> None:
    """As a hub does."""
    for publication in publications:
        for record in publication.records():
            weights.take(weights.log.append(record))


@asynccontextmanager
async def running(weights: WeightCache) -> AsyncIterator[asyncio.Event]:
    """Its run. The event is set once nothing is left to do."""

    async def done() -> None:
        turned.set()

    turned = asyncio.Event()
    run = asyncio.create_task(weights.run(done))
    try:
        yield turned
    finally:
        run.cancel()
        await asyncio.wait({run})


async def settled(weights: WeightCache) -> None:
    """One turn of its run, after something has come."""
    async with running(weights) as turned:
        await turned.wait()


def delta_files(disk: FaultyWeightFiles) -> list[Path]:
    return [path for path in disk.paths() if path.suffix == ".delta"]


def test_a_delta_that_is_damaged_on_disk_ends_the_chain_and_readers_are_not_served_it_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "LOG_BYTES", 1)  # no chain in memory

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 3))
            await until(lambda: home.hub.feed.log.newest == at(3) and len(delta_files(disk)) == 3)
            damaged = disk.content(delta_files(disk)[1])
            damaged[-300] ^= 1  # in its payload
            async with Reader(home.address, have=at(0), has_bundle=True) as worker:
                await until(lambda: trainer.came == ["anchor?"])
                sent = -1
                while sent != worker.num_chunks:  # what is on its way still comes; served again, it never ends
                    sent = worker.num_chunks
                    await asyncio.sleep(0.05)
                trainer.publish(made().anchor(3))
                await until(lambda: worker.policy == at(3) and home.hub.weight_cache.copy_policy == at(3))
                assert worker.error is None

    play(scene)


@pytest.mark.parametrize(("fork", "has_bundle"), [(0, True), (1, False)])
def test_the_bundle_on_disk_is_for_workers_of_its_own_fork(fork: int, has_bundle: bool) -> None:
    async def scene() -> None:
        disk = FaultyWeightFiles()
        weights = weight_cache(disk)
        take(weights, made().bundle(), made().anchor(0))
        await settled(weights)
        await until(lambda: weights.copy_policy == at(0))
        weights.close(job_is_done=False)
        again = weight_cache(disk, fork=fork)
        assert again.log.has_bundle is has_bundle
        assert again.log.newest == at(0)

    play(scene)


def test_a_state_that_was_half_written_when_the_disk_failed_is_sent_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        disk = FaultyWeightFiles()
        weights = weight_cache(disk, chain_versions=1)
        take(weights, made().bundle(), made().anchor(0), made().delta(0, 1))
        await settled(weights)

        def broken(*_: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(disk, "sync_node", broken)
        monkeypatch.setattr(disk, "open_placed", broken)
        monkeypatch.setattr(disk, "create_sized", broken)
        take(weights, made().delta(1, 2))
        await settled(weights)
        answer = await weights.derive(None, None, is_remote=False)
        assert answer is None

    play(scene)


def test_a_fault_of_ours_while_something_is_made_ends_neither_the_keeper_nor_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "LOG_BYTES", 1)

    def full(_: FullState) -> Iterator[bytes]:
        yield b"head"
        raise RuntimeError("a bug")

    monkeypatch.setattr(weight_folder, "full", full)

    async def scene() -> None:
        async with gateway() as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
            await until(lambda: home.hub.weight_cache.copy_policy == at(0) and home.hub.feed.log.newest == at(2))
            async with Reader(home.address) as late:
                await until(lambda: trainer.came == ["anchor?"])
                trainer.publish(made().anchor(2))
                await until(lambda: late.policy == at(2))
                assert late.state() == made().states[2]

    play(scene)


def test_nothing_is_derived_once_it_stops() -> None:
    async def scene() -> None:
        weights = weight_cache()
        take(weights, made().bundle(), made().anchor(0), made().delta(0, 1))
        await settled(weights)
        weights.stop()
        assert await weights.derive(None, None, is_remote=False) is None

    play(scene)


def test_records_that_complete_no_publication_cause_no_work() -> None:
    async def scene() -> None:
        weights = weight_cache()
        async with running(weights) as turned:
            opening, *_ = made().anchor(0).records()
            weights.take(weights.log.append(opening))
            await asyncio.sleep(0.01)
            assert not turned.is_set()

    play(scene)


def test_who_waits_for_the_disk_is_told_when_it_stops() -> None:
    async def scene() -> None:
        weights = weight_cache()
        take(weights, made().bundle(), made().anchor(0))
        derived = asyncio.create_task(weights.derive(None, None, is_remote=False))
        become = asyncio.create_task(weights.become(made().derived_anchor(2)))
        await asyncio.sleep(0)
        weights.stop()
        assert await derived is None
        with pytest.raises(Unreachable):
            await become
        with pytest.raises(Unreachable):
            await weights.become(made().derived_anchor(2))

    play(scene)


def test_the_copy_and_the_log_agree_though_nobody_waits_for_a_takeover_any_more() -> None:
    async def scene() -> None:
        weights = weight_cache()
        take(weights, made().bundle(), made().anchor(0))
        async with running(weights):
            become = asyncio.create_task(weights.become(made().derived_anchor(2)))
            await asyncio.sleep(0)
            become.cancel()
            await until(lambda: weights.copy_policy == at(2))
            assert weights.log.newest == weights.have == at(2)

    play(scene)


def test_a_takeover_of_another_content_than_is_known_is_fenced() -> None:
    other = Versions(made().states[1:], key=made().key)

    async def scene() -> None:
        weights = weight_cache()
        take(weights, made().bundle(), made().anchor(0), made().delta(0, 1))
        async with running(weights):
            with pytest.raises(Fenced):
                await weights.become(other.derived_anchor(1))

    play(scene)


def test_one_whose_copy_is_older_than_what_readers_have_subscribes_from_where_the_copy_leads() -> None:
    async def scene() -> None:
        weights = weight_cache()
        for publication in (made().bundle(), made().anchor(0), *made().chain(0, 4)):
            for record in publication.records():
                weights.log.append(record)  # readers have got it, and the copy has not
        weights.log.drop_before(at(4))
        assert weights.have is None
        async with running(weights):
            await weights.become(made().derived_anchor(2))
        assert (weights.log.newest, weights.copy_policy) == (at(4), at(2))
        assert weights.is_behind
        assert weights.have == at(2)
        weights.take(made().delta(2, 3))
        assert weights.have == at(3)
        weights.take(made().delta(3, 4))
        assert weights.have == at(4)
        assert not weights.is_behind

    play(scene)


def test_a_slow_reader_of_the_full_copy_is_not_overtaken_by_it() -> None:
    async def scene() -> None:
        async with gateway(weights=weight_cache(chain_versions=1)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0))
            await until(lambda: home.hub.weight_cache.copy_policy == at(0))
            weights = home.hub.weight_cache
            home.hub.feed.log.drop_before(at(0))
            home.hub.feed.log._anchor = None
            answer = await weights.derive(None, None, is_remote=False)
            assert isinstance(answer, Stream)
            records: list[PublicationRecord] = [await anext(answer.records)]
            trainer.publish(*made().chain(0, 3))
            await until(lambda: weights.log.newest == at(3))
            async for record in answer.records:
                records.append(record)
                await asyncio.sleep(0.01)
            openings = [record.policy for record in records if hasattr(record, "policy")]
            assert openings == [at(0), at(1), at(2), at(3)]
            assert weights.num_derived[RouteKind.FULL] == 1
            await until(lambda: weights.copy_policy == at(2))

    play(scene)


def test_what_was_made_of_an_older_copy_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region_agent.weights.derived.MEMORY_BYTES", 0)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk, chain_versions=1)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), made().delta(0, 1))
            await until(lambda: home.hub.feed.log.newest == at(1) and home.hub.weight_cache.copy_policy == at(0))
            home.hub.feed.log._anchor = None
            async with Reader(home.address) as late:
                await until(lambda: late.policy == at(1))
            assert any(path.suffix == ".derived" for path in disk.paths())
            trainer.publish(*made().chain(1, 4))
            await until(lambda: home.hub.weight_cache.copy_policy == at(3))
            assert not any(path.suffix == ".derived" for path in disk.paths())

    play(scene)


def test_a_derived_file_that_is_damaged_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region_agent.weights.derived.MEMORY_BYTES", 0)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), made().delta(0, 1))
            await until(lambda: home.hub.feed.log.newest == at(1) and home.hub.weight_cache.copy_policy == at(0))
            home.hub.feed.log._anchor = None
            async with Reader(home.address) as first:
                await until(lambda: first.policy == at(1))
            (path,) = (path for path in disk.paths() if path.suffix == ".derived")
            disk.content(path)[-1] ^= 1
            async with Reader(home.address) as second:
                await until(lambda: second.policy == at(1))
                assert second.state() == made().states[1]
            assert home.hub.weight_cache.num_derived[RouteKind.FULL] == 2

    play(scene)
