"""Two gateways, home and far: what passes between them, once, and how they find each other again."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from periplus.errors import CorruptFrame, Unreachable
from periplus.pb.v1 import gateway_pb2
from periplus.publication import Chunk, PublicationRecord
from tests.support.gateway.loopback import (
    JOB,
    Reader,
    Trainer,
    Worker,
    anchor,
    bundle,
    delta,
    gateway,
    played,
    remote_gateway,
    state_of,
    two_regions,
    until,
    weight_cache,
)
from tests.support.keys import JOB_SECRET


@played
async def test_hello_frames_and_leases_pass_through_both_gateways() -> None:
    async with (
        two_regions() as (home, trainer, far),
        Worker(far.address, "w1") as one,
        Worker(far.address, "w2") as two,
    ):
        await one.frame(b"1")
        await two.frame(b"2")
        await until(lambda: sorted(trainer.frames) == [b"1", b"2"])
        assert trainer.came.index("w1 hello") < trainer.came.index("w1 frame")
        await trainer.lease("w2", 5)
        await trainer.lease("w1", 6)
        await until(lambda: (one.leases(), two.leases()) == ([6], [5]))
        two.call.cancel()
        await until(lambda: "w2 gone" in trainer.came)
        assert "w1 gone" not in trainer.came
        assert set(home.traffic.sent_bytes) == {"far"}
        assert set(far.traffic.sent_bytes) == {"home"}


@played
async def test_each_chunk_crosses_once_for_two_readers_and_before_the_publication_is_complete() -> None:
    async with (
        two_regions() as (home, trainer, far),
        Reader(far.address) as one,
        Reader(far.address) as two,
    ):
        *head, closing = anchor(0, num_bytes=200_000, chunk_bytes=4096).records()
        trainer.publish(bundle())
        for record in head:
            trainer.publish_record(record)
        num_chunks = 1 + sum(isinstance(record, Chunk) for record in head)
        await until(lambda: one.num_chunks == two.num_chunks == num_chunks)
        assert one.names() == two.names() == ["bundle 0.0"]
        trainer.publish_record(closing)
        await until(lambda: one.names() == two.names() == ["bundle 0.0", "anchor 0.0"])
        assert one.state() == two.state() == state_of(0, num_bytes=200_000)
        payload_bytes = one.got[1].payload_bytes
        assert payload_bytes < home.traffic.sent_bytes["far"] < 1.05 * payload_bytes


@played
async def test_after_the_home_gateway_was_killed_workers_say_hello_again_and_work_goes_on() -> None:
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(gateway())
        first = await stack.enter_async_context(Trainer(home.address))
        far = await stack.enter_async_context(remote_gateway(home.address))
        worker = await stack.enter_async_context(Worker(far.address, "w1"))
        reader = await stack.enter_async_context(Reader(far.address))
        first.publish(bundle(), anchor(0), delta(0, 1))
        # A gateway that is late passes on the newest version alone, whole.
        await until(lambda: "w1 hello" in first.came and reader.names()[-1:] in (["delta 0.1"], ["anchor 0.1"]))

        await home.server.stop(None)
        assert isinstance(await worker.ended(), Unreachable)
        again = await stack.enter_async_context(Worker(far.address, "w1"))
        await again.frame(b"early")
        home = await stack.enter_async_context(gateway(address=home.address))
        second = await stack.enter_async_context(Trainer(home.address, fork=1))
        while again.error is None and not second.frames:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        if again.error is not None:  # it came while the next attempt failed: a worker just tries again
            again = await stack.enter_async_context(Worker(far.address, "w1"))
            await again.frame(b"late")
        await until(lambda: bool(second.frames))
        assert second.came[:2] == ["w1 hello", "w1 frame"]
        await second.lease("w1", 3)
        await until(lambda: again.leases() == [3])
        second.publish(bundle(1), anchor(1, fork=1), delta(1, 2, fork=1))
        await until(lambda: reader.names()[-1] in ("delta 1.2", "anchor 1.2"))
        assert reader.error is None, "readers of the far gateway notice nothing"


@played
async def test_a_message_of_a_worker_that_did_not_greet_is_not_passed_on() -> None:
    async with (
        two_regions() as (_, trainer, far),
        Worker(far.address, "w1") as worker,
    ):
        await worker.frame(b"stray", worker_id="stranger")
        await worker.frame(b"mine")
        await until(lambda: bool(trainer.frames))
        await worker.gone()
        await worker.frame(b"after")
        await worker.hello("w2")
        await until(lambda: "w2 hello" in trainer.came)
        assert trainer.frames == [b"mine"]


@played
async def test_an_upstream_waits_until_its_job_is_known_at_home() -> None:
    async with gateway() as home:
        hub = home.hubs.get(JOB)
        home.hubs.drop(JOB)
        async with remote_gateway(home.address) as far, Reader(far.address, has_bundle=True) as reader:
            await asyncio.sleep(0.05)
            home.hubs.open(JOB, home.frames, weight_cache(), secret=JOB_SECRET)
            assert home.hub is not hub
            async with Trainer(home.address) as trainer:
                trainer.publish(bundle(), anchor(0))
                await until(lambda: reader.names() == ["anchor 0.0"])


@played
async def test_a_finish_reaches_a_remote_worker_though_the_trainer_leaves_at_once() -> None:
    async with (
        gateway() as home,
        remote_gateway(home.address) as far,
        Worker(far.address, "w1") as worker,
    ):
        async with Trainer(home.address) as trainer:
            await until(lambda: trainer.came == ["w1 hello"])
            await trainer.send(gateway_pb2.RolloutDown(worker_id="w1", finish=gateway_pb2.Finish(reason="done")))
            await trainer.call.done_writing()
            await trainer.ended()
        await until(lambda: bool(worker.got))
        assert worker.got[0].finish.reason == "done"


@played
async def test_what_is_refused_is_asked_for_again_less_and_less_often_and_work_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        two_regions() as (_, trainer, far),
        Worker(far.address, "w1") as worker,
    ):
        num_refused = 0

        async def refused(_: PublicationRecord) -> None:
            nonlocal num_refused
            num_refused += 1
            raise CorruptFrame("of a test")

        monkeypatch.setattr(far.hub.feed, "append_from_above", refused)
        trainer.publish(bundle(), anchor(0))
        await until(lambda: num_refused >= 3)
        await asyncio.sleep(0.5)
        assert num_refused <= 4
        await worker.frame(b"1")
        await until(lambda: trainer.frames == [b"1"])
        assert worker.error is None
        assert trainer.came.count("w1 hello") == 1
