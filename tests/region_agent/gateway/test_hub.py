"""What a hub takes from above, and what it asks for, when disk and memory do not agree."""

from functools import cache

import pytest

from periplus.errors import WireError
from periplus.pb.v1 import gateway_pb2
from periplus.publication import Publication
from periplus.values.policy import Policy
from region_agent.gateway.hub import JobHub
from tests.support.faulty_weights import FaultyWeightFiles
from tests.support.gateways import JOB, frame_spool, play, saving, until, weight_cache
from tests.support.versions import Versions, small_states


@cache
def made() -> Versions:
    return Versions(small_states(6, num_elements=2_000))


async def from_above(hub: JobHub, *publications: Publication) -> None:
    for publication in publications:
        for record in publication.records():
            await hub.append_from_above(record)


def hub_with(disk: FaultyWeightFiles) -> JobHub:
    return JobHub(JOB, "far", frame_spool(region="far"), weight_cache(disk))


def test_an_anchor_that_was_asked_for_is_taken_though_readers_have_newer_and_the_disk_is_full() -> None:
    async def scene() -> None:
        disk = FaultyWeightFiles()
        hub = hub_with(disk)
        async with saving(hub):
            await from_above(hub, made().bundle(), made().derived_anchor(2))
            disk.room_bytes = 0
            (state,) = (path for path in disk.paths() if path.suffix == ".state")
            disk.content(state)[0] ^= 1
            hub.weight_cache.doubt()
            await from_above(hub, *made().chain(2, 4))
            await until(lambda: hub.weight_cache.copy_policy is None)
            assert hub.weight_cache.have == made().policy(4), "the disk would not take a copy"
            hub.request_anchor("of a test", signed=False)
            disk.room_bytes = None
            await from_above(hub, made().anchor(1), *made().chain(1, 4))
            assert hub.weight_cache.copy_policy == made().policy(1)
            assert hub.weight_cache.have == made().policy(4)
            assert not hub.anchor_requested
            assert hub.log.newest == Policy(0, 4)

    play(scene)


def test_a_stream_whose_worker_says_hello_on_another_one_ends_so_that_the_worker_connects_again() -> None:
    """Else nobody would hear what the worker still says there, and a job with no other worker would wait for ever."""

    async def scene() -> None:
        hub = hub_with(FaultyWeightFiles())
        hello = gateway_pb2.RolloutUp(worker_id="w", hello=gateway_pb2.WorkerHello(job_id=JOB))
        first, second = hub.open_route(""), hub.open_route("")
        await hub.take_up(first, hello)
        await hub.take_up(first, hello)
        assert not first.closed.is_set()
        await hub.take_up(second, hello)
        assert first.closed.is_set()
        assert not second.closed.is_set()

    play(scene)


@pytest.mark.parametrize("worker_id", ["", "w" * 257, "é" * 129])
def test_a_worker_with_an_id_that_no_trajectory_may_have_is_refused_when_it_says_hello(worker_id: str) -> None:
    async def scene() -> None:
        hub = hub_with(FaultyWeightFiles())
        hello = gateway_pb2.RolloutUp(worker_id=worker_id, hello=gateway_pb2.WorkerHello(job_id=JOB))
        route = hub.open_route("")
        with pytest.raises(WireError, match="an id has 1 to 256"):
            await hub.take_up(route, hello)
        assert not route.workers

    play(scene)
