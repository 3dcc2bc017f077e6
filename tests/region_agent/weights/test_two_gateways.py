"""Two real gateways, home and far, each with its copy: what crosses between them, counted, and who asks the trainer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path

import pytest

from periplus.codec.weights.decoder import decode
from periplus.publication import PublicationKind
from periplus.values.policy import Policy
from periplus.values.weight_state import content_bytes
from region_agent.weights import machine
from region_agent.weights import weight_cache as cache_module
from region_agent.weights.disk import restore
from region_agent.weights.reader_routes import RouteKind, RouteRates
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.loopback import Gateway, Reader, Trainer, gateway, play, remote_gateway, until, weight_cache
from tests.support.publication.signed import payload_parts
from tests.support.publication.versions import Versions, small_states

NUM_VERSIONS = 12


@cache
def made() -> Versions:
    return Versions(small_states(NUM_VERSIONS, num_elements=20_000))


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Before any deadline runs."""
    parts = payload_parts(made().delta(0, 1))
    decode(made().states[0], parts, max_content_bytes=1 << 30)


def crossed(home: Gateway) -> int:
    """Bytes from home to far so far."""
    return home.traffic.sent_bytes.get("far", 0)


def at(index: int) -> Policy:
    return made().policy(index)


@asynccontextmanager
async def far_away(home: Gateway, disk: FaultyWeightFiles, *, chain_versions: int = 8) -> AsyncIterator[Gateway]:
    async with remote_gateway(home.address, weights=weight_cache(disk, chain_versions=chain_versions)) as far:
        yield far


def full_bytes() -> int:
    return made().anchor(0).payload_bytes


def test_a_late_worker_joins_from_its_own_gateway_without_a_byte_over_the_wan() -> None:
    async def scene() -> None:
        async with gateway() as home, Trainer(home.address) as trainer, far_away(home, FaultyWeightFiles()) as far:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 3))
            await until(lambda: far.hub.feed.log.newest == at(3) and far.hub.weight_cache.copy_policy == at(0))
            before = crossed(home)
            for _ in range(2):
                async with Reader(far.address) as late:
                    await until(lambda: late.policy == at(3))
                    assert late.state() == made().states[3]
            async with Reader(far.address, have=at(1), has_bundle=True) as lagging:
                await until(lambda: lagging.policy == at(3))
                assert lagging.names() == ["delta 0.2", "delta 0.3"]
            assert crossed(home) == before
            assert trainer.came == []

    play(scene)


def test_a_gateway_that_was_cut_off_catches_up_by_what_it_lacks() -> None:
    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway() as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), made().delta(0, 1))
            async with far_away(home, disk) as far:
                await until(lambda: far.hub.feed.log.newest == at(1) and far.hub.weight_cache.copy_policy == at(0))
                await far.die()
            disk.kill()
            trainer.publish(*made().chain(1, 4))
            await until(lambda: home.hub.feed.log.newest == at(4))
            before = crossed(home)
            async with far_away(home, disk) as far, Reader(far.address, have=at(1), has_bundle=True) as worker:
                assert far.hub.feed.log.newest == at(1)
                await until(lambda: far.hub.feed.log.newest == at(4) and worker.policy == at(4))
                async with Reader(far.address) as late:
                    await until(lambda: late.policy == at(4))
                    assert late.state() == made().states[4]
            deltas = sum(each.payload_bytes for each in made().chain(1, 4))
            assert crossed(home) - before < deltas + 3 * 600 < full_bytes() / 2

    play(scene)


def test_over_a_slow_link_it_catches_up_by_one_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "REMOTE", RouteRates(link_bytes_per_s=1e4))

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(chain_versions=16)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), made().delta(0, 1))
            async with far_away(home, disk) as far:
                await until(lambda: far.hub.feed.log.newest == at(1) and far.hub.weight_cache.copy_policy == at(0))
                await far.die()
            disk.kill()
            trainer.publish(*made().chain(1, 10))
            await until(lambda: home.hub.feed.log.newest == at(10))
            before = crossed(home)
            async with far_away(home, disk) as far:
                await until(lambda: far.hub.weight_cache.copy_policy == at(10))
                await until(lambda: home.hub.weight_cache.num_derived[RouteKind.FOLD] == 1)
                deltas = sum(each.payload_bytes for each in made().chain(1, 10))
                assert crossed(home) - before < deltas
                trainer.publish(made().delta(10, 11))
                async with Reader(far.address) as late:
                    await until(lambda: late.policy == at(11))
                    assert late.state() == made().states[11]

    play(scene)


def test_one_that_is_further_behind_than_any_chain_gets_the_copy() -> None:
    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(chain_versions=2)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), made().delta(0, 1))
            async with far_away(home, disk) as far:
                await until(lambda: far.hub.feed.log.newest == at(1) and far.hub.weight_cache.copy_policy == at(0))
                await far.die()
            disk.kill()
            trainer.publish(*made().chain(1, 9))
            await until(lambda: home.hub.weight_cache.copy_policy == at(7))
            async with far_away(home, disk) as far, Reader(far.address, have=at(1), has_bundle=True) as worker:
                await until(lambda: far.hub.feed.log.newest == at(9) and worker.policy == at(9))
                assert worker.got[0].opening.kind is PublicationKind.ANCHOR
                assert worker.got[0].opening.is_derived
                assert worker.state() == made().states[9] or worker.got
            assert home.hub.weight_cache.num_derived == {RouteKind.CHAIN: 0, RouteKind.FOLD: 0, RouteKind.FULL: 1}
            assert trainer.came == []

    play(scene)


@pytest.mark.parametrize("chain_versions", [1, 8])
def test_a_copy_that_was_damaged_on_disk_is_refused_and_fetched_from_the_gateway_above(chain_versions: int) -> None:
    first = at(2 - min(2, chain_versions))

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway() as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
            async with far_away(home, disk, chain_versions=chain_versions) as far:
                await until(lambda: far.hub.feed.log.newest == at(2) and far.hub.weight_cache.copy_policy == first)
                # A death loses what is only in memory, so wait for the chain's files.
                await until(lambda: sum(path.suffix == ".delta" for path in disk.paths()) == 2 - first.version)
                await far.die()
            disk.kill()
            (state,) = (path for path in disk.paths() if path.suffix == ".state")
            disk.content(state)[1234] ^= 1
            async with far_away(home, disk, chain_versions=chain_versions) as far:
                assert far.hub.feed.log.newest == at(2), "the chain is as good as it was"
                await until(lambda: far.hub.weight_cache.copy_policy == first)
                async with Reader(far.address) as late:
                    await until(lambda: late.policy == at(2))
                    assert late.state() == made().states[2]
            assert trainer.came == []

    play(scene)


def test_when_the_copy_above_is_bad_the_trainer_is_asked_and_readers_are_never_sent_what_is_not_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "LOG_BYTES", 1)  # no signed anchor in memory

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
            await until(lambda: home.hub.weight_cache.copy_policy == at(0) and home.hub.feed.log.newest == at(2))
            (state,) = (path for path in disk.paths() if path.suffix == ".state")
            disk.content(state)[1234] ^= 1  # while it is in use
            async with far_away(home, FaultyWeightFiles()) as far, Reader(far.address) as worker:
                await until(lambda: trainer.came == ["anchor?"])
                assert far.hub.weight_cache.copy_policy is None
                await until(lambda: home.hub.weight_cache.copy_policy is None)
                trainer.publish(made().anchor(2))
                await until(lambda: home.hub.weight_cache.copy_policy == at(2))
                await until(lambda: worker.policy == at(2) and far.hub.weight_cache.copy_policy == at(2))
                assert worker.state() == made().states[2]

    play(scene)


def test_with_a_full_disk_a_gateway_serves_from_memory_and_makes_its_copy_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "RETRY_S", 0.02)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        disk.room_bytes = 100
        async with gateway() as home, Trainer(home.address) as trainer, far_away(home, disk) as far:
            trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
            async with Reader(far.address) as worker:
                await until(lambda: worker.policy == at(2))
                assert far.hub.weight_cache.copy_policy is None
                disk.room_bytes = None
                await until(lambda: far.hub.weight_cache.copy_policy == at(0))
                trainer.publish(made().delta(2, 3))
                await until(lambda: worker.policy == at(3))
                assert worker.state() == made().states[3]
            before = crossed(home)
            async with Reader(far.address) as late:
                await until(lambda: late.policy == at(3))
                assert late.state() == made().states[3]
            assert crossed(home) == before
            assert trainer.came == []

    play(scene)


def test_a_new_fork_is_followed_and_remembered_after_a_restart() -> None:
    other = Versions(made().states, fork=1)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk)) as home:
            async with Trainer(home.address) as trainer:
                trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
                await until(lambda: home.hub.feed.log.newest == at(2))
            async with Trainer(home.address, fork=1) as trainer, Reader(home.address) as worker:
                trainer.publish(other.bundle(), other.anchor(1), other.delta(1, 2))
                await until(lambda: worker.policy == Policy(1, 2) and home.hub.weight_cache.copy_policy == Policy(1, 1))
                assert worker.state() == made().states[2]
            await home.die()
        disk.kill()
        async with gateway(weights=weight_cache(disk)) as home:
            assert home.hub.feed.log.highest_fork == 1
            assert home.hub.feed.log.newest == Policy(1, 2)

    play(scene)


def test_what_is_on_disk_is_bounded() -> None:
    disk = FaultyWeightFiles()

    async def scene() -> None:
        async with gateway(weights=weight_cache(disk, chain_versions=2)) as home, Trainer(home.address) as trainer:
            trainer.publish(made().bundle(), made().anchor(0))
            for index in range(1, NUM_VERSIONS):
                trainer.publish(made().delta(index - 1, index))
                async with Reader(home.address) as late:
                    await until(lambda index=index: late.policy == at(index))  # type: ignore[misc]
            await until(lambda: home.hub.weight_cache.copy_policy == at(NUM_VERSIONS - 3))
            deltas = sum(each.payload_bytes + 600 for each in made().chain(0, 2))
            kept = sum(len(disk.content(path)) for path in disk.paths())
            assert kept < content_bytes(made().states[0]) + 2 * deltas + 4000
            home.hub.weight_cache.close(job_is_done=True)
            assert disk.paths() == [Path("/weights/lock")] or disk.paths() == []

    play(scene)


def test_a_gateway_that_dies_after_any_record_of_a_version_ends_with_the_newest_state() -> None:
    published = (made().bundle(), made().anchor(0), *made().chain(0, 3))
    records = [record for publication in published for record in publication.records()]

    async def scene(num_records: int) -> None:
        disk = FaultyWeightFiles()
        async with gateway() as home, Trainer(home.address) as trainer:
            async with far_away(home, disk, chain_versions=1) as far:
                for record in records[:num_records]:
                    trainer.publish_record(record)
                await until(
                    lambda: home.hub.feed.num_changes >= num_records and far.hub.feed.num_changes >= num_records - 1
                )
                await far.die()
            disk.kill()
            for record in records[num_records:]:
                trainer.publish_record(record)
            async with far_away(home, disk, chain_versions=1) as far, Reader(far.address) as worker:
                await until(lambda: worker.policy == at(3) and far.hub.weight_cache.copy_policy == at(2))
                assert worker.state() == made().states[3]
            assert trainer.came == []

    for num_records in range(1, len(records) + 1):
        play(partial(scene, num_records))


def test_a_restart_between_the_bundle_of_a_new_fork_and_its_first_state_forgets_nothing() -> None:
    other = Versions(made().states, fork=1)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        async with gateway(weights=weight_cache(disk)) as home:
            async with Trainer(home.address) as trainer:
                trainer.publish(made().bundle(), made().anchor(0), *made().chain(0, 2))
                await until(lambda: home.hub.feed.log.newest == at(2))
            async with Trainer(home.address, fork=1) as trainer:
                trainer.publish(other.bundle())
                await until(lambda: home.hub.feed.log.highest_fork == 1)
                await until(lambda: any(path.name == "fork-0000000001" for path in disk.paths()))
            await home.die()
        disk.kill()
        async with gateway(weights=weight_cache(disk)) as home, Trainer(home.address, fork=1) as trainer:
            assert home.hub.feed.log.highest_fork == 1
            assert home.hub.weight_cache.copy_policy == at(0)
            trainer.publish(other.bundle(), other.anchor(2), other.delta(2, 3))
            async with Reader(home.address) as worker:
                await until(lambda: worker.policy == Policy(1, 3))
                assert worker.state() == made().states[3]

    play(scene)
