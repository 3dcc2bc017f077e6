"""The emulator's gRPC service: convert, call, convert.

A rate of 0 on the wire means unlimited, which is infinity inside.
"""

import math
from typing import Any

import grpc.aio

from periplus import errors
from periplus.pb.v1 import wan_pb2, wan_pb2_grpc
from periplus.wan.relay import Relay
from periplus.wan.shaping import LinkCount, LinkProperty

_PROPERTY_TO_WIRE = {
    LinkProperty.RATE: wan_pb2.LINK_PROPERTY_RATE,
    LinkProperty.RTT: wan_pb2.LINK_PROPERTY_RTT,
    LinkProperty.DROP: wan_pb2.LINK_PROPERTY_DROP,
}
_PROPERTY_FROM_WIRE = {wire: property_ for property_, wire in _PROPERTY_TO_WIRE.items()}

_Context = grpc.aio.ServicerContext[Any, Any]


def set_link_request(src_region: str, dst_region: str, property_: LinkProperty, value: float) -> wan_pb2.SetLinkRequest:
    """Return the message that sets one property of a link."""
    if property_ is LinkProperty.RATE and value == math.inf:
        value = 0.0
    return wan_pb2.SetLinkRequest(
        src_region=src_region, dst_region=dst_region, property=_PROPERTY_TO_WIRE[property_], value=value
    )


def link_count_to_wire(count: LinkCount) -> wan_pb2.LinkCounter:
    """Return the message for one link's counters."""
    return wan_pb2.LinkCounter(
        src_region=count.src_region,
        dst_region=count.dst_region,
        delivered_bytes=count.delivered_bytes,
        queued_bytes=count.queued_bytes,
        rate_bits_per_s=0.0 if count.rate_bits_per_s == math.inf else count.rate_bits_per_s,
        rtt_s=count.rtt_s,
        dropped=count.dropped,
    )


def link_count_from_wire(message: wan_pb2.LinkCounter) -> LinkCount:
    """Return the counters of one link from their message."""
    return LinkCount(
        src_region=message.src_region,
        dst_region=message.dst_region,
        delivered_bytes=message.delivered_bytes,
        queued_bytes=message.queued_bytes,
        rate_bits_per_s=message.rate_bits_per_s or math.inf,
        rtt_s=message.rtt_s,
        dropped=message.dropped,
    )


class WanService(wan_pb2_grpc.WanEmulatorServicer):
    """gRPC servicer that controls one relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def Attach(self, request: wan_pb2.AttachRequest, context: _Context) -> wan_pb2.AttachResponse:
        self._relay.attach(request.region, request.address)
        return wan_pb2.AttachResponse()

    async def Route(self, request: wan_pb2.RouteRequest, context: _Context) -> wan_pb2.RouteResponse:
        address, dst_region = self._relay.route(request.src_region, request.address)
        return wan_pb2.RouteResponse(address=address, dst_region=dst_region)

    async def SetLink(self, request: wan_pb2.SetLinkRequest, context: _Context) -> wan_pb2.SetLinkResponse:
        property_ = _PROPERTY_FROM_WIRE.get(request.property)
        if property_ is None:
            raise errors.ConfigError(f"link property {request.property} is unknown; set rate, rtt or drop")
        unlimited = property_ is LinkProperty.RATE and request.value == 0
        value = math.inf if unlimited else request.value
        self._relay.set_link(request.src_region, request.dst_region, property_, value)
        return wan_pb2.SetLinkResponse()

    async def Counters(self, request: wan_pb2.CountersRequest, context: _Context) -> wan_pb2.CountersResponse:
        return wan_pb2.CountersResponse(
            links=[link_count_to_wire(count) for count in self._relay.counts()], scale=self._relay.factor
        )
