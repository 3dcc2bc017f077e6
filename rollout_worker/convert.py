"""Protobuf <-> the worker's values."""

from periplus.pb.v1 import gateway_pb2
from periplus.policy import Policy
from periplus.trajectory import Purpose
from rollout_worker.queue import Lease


def lease_from_pb(message: gateway_pb2.Lease) -> Lease:
    """One lease."""
    return Lease(
        lease_id=message.lease_id,
        group=message.group,
        sample=message.sample,
        item=message.item,
        start_at=Policy(message.start_at.fork, message.start_at.version),
        consume_by_version=message.consume_by_version,
        purpose=Purpose.EVAL if message.purpose == gateway_pb2.PURPOSE_EVAL else Purpose.TRAIN,
    )
