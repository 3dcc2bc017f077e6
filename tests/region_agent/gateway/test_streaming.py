"""Frames from workers to the ledger over real gRPC: once each, whatever breaks on the way."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from periplus.errors import CorruptFrame, StorageError
from periplus.pb.v1 import gateway_pb2
from periplus.spool.format import Durability
from periplus.values.transport_keys import FrameKey
from region_agent.gateway import frames as frames_module
from region_agent.gateway.messages import LocalCommit
from tests.support.gateway.loopback import (
    JOB,
    Trainer,
    Worker,
    frame_spool,
    gateway,
    home_region,
    played,
    remote_gateway,
    two_regions,
    until,
)
from tests.support.gateway.spool_disk import SpoolDisk


def key(sequence: int, worker_id: str = "w1", epoch: int = 1) -> FrameKey:
    return FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence)


@played
async def test_a_worker_hears_that_its_frames_are_spooled_before_any_trainer_is_there() -> None:
    async with gateway() as home, Worker(home.address, "w1") as worker:
        for payload in (b"0", b"1", b"2"):
            await worker.frame(payload)
        await until(lambda: worker.spooled() == [(1, 0), (1, 1), (1, 2)])
        assert home.frames.pending == (key(0), key(1), key(2))
        async with Trainer(home.address) as trainer:
            await until(lambda: trainer.frames == [b"0", b"1", b"2"])
            assert trainer.came[0] == "w1 hello"
            assert trainer.regions == ["home"] * 3
            await trainer.commit()
            await until(lambda: home.frames.pending == ())


@played
async def test_a_frame_of_a_remote_region_is_kept_there_and_only_passed_on_at_home() -> None:
    async with (
        two_regions() as (home, trainer, far),
        Worker(far.address, "w1") as worker,
    ):
        await worker.frame(b"0")
        await until(lambda: trainer.frames == [b"0"])
        assert worker.spooled() == [(1, 0)]
        assert (home.frames.pending, far.frames.pending) == ((), (key(0),))
        assert trainer.regions == ["far"]
        await trainer.commit(region="home")
        await trainer.commit(region="nowhere")
        await trainer.commit()
        await until(lambda: far.frames.pending == ())


@played
async def test_an_acknowledgement_waits_for_the_disk_where_the_job_asks_for_it() -> None:
    disk = SpoolDisk()
    async with gateway(frames=frame_spool(disk, durability=Durability.MACHINE)) as home:
        async with Worker(home.address, "w1") as worker:
            await worker.frame(b"0")
            await until(lambda: worker.spooled() == [(1, 0)])
            disk.failing_syncs = True
            await worker.frame(b"1")
            assert isinstance(await worker.ended(), StorageError)
            assert worker.spooled() == [(1, 0)]
        disk.cut_power(lambda most: 0)
        assert frame_spool(disk).pending == (key(0),)


@played
async def test_resends_and_reordered_keys_are_taken_once_and_acknowledged_again() -> None:
    async with home_region() as (home, trainer):
        async with Worker(home.address, "w1") as first:
            for sequence in (0, 2, 1, 2):
                await first.frame(bytes([sequence]), sequence=sequence)
            await until(lambda: len(trainer.frames) == 3)
            await trainer.commit(0)
            await until(lambda: len(home.frames.pending) == 2)
        async with Worker(home.address, "w1") as again:
            for sequence in (0, 1, 2, 3):
                await again.frame(bytes([sequence]), sequence=sequence)
            await until(lambda: again.spooled() == [(1, sequence) for sequence in range(4)])
            await again.frame(b"new start", epoch=2, sequence=0)
            await until(lambda: len(trainer.frames) == 5)
        assert trainer.keys == [key(0), key(2), key(1), key(3), key(0, epoch=2)]


@played
async def test_a_frame_without_its_key_is_refused() -> None:
    async with gateway() as home, Worker(home.address, "w1") as worker:
        await worker.frame(b"0", epoch=0)
        assert isinstance(await worker.ended(), CorruptFrame)
        assert home.frames.pending == ()


@played
async def test_a_new_trainer_gets_everything_that_was_not_committed_before_what_comes_then() -> None:
    async with gateway() as home, remote_gateway(home.address) as far:
        async with (
            Trainer(home.address) as old,
            Worker(home.address, "w1") as here,
            Worker(far.address, "w2") as there,
        ):
            for payload in (b"0", b"1", b"2"):
                await here.frame(payload)
                await there.frame(payload)
            await until(lambda: len(old.frames) == 6)
            await old.commit(old.keys.index(key(1)), old.keys.index(key(1, "w2")))
            await until(lambda: len(home.frames.pending) == len(far.frames.pending) == 2)
        async with Trainer(home.address, fork=1) as new:  # both workers are dead
            await until(lambda: len(new.frames) == 4)
            assert sorted(new.keys, key=str) == [key(0), key(2), key(0, "w2"), key(2, "w2")]
            assert [regions for regions in new.regions if regions == "far"] == ["far"] * 2
            await new.commit()
            await until(lambda: not home.frames.pending and not far.frames.pending)


@played
async def test_what_the_home_gateway_had_not_passed_on_when_it_died_comes_again_over_the_next_connection() -> None:
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(gateway())
        far = await stack.enter_async_context(remote_gateway(home.address))
        worker = await stack.enter_async_context(Worker(far.address, "w1"))
        for payload in (b"0", b"1", b"2"):
            await worker.frame(payload)
        await until(lambda: len(home.hub.up) == 4)  # no trainer yet
        await home.die()
        home = await stack.enter_async_context(gateway(address=home.address))
        trainer = await stack.enter_async_context(Trainer(home.address))
        await until(lambda: trainer.frames == [b"0", b"1", b"2"])
        await trainer.commit()
        await until(lambda: far.frames.pending == ())


@pytest.mark.parametrize("how", ["kill", "power"])
@played
async def test_a_gateway_that_died_and_came_back_sends_what_its_dead_worker_left(how: str) -> None:
    disk = SpoolDisk()

    def spool() -> frames_module.FrameSpool:
        return frame_spool(disk, durability=Durability.MACHINE)

    async with home_region() as (home, trainer):
        async with remote_gateway(home.address, frames=spool()) as far, Worker(far.address, "w1") as worker:
            await worker.frame(b"0")
            await worker.frame(b"1")
            await until(lambda: len(trainer.frames) == 2 and len(worker.spooled()) == 2)
            await far.die()
        if how == "kill":
            disk.kill()
        else:
            disk.cut_power(lambda most: 0)
        async with remote_gateway(home.address, frames=spool()) as far:
            await until(lambda: len(trainer.frames) == 4)
            assert trainer.keys == [key(0), key(1)] * 2
            await trainer.commit()
            await until(lambda: far.frames.pending == ())


@played
async def test_a_full_spool_stops_its_workers_and_nobody_else_and_goes_on_when_the_ledger_has_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames_module, "FULL_RETRY_S", 1e9)
    payload, num_frames = bytes(100_000), 250  # more than the windows of the connection ever hold
    async with (
        home_region() as (home, trainer),
        remote_gateway(home.address, frames=frame_spool(max_bytes=1 << 20)) as far,
        Worker(far.address, "w1") as worker,
        Worker(home.address, "w2") as other,
    ):

        async def produce() -> None:
            for _ in range(num_frames):
                await worker.frame(payload)

        producing = asyncio.create_task(produce())
        await until(lambda: len(trainer.frames) == len(far.frames.pending) >= 8)
        await other.frame(b"home")
        await until(lambda: b"home" in trainer.frames)
        held = len(far.frames.pending)
        assert held < 12
        assert not producing.done(), "the worker's stream is still read"
        assert len(worker.spooled()) == held
        await trainer.lease("w1", 7)
        await until(lambda: worker.leases() == [7])
        done = 0
        while len(trainer.frames) < num_frames + 1:
            await until(lambda: len(trainer.frames) > done)  # noqa: B023
            there = len(trainer.frames)
            await trainer.commit(*range(done, there))
            done = there
        await producing
        assert trainer.keys.count(key(0)) == 1
        assert {one for one in trainer.keys if one.worker_id == "w1"} == {key(i) for i in range(num_frames)}
        await trainer.commit()
        await until(lambda: far.frames.pending == ())


@played
async def test_what_is_committed_while_it_waits_to_be_sent_again_is_not_sent() -> None:
    async with gateway() as home, Worker(home.address, "w1") as worker:
        await worker.frame(b"0")
        await worker.frame(b"1")
        await until(lambda: len(home.frames.pending) == 2)
        await home.hub.send_down(LocalCommit((key(0),)))
        async with Trainer(home.address) as trainer:
            await until(lambda: trainer.frames == [b"1"])


@played
async def test_what_workers_say_of_leases_goes_up_and_revocations_go_down() -> None:
    async with (
        two_regions() as (home, trainer, far),
        Worker(far.address, "w1") as worker,
    ):
        started = gateway_pb2.LeasesStarted(lease_ids=[1, 2])
        failed = gateway_pb2.SampleFailed(lease_id=2, why="no such item")
        await worker.call.write(gateway_pb2.RolloutUp(worker_id="w1", started=started))
        await worker.call.write(gateway_pb2.RolloutUp(worker_id="w1", failed=failed))
        await until(lambda: trainer.came == ["w1 hello", "w1 started", "w1 failed"])
        revoked = gateway_pb2.LeasesRevoked(lease_ids=[3])
        await trainer.send(gateway_pb2.RolloutDown(worker_id="w1", revoked=revoked))
        await until(lambda: [list(down.revoked.lease_ids) for down in worker.got] == [[3]])
        assert home.hub.job_id == JOB
