"""A gateway over real gRPC: who is routed where, who hears of whom, and what readers get."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from periplus.errors import (
    Conflict,
    CorruptFrame,
    Denied,
    Fenced,
    Forged,
    NotFound,
    StateError,
    TimedOut,
    Unreachable,
    WireError,
)
from periplus.net import rpc
from periplus.net.convert import publication_record_to_pb
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.publication import Closing, PublicationKind, derived_publication
from periplus.values.policy import Policy
from region_agent.gateway import service
from region_agent.gateway.convert import from_above
from region_agent.gateway.service import GatewayService
from region_agent.weights.disk import restore
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.loopback import (
    JOB,
    Reader,
    Trainer,
    Worker,
    anchor,
    bundle,
    certified,
    delta,
    gateway,
    home_region,
    played,
    state_of,
    until,
    weight_cache,
)
from tests.support.keys import AUTHORITY, JOB_SECRET
from tests.support.publication.signed import payload_parts
from tests.support.publication.versions import Versions, small_states

# ---- who is answered -------------------------------------------------------------------------------------------------


@played
@pytest.mark.parametrize("metadata", [(), metadata_of_job(""), metadata_of_job("0" * 64), metadata_of_job(JOB_SECRET)])
async def test_only_who_shows_the_secret_of_the_job_is_answered(metadata: tuple[tuple[str, str], ...]) -> None:
    async with gateway() as home, rpc.channel(home.address) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        hello = gateway_pb2.RolloutUp(worker_id="w", hello=gateway_pb2.WorkerHello(job_id=JOB))
        trainer = gateway_pb2.TrainerHello(job_id=JOB, fork=999, public_key=AUTHORITY.public_key)

        async def rollout() -> None:
            call = stub.Rollout(metadata=metadata)
            await call.write(hello)
            await call.read()

        async def subscribe() -> None:
            await stub.Subscribe(gateway_pb2.SubscribeRequest(job_id=JOB, reader_id="r"), metadata=metadata).read()

        async def train() -> None:
            call = stub.Train(metadata=metadata)
            await call.write(gateway_pb2.TrainerUp(hello=trainer))
            await call.read()

        async def traffic() -> None:
            await stub.Traffic(gateway_pb2.TrafficRequest(job_id=JOB), metadata=metadata)

        for ask in (rollout, subscribe, train, traffic):
            refused = pytest.raises(Denied, match="secret of job")
            is_known = metadata == metadata_of_job(JOB_SECRET)
            # Who is answered may wait for something to come.
            served = contextlib.suppress(TimeoutError)
            with served if is_known else refused, rpc.remote_errors(home.address):
                async with asyncio.timeout(0.2 if is_known else 5.0):
                    await ask()


@played
async def test_a_trainer_is_followed_only_once_its_key_is_certified() -> None:
    async def certify(job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        if fork == 0:
            return await certified(job_id, fork, public_key)
        return control_pb2.CertificateAnswer(job_id=job_id, fork=fork, refused="it is not the fork of this job")

    async with gateway(certify=certify) as home, Trainer(home.address) as trainer:
        await until(lambda: home.hub.trainer_slot.trainer is not None)
        async with rpc.channel(home.address) as channel:
            stub: Any = gateway_pb2_grpc.GatewayStub(channel)
            call = stub.Train(metadata=metadata_of_job(JOB_SECRET))
            hello = gateway_pb2.TrainerHello(job_id=JOB, fork=999, public_key=bytes(32))
            await call.write(gateway_pb2.TrainerUp(hello=hello))
            assert "not the fork" in (await call.read()).certificate.refused
            await call.done_writing()
            with pytest.raises(Denied, match="not certified"), rpc.remote_errors(home.address):
                await call.read()
        async with Worker(home.address, "w1"):
            await until(lambda: trainer.came == ["w1 hello"])
        assert trainer.error is None


# ---- rollout streams -------------------------------------------------------------------------------------------------


@played
async def test_messages_go_up_in_order_and_down_to_the_worker_that_they_name() -> None:
    async with (
        home_region() as (home, trainer),
        Worker(home.address, "w1") as one,
        Worker(home.address, "w2") as two,
    ):
        for payload in (b"1", b"2", b"3"):
            await one.frame(payload)
        await until(lambda: len(trainer.frames) == 3 and "w2 hello" in trainer.came)
        assert trainer.frames == [b"1", b"2", b"3"]
        assert [came for came in trainer.came if came.startswith("w1")] == ["w1 hello"] + ["w1 frame"] * 3
        await trainer.lease("w2", 7)
        await trainer.lease("nobody", 8)
        await trainer.lease("w1", 9)
        await until(lambda: one.leases() == [9] and two.leases() == [7])


@played
async def test_workers_of_an_ended_stream_are_reported_gone_exactly_once() -> None:
    async with home_region() as (home, trainer):
        async with Worker(home.address, "w1", region="far") as stream:
            await stream.hello("w2")
            await stream.gone()
            await until(lambda: "w1 gone" in trainer.came)
        await until(lambda: "w2 gone" in trainer.came)
        async with Worker(home.address, "w3"):
            await until(lambda: "w3 hello" in trainer.came)
        assert trainer.came == ["w1 hello", "w2 hello", "w1 gone", "w2 gone", "w3 hello"] or (
            sorted(trainer.came[:4]) == ["w1 gone", "w1 hello", "w2 gone", "w2 hello"]
        )


@played
async def test_the_newest_hello_wins_a_worker_id_and_the_old_stream_ends_without_signing_it_off() -> None:
    async with home_region() as (home, trainer), Worker(home.address, "w1") as old:
        await until(lambda: trainer.came == ["w1 hello"])
        async with Worker(home.address, "w1") as new:
            await until(lambda: trainer.came == ["w1 hello"] * 2)
            assert isinstance(await old.ended(), Unreachable)
            await trainer.lease("w1", 1)
            await until(lambda: new.leases() == [1])
            assert old.leases() == []
            assert "w1 gone" not in trainer.came


@played
async def test_a_rollout_stream_without_a_hello_is_refused() -> None:
    async with gateway() as home, Worker(home.address, "w1", hello=False) as worker:
        await worker.frame(b"x")
        assert isinstance(await worker.ended(), StateError)
        assert not len(home.hub.up)


@played
async def test_messages_from_before_the_trainer_wait_for_it() -> None:
    async with gateway() as home, Worker(home.address, "w1") as worker:
        await worker.frame(b"early")
        await until(lambda: len(home.hub.up) == 2)
        async with Trainer(home.address) as trainer:
            await until(lambda: trainer.came == ["w1 hello", "w1 frame"])


@played
async def test_what_waits_for_a_stream_that_is_ended_is_delivered_first() -> None:
    async with home_region() as (home, trainer), Worker(home.address, "w1") as worker:
        await until(lambda: trainer.came == ["w1 hello"])
        finish = gateway_pb2.RolloutDown(worker_id="w1", finish=gateway_pb2.Finish(reason="done"))
        await home.hub.send_down(from_above(finish, region="home"))
        home.hub.end_streams()
        assert isinstance(await worker.ended(), Unreachable)
        assert worker.got[0].finish.reason == "done"


# ---- trainers --------------------------------------------------------------------------------------------------------


@played
async def test_a_second_trainer_of_the_same_fork_is_refused_until_the_first_has_left() -> None:
    async with gateway() as home:
        async with Trainer(home.address) as first:
            await until(lambda: home.hub.trainer_slot.trainer is not None)
            async with Trainer(home.address) as second:
                error = await second.ended()
                assert isinstance(error, Conflict)
                assert not isinstance(error, Fenced)
            assert first.error is None
        await until(lambda: home.hub.trainer_slot.trainer is None)
        async with Trainer(home.address):
            await until(lambda: home.hub.trainer_slot.trainer is not None)


@played
async def test_a_trainer_of_a_newer_fork_takes_over_and_hears_of_every_worker() -> None:
    async with gateway() as home, Trainer(home.address) as old, Worker(home.address, "w1") as worker:
        await until(lambda: old.came == ["w1 hello"])
        async with Trainer(home.address, fork=1) as new:
            assert isinstance(await old.ended(), Fenced)
            assert isinstance(await worker.ended(), Unreachable), "it must say hello to the new trainer"
            async with Worker(home.address, "w1") as again:
                await until(lambda: new.came == ["w1 hello"])
                await new.lease("w1", 1)
                await until(lambda: again.leases() == [1])
            async with Trainer(home.address, fork=0) as late:
                assert isinstance(await late.ended(), Conflict)
            assert new.error is None


@played
async def test_a_trainer_that_follows_another_hears_of_the_workers_that_are_there() -> None:
    async with gateway() as home, Worker(home.address, "w1") as worker:
        async with Trainer(home.address) as first:
            await until(lambda: first.came == ["w1 hello"])
        await until(lambda: home.hub.trainer_slot.trainer is None)
        assert worker.error is None, "a worker waits for the next trainer"
        async with Trainer(home.address, fork=1):
            assert isinstance(await worker.ended(), Unreachable)


@played
async def test_a_fenced_trainer_cannot_publish_into_the_publication_of_its_successor() -> None:
    async with gateway() as home, Trainer(home.address) as old:
        old.publish(bundle())
        await until(lambda: home.hub.feed.log.has_bundle)
        async with Trainer(home.address, fork=1) as new, Reader(home.address, has_bundle=True) as reader:
            await until(lambda: home.hub.trainer_slot.trainer is not None and home.hub.trainer_slot.trainer.fork == 1)
            opening, *rest = anchor(5, fork=1).records()
            new.publish_record(opening)
            await until(lambda: home.hub.feed.num_changes > 4)
            old.publish(anchor(6))
            with pytest.raises(Fenced), rpc.remote_errors(home.address):
                await old.publishing
            for record in rest:
                new.publish_record(record)
            await until(lambda: reader.names() == ["anchor 1.5"])


@played
async def test_training_records_are_passed_on() -> None:
    async with home_region() as (home, trainer):
        record = gateway_pb2.TrainerUp()
        record.record.job_id, record.record.kind = JOB, "step"
        await trainer.call.write(record)
        await until(lambda: [each.job_id for each in home.records] == [JOB])


@played
async def test_a_publication_that_breaks_the_rules_is_refused_and_readers_never_see_it_end() -> None:
    async with home_region() as (home, trainer), Reader(home.address, has_bundle=True) as reader:
        *records, closing = anchor(1).records()
        assert isinstance(closing, Closing)
        for record in (*records, replace(closing, state_digest=bytes(32))):
            trainer.publish_record(record)
        with pytest.raises(Forged), rpc.remote_errors(home.address):
            await trainer.publishing
        async with Trainer(home.address, fork=1) as next_:
            next_.publish(anchor(2, fork=1))
            await until(lambda: reader.names() == ["anchor 1.2"])
        assert home.hub.feed.num_refused == {"Forged": 1}


@played
async def test_a_trainer_cannot_publish_what_looks_derived() -> None:
    async with home_region() as (home, trainer):
        attestation = anchor(1).attestation
        parts = payload_parts(anchor(1))
        trainer.publish(derived_publication(attestation, kind=PublicationKind.ANCHOR, parts=parts))
        with pytest.raises(CorruptFrame, match="derived"), rpc.remote_errors(home.address):
            await trainer.publishing


# ---- readers ---------------------------------------------------------------------------------------------------------


@played
async def test_a_late_reader_gets_the_bundle_a_way_to_the_newest_state_and_then_what_comes() -> None:
    async with home_region() as (home, trainer):
        trainer.publish(bundle(), anchor(0), delta(0, 1), delta(1, 2), anchor(2), delta(2, 3))
        await until(lambda: home.hub.feed.log.newest == Policy(0, 3))
        async with Reader(home.address) as reader:
            await until(lambda: reader.policy == Policy(0, 3))
            trainer.publish(delta(3, 5))
            await until(lambda: reader.policy == Policy(0, 5))
            assert reader.names()[0] == "bundle 0.0"
            assert reader.names()[-1] == "delta 0.5"
            assert reader.state() == state_of(5)


@played
async def test_a_reader_that_has_a_state_gets_only_the_deltas_from_there() -> None:
    made = Versions(small_states(4))
    async with home_region() as (home, trainer):
        trainer.publish(made.bundle(), made.anchor(0), *made.chain(0, 3))
        await until(lambda: home.hub.feed.log.newest == Policy(0, 3))
        async with Reader(home.address, have=Policy(0, 1), has_bundle=True) as reader:
            await until(lambda: len(reader.got) == 2)
            assert reader.names() == ["delta 0.2", "delta 0.3"]


@played
async def test_chunks_are_forwarded_before_the_publication_is_complete() -> None:
    async with (
        home_region() as (home, trainer),
        Reader(home.address, has_bundle=True) as one,
        Reader(home.address, has_bundle=True) as two,
    ):
        *head, closing = anchor(1, num_bytes=4000, chunk_bytes=1 << 10).records()
        for i, record in enumerate(head):
            trainer.publish_record(record)
            await until(lambda i=i: one.num_chunks == two.num_chunks == i)  # type: ignore[misc]
        assert one.got == two.got == []
        trainer.publish_record(closing)
        await until(lambda: one.names() == two.names() == ["anchor 0.1"])
        assert one.state() == two.state() == state_of(1, num_bytes=4000)


@played
async def test_a_reader_too_slow_for_what_is_kept_gets_the_copy_of_its_gateway() -> None:
    async with (
        gateway(weights=weight_cache(chain_versions=2)) as home,
        Trainer(home.address) as trainer,
        Reader(home.address, has_bundle=True) as slow,
    ):
        size = 1 << 20
        trainer.publish(anchor(0, num_bytes=size))
        await until(lambda: slow.names() == ["anchor 0.0"])
        slow.may_read.clear()
        for version in range(1, 25):
            trainer.publish(delta(version - 1, version, num_bytes=size, chunk_bytes=1 << 18))
            await until(lambda version=version: home.hub.feed.log.newest == Policy(0, version))  # type: ignore[misc]
        # How far the copy has gone depends on what the slow reader was being sent when each version came.
        await until(lambda: home.hub.weight_cache.copy_policy not in (None, Policy(0, 0)))
        slow.may_read.set()
        await until(lambda: slow.policy == Policy(0, 24))
        assert slow.state() == state_of(24, num_bytes=size)
        assert len(slow.got) < 20, "it was not too slow"
        assert any(each.opening.is_derived for each in slow.got)
        assert trainer.came == []


@played
async def test_newcomers_without_a_way_to_the_newest_state_cause_one_request_for_an_anchor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "LOG_BYTES", 1000)
    disk = FaultyWeightFiles()
    async with gateway(weights=weight_cache(disk)) as home, Trainer(home.address) as trainer:
        disk.room_bytes = 0  # no copy
        trainer.publish(anchor(0, num_bytes=400), *(delta(i, i + 1, num_bytes=400) for i in range(4)))
        await until(lambda: home.hub.feed.log.newest == Policy(0, 4))
        async with (
            Reader(home.address, has_bundle=True) as one,
            Reader(home.address, has_bundle=True) as two,
            Reader(home.address, has_bundle=True, have=Policy(0, 4)) as old,
        ):
            await until(lambda: trainer.came == ["anchor?"])
            trainer.publish(delta(4, 5, num_bytes=400))
            await until(lambda: old.names() == ["delta 0.5"])
            assert trainer.came == ["anchor?"]
            trainer.publish(anchor(5, num_bytes=400))
            await until(lambda: one.names() == two.names() == ["anchor 0.5"])
            trainer.publish(delta(5, 6, num_bytes=400))
            await until(lambda: all(reader.names()[-1] == "delta 0.6" for reader in (one, two, old)))
            assert "anchor 0.5" not in old.names()
            assert trainer.came == ["anchor?"]


@played
async def test_a_job_that_is_not_served_here_is_not_found_and_dropping_one_ends_its_readers() -> None:
    async with gateway() as home:
        async with Reader(home.address, job_id="other") as reader:
            assert isinstance(await reader.ended(), NotFound)
        async with Reader(home.address) as reader, Worker(home.address, "w1") as worker:
            await until(lambda: len(home.hub.up) > 0)
            home.hubs.drop(JOB)
            assert isinstance(await reader.ended(), NotFound)
            assert isinstance(await worker.ended(), Unreachable)
        async with Worker(home.address, "w1") as worker:
            assert isinstance(await worker.ended(), NotFound)


@pytest.mark.parametrize("call", ["Rollout", "Train", "Publish"])
@played
async def test_streams_that_end_before_they_begin_do_no_harm(call: str) -> None:
    async with gateway() as home, rpc.channel(home.address) as channel:
        stream = getattr(gateway_pb2_grpc.GatewayStub(channel), call)()
        await stream.done_writing()
        if call == "Publish":
            assert (await stream).num_publications == 0
            return
        with pytest.raises(StateError, match="ended before"), rpc.remote_errors(home.address):
            await anext(aiter(stream))


@pytest.mark.parametrize("method", ["Subscribe", "Rollout"])
@played
async def test_a_write_to_a_peer_that_has_left_ends_the_call_as_a_cancelled_one(method: str) -> None:
    class Left:
        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return metadata_of_job(JOB_SECRET)

        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

        async def write(self, _: object) -> None:
            raise grpc.aio.InternalError("failed to execute a batch")

    async def hello() -> AsyncGenerator[gateway_pb2.RolloutUp]:
        yield gateway_pb2.RolloutUp(worker_id="w", hello=gateway_pb2.WorkerHello(job_id=JOB))
        await asyncio.Event().wait()

    async with home_region() as (home, trainer):
        trainer.publish(bundle(), anchor(0))
        await until(lambda: home.hub.feed.log.newest is not None)
        service: Any = GatewayService(home.hubs, home.traffic, home.records.append, certified)
        request: Any = hello() if method == "Rollout" else gateway_pb2.SubscribeRequest(job_id=JOB)
        call = asyncio.create_task(getattr(service, method)(request, Left()))
        if method == "Rollout":
            await until(lambda: trainer.came == ["w hello"])
            await trainer.lease("w", 1)
        with pytest.raises(asyncio.CancelledError):
            await call


@played
async def test_nobody_speaks_for_a_worker_that_did_not_say_hello_over_the_stream() -> None:
    async with (
        home_region() as (home, trainer),
        Worker(home.address, "w1"),
        Worker(home.address, "liar") as liar,
    ):
        await until(lambda: len(trainer.came) == 2)
        for body in ("started", "failed", "capacity", "proof"):
            message = gateway_pb2.RolloutUp(worker_id="w1")
            getattr(message, body).SetInParent()
            await liar.call.write(message)
        await liar.hello("w2")
        await until(lambda: "w2 hello" in trainer.came)
        assert sorted(trainer.came) == ["liar hello", "w1 hello", "w2 hello"]


@played
async def test_a_repeated_publication_of_the_trainer_does_not_cut_off_the_one_that_comes() -> None:
    """Every reader has what the trainer signed, and the secret of the job."""
    first = anchor(0)
    async with home_region() as (home, trainer), rpc.channel(home.address) as channel:
        await until(lambda: home.hub.trainer_slot.trainer is not None)
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        opening, *rest = first.records()
        trainer.publish_record(opening)
        await until(lambda: home.hub.feed.num_changes > 0)
        call = stub.Publish(iter([publication_record_to_pb(opening)]), metadata=metadata_of_job(JOB_SECRET))
        with pytest.raises(Denied, match="only the trainer"), rpc.remote_errors(home.address):
            await call
        for record in rest:
            trainer.publish_record(record)
        await until(lambda: home.hub.feed.log.newest == Policy(fork=0, version=0))
        assert trainer.error is None


# ---- limits ----------------------------------------------------------------------------------------------------------


@played
async def test_a_measurement_of_a_link_is_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_PROBE_BYTES", 100)
    monkeypatch.setattr(service, "PROBE_S", 0.2)
    async with gateway() as home, rpc.channel(home.address) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        call = stub.Probe()
        await call.write(gateway_pb2.ProbeChunk(data=bytes(100), last=True))
        assert (await call.read()).received_bytes == 100
        await call.write(gateway_pb2.ProbeChunk(data=b"1"))
        with pytest.raises(WireError, match="more than 100 bytes"), rpc.remote_errors(home.address):
            await call.read()
        with pytest.raises(TimedOut, match="measurement"), rpc.remote_errors(home.address):
            await stub.Probe().read()


@played
@pytest.mark.parametrize("method", ["Rollout", "Train"])
async def test_a_stream_without_its_first_message_is_ended(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HELLO_S", 0.1)
    async with gateway() as home, rpc.channel(home.address) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        with pytest.raises(TimedOut, match="no message"), rpc.remote_errors(home.address):
            await getattr(stub, method)().read()


@played
@pytest.mark.parametrize(
    "record",
    [
        control_pb2.StepRecord(job_id="another", kind="step"),
        control_pb2.StepRecord(job_id=JOB, kind="nonsense"),
    ],
)
async def test_a_record_that_would_end_the_session_of_the_region_ends_its_trainer_s_stream(
    record: control_pb2.StepRecord,
) -> None:
    async with home_region() as (home, trainer):
        await trainer.call.write(gateway_pb2.TrainerUp(record=record))
        assert isinstance(await trainer.ended(), WireError)
        assert home.records == []


@played
async def test_a_caller_that_names_no_region_is_refused() -> None:
    async with gateway() as home, rpc.channel(home.address) as channel:
        stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        metadata = (*metadata_of_job(JOB_SECRET), (service.REGION_KEY, "no region"))
        with pytest.raises(WireError, match="names no region"), rpc.remote_errors(home.address):
            await stub.Subscribe(gateway_pb2.SubscribeRequest(job_id=JOB), metadata=metadata).read()
        assert home.traffic.sent_bytes == {}
