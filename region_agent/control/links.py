"""Measures the link to another region's gateway by one timed transfer: round trips of an empty chunk, then a payload.

The round-trip time is the smallest of several, because queues only add to it. The throughput is the payload divided by
the time from writing its first byte to the acknowledgement of its last, less one round trip. So it is what a single
gRPC stream carries on this path.
"""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from periplus.errors import ConfigError, PeriplusError, Unreachable
from periplus.net import rpc
from periplus.net.resolver import AddressResolver
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.telemetry import event
from region_agent.gateway.service import REGION_KEY

log = logging.getLogger(__name__)

NUM_PINGS = 5
"""Number of round trips that are measured. Chosen by hand."""
PROBE_CHUNK_BYTES = 64 << 10
"""Bytes of one chunk of the payload. Chosen by hand."""
PROBE_DEADLINE_S = 15.0
"""Seconds until a probe is given up. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """Result of a probe of the directed path to one region. `sent_bytes` counts payload bytes."""

    rtt_s: float
    throughput_bits_per_s: float
    sent_bytes: int


async def probe(
    address: str,
    region: str,
    dst_region: str,
    payload_bytes: int,
    now: Callable[[], float],
    secured: rpc.Secured | None = None,
) -> LinkMeasurement:
    """Measure the path to the gateway of `dst_region` at `address`, as the gateway of `region`.

    Raises: ConfigError if another region's gateway answers, Unreachable, TimedOut.
    """
    async with rpc.channel(address, secured) as channel:
        with rpc.remote_errors(address):
            call = gateway_pb2_grpc.GatewayStub(channel).Probe(
                metadata=((REGION_KEY, region),), timeout=PROBE_DEADLINE_S
            )
            acks = call.__aiter__()
            round_trips = []
            for sequence in range(NUM_PINGS):
                start_s = now()
                await call.write(gateway_pb2.ProbeChunk(sequence=sequence))
                ack = await _next(acks, address)
                round_trips.append(now() - start_s)
                if ack.region != dst_region:
                    raise ConfigError(
                        f"the gateway at {address} is of {ack.region}, not of {dst_region}: nothing was measured; "
                        f"give the agent of {dst_region} an --advertise at which {region} reaches it"
                    )
            # The payload is a whole number of chunks, at least one; only the last one is acknowledged.
            start_s = now()
            num_chunks = max(1, -(-payload_bytes // PROBE_CHUNK_BYTES))
            for index in range(num_chunks):
                last = index == num_chunks - 1
                await call.write(
                    gateway_pb2.ProbeChunk(sequence=NUM_PINGS + index, data=bytes(PROBE_CHUNK_BYTES), last=last)
                )
            await _next(acks, address)
            elapsed_s = now() - start_s
            await call.done_writing()
    rtt_s = min(round_trips)
    sent_bytes = num_chunks * PROBE_CHUNK_BYTES
    # The transfer may take hardly longer than the round trip: bound the estimate away from division by zero.
    transfer_s = max(elapsed_s - rtt_s, elapsed_s * 0.01)
    return LinkMeasurement(rtt_s=rtt_s, throughput_bits_per_s=8 * sent_bytes / transfer_s, sent_bytes=sent_bytes)


async def answer(
    order: control_pb2.ProbeOrder,
    region: str,
    resolver: AddressResolver,
    now: Callable[[], float],
    secured: Callable[[], rpc.Secured | None],
) -> control_pb2.LinkMeasurement:
    """Return the answer of `region` to the coordinator's order to measure a link: what was measured, or why not."""
    try:
        address = await resolver.resolve(order.gateway_address)
        found = await probe(address, region, order.dst_region, order.payload_bytes, now, secured())
    except PeriplusError as error:
        event(log, logging.WARNING, "probe_failed", dst=order.dst_region, why=error)
        return control_pb2.LinkMeasurement(src_region=region, dst_region=order.dst_region, error=str(error))
    event(
        log,
        logging.INFO,
        "link",
        dst=order.dst_region,
        rtt_ms=round(found.rtt_s * 1e3, 1),
        mbit_per_s=round(found.throughput_bits_per_s / 1e6, 1),
    )
    return control_pb2.LinkMeasurement(
        src_region=region,
        dst_region=order.dst_region,
        rtt_s=found.rtt_s,
        throughput_bits_per_s=found.throughput_bits_per_s,
        probe_bytes=found.sent_bytes,
    )


async def _next(acks: AsyncIterator[gateway_pb2.ProbeAck], address: str) -> gateway_pb2.ProbeAck:
    async for ack in acks:
        return ack
    raise Unreachable(f"the gateway at {address} ended the probe early")
