"""What the agent says of links, against the emulator that made them: round trips, throughput, bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from periplus import clock
from periplus.errors import ConfigError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.tokens import metadata_of_job
from periplus.pb.v1 import gateway_pb2, gateway_pb2_grpc, wan_pb2_grpc
from periplus.wan import grid
from periplus.wan.client import LinkProperty, WanControl, address_resolver
from periplus.wan.relay import Relay
from periplus.wan.service import WanService
from region_agent.control import links as probe_module
from region_agent.control.links import PROBE_CHUNK_BYTES, probe
from region_agent.gateway.traffic import MAX_JOBS, Traffic, wire_bytes
from tests.support.gateway.loopback import (
    JOB,
    Reader,
    Trainer,
    Worker,
    anchor,
    bundle,
    gateway,
    play,
    remote_gateway,
    until,
)
from tests.support.keys import JOB_SECRET

ATTEMPTS = 10


@asynccontextmanager
async def emulator(*, rate_bits_per_s: float, rtt_s: float) -> AsyncIterator[str]:
    """Two regions, home and far, with the same link both ways."""
    relay = Relay(grid.unlimited(("home", "far")), asyncio.get_running_loop())
    server = rpc.server()
    wan_pb2_grpc.add_WanEmulatorServicer_to_server(WanService(relay), server)
    control = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    for src, dst in (("home", "far"), ("far", "home")):
        relay.set_link(src, dst, LinkProperty.RATE, rate_bits_per_s)
        relay.set_link(src, dst, LinkProperty.RTT, rtt_s)
    try:
        yield control
    finally:
        await server.stop(None)
        relay.close()


@asynccontextmanager
async def route_to(address: str, control: str) -> AsyncIterator[str]:
    """Where the far region dials to reach a gateway at home."""
    async with address_resolver("home", control) as home, address_resolver("far", control) as far:
        await home.announce(address)
        yield await far.resolve(address)


@pytest.mark.parametrize(
    ("mbit_per_s", "rtt_s", "payload_bytes"), [(40, 0.03, 1 << 20), (20, 0.1, 1 << 20), (100, 0.01, 2 << 20)]
)
def test_a_probe_measures_what_is_emulated(mbit_per_s: float, rtt_s: float, payload_bytes: int) -> None:
    async def scene() -> None:
        async with (
            emulator(rate_bits_per_s=mbit_per_s * 1e6, rtt_s=rtt_s) as control,
            gateway() as home,
            route_to(home.address, control) as route,
        ):
            rtts_s, rates = [], []
            # A busy machine makes a link look slower, and never faster: of some probes the best one counts.
            for _ in range(ATTEMPTS):
                measured = await probe(route, "far", "home", payload_bytes, clock.monotonic_s)
                assert measured.sent_bytes == payload_bytes
                rtts_s.append(measured.rtt_s)
                rates.append(measured.throughput_bits_per_s)
                if max(rates) >= mbit_per_s * 1e6 * 0.85 and min(rtts_s) <= rtt_s * 1.15:
                    break
            assert min(rtts_s) == pytest.approx(rtt_s, rel=0.15, abs=0.003)
            assert max(rates) == pytest.approx(mbit_per_s * 1e6, rel=0.15)

    play(scene)


def test_a_probe_of_nothing_measures_one_chunk() -> None:
    async def scene() -> None:
        async with gateway() as home:
            assert (await probe(home.address, "far", "home", 0, clock.monotonic_s)).sent_bytes == PROBE_CHUNK_BYTES

    play(scene)


def test_the_gateway_of_another_region_is_not_measured() -> None:
    async def scene() -> None:
        async with gateway() as home:
            with pytest.raises(ConfigError, match=r"is of home, not of elsewhere.*--advertise"):
                await probe(home.address, "far", "elsewhere", 1 << 20, clock.monotonic_s)

    play(scene)


def test_a_gateway_that_is_not_there_is_unreachable() -> None:
    async def scene() -> None:
        async with gateway() as home:
            pass
        with pytest.raises(Unreachable):
            await probe(home.address, "far", "home", 1 << 20, clock.monotonic_s)

    play(scene)


def test_a_link_that_carries_nothing_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "PROBE_DEADLINE_S", 0.3)

    async def scene() -> None:
        async with (
            emulator(rate_bits_per_s=1e9, rtt_s=0.001) as control,
            gateway() as home,
            route_to(home.address, control) as route,
            WanControl(control) as wan,
        ):
            await wan.set_link("far", "home", LinkProperty.DROP, 1)
            with pytest.raises(TimedOut):
                await probe(route, "far", "home", 1 << 20, clock.monotonic_s)

    play(scene)


def test_counted_bytes_agree_with_the_emulators_within_a_percent() -> None:
    async def scene() -> None:
        async with (
            emulator(rate_bits_per_s=400e6, rtt_s=0.01) as control,
            gateway() as home,
            WanControl(control) as wan,
            Trainer(home.address) as trainer,
        ):
            await wan.attach("home", home.address)
            async with (
                remote_gateway(home.address, control=control) as far,
                Reader(far.address) as reader,
                Worker(far.address, "w1") as worker,
            ):
                trainer.publish(bundle(), anchor(0, num_bytes=4_000_000, chunk_bytes=256 << 10))
                for _ in range(100):
                    await worker.frame(bytes(30_000))
                await until(lambda: len(reader.got) == 2 and len(trainer.frames) == 100)
                links = {(link.src_region, link.dst_region): link for link in await wan.counters()}
                counted = {
                    ("home", "far"): home.traffic.sent_bytes["far"],
                    ("far", "home"): far.traffic.sent_bytes["home"],
                }
                assert counted == {
                    ("home", "far"): home.traffic.jobs[JOB].sent_bytes["far"],
                    ("far", "home"): far.traffic.jobs[JOB].sent_bytes["home"],
                }
                assert home.traffic.pairs(JOB, "home") == counted, "the home gateway knows both directions"
                asked = gateway_pb2.TrafficRequest(job_id=JOB)
                async with rpc.channel(home.address) as channel:
                    answer = await gateway_pb2_grpc.GatewayStub(channel).Traffic(
                        asked, metadata=metadata_of_job(JOB_SECRET)
                    )
                assert {(pair.src_region, pair.dst_region): pair.sent_bytes for pair in answer.pairs} == counted
                for pair, sent_bytes in counted.items():
                    carried_bytes = links[pair].delivered_bytes + links[pair].queued_bytes
                    assert sent_bytes == pytest.approx(carried_bytes, rel=0.01), pair

    play(scene)


def test_framing_is_counted_by_message_and_by_frame() -> None:
    assert wire_bytes(0) == 5 + 9
    assert wire_bytes(16384 - 5) == 16384 + 9
    assert wire_bytes(16384 - 4) == 16385 + 2 * 9
    traffic = Traffic()
    traffic.sent("eu", 0)
    traffic.sent("eu", 1, "sums-1")
    assert traffic.sent_bytes == {"eu": 29}
    traffic.received("eu", 2, "sums-1")
    assert traffic.pairs("sums-1", "us") == {("us", "eu"): 15, ("eu", "us"): 16}
    assert traffic.pairs("sums-2", "us") == {}


def test_counters_are_kept_of_the_newest_jobs_only() -> None:
    traffic = Traffic()
    for i in range(MAX_JOBS + 3):
        traffic.sent("eu", 1, f"sums-{i}")
    assert list(traffic.jobs) == [f"sums-{i}" for i in range(3, MAX_JOBS + 3)]
    assert traffic.sent_bytes == {"eu": 15 * (MAX_JOBS + 3)}
