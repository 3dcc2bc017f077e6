"""Converts between the protobuf messages of a job's streams and the gateway's values (messages.py).

A relayed message is not decoded: its value carries the protobuf message as it came, and the conversion back returns the
same object. A frame is decoded only if this gateway spools it, and a commit only if it is for this region's spool.
"""

from typing import assert_never

from periplus.net.convert import keyed_frame_from_pb, keyed_frame_to_pb, keys_from_pb, spooled_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.transport_keys import KeyedFrame
from region_agent.gateway.messages import (
    AnchorRequest,
    FromAbove,
    FromBelow,
    LocalCommit,
    LostWorker,
    RelayedCommit,
    RelayedDown,
    RelayedUp,
    SpoolReceipt,
    ToAbove,
    ToBelow,
    UpKind,
)

_KINDS = {"hello": UpKind.HELLO, "gone": UpKind.GONE, "frame": UpKind.FRAME, "gateway": UpKind.GATEWAY}
"""Kinds by the name of the body's field; every other body is UpKind.OTHER."""


def from_below(message: gateway_pb2.RolloutUp, *, is_local: bool) -> FromBelow:
    """Return the value of a message from below. `is_local` says that its stream is one of this region's workers.

    Raises: CorruptFrame, UnknownCodec for a local worker's frame that has no transport key or an unknown codec.
    """
    kind = _KINDS.get(message.WhichOneof("body") or "", UpKind.OTHER)
    if kind is UpKind.FRAME and is_local:
        return KeyedFrame(*keyed_frame_from_pb(message))
    return RelayedUp(worker_id=message.worker_id, kind=kind, payload=message)


def to_above(message: RelayedUp | KeyedFrame | LostWorker, *, region: str) -> gateway_pb2.RolloutUp:
    """Return the message to the home gateway. `region` is this gateway's, which keeps the frame if there is one."""
    match message:
        case RelayedUp():
            assert isinstance(message.payload, gateway_pb2.RolloutUp)
            return message.payload
        case KeyedFrame(key, frame):
            return keyed_frame_to_pb(key, frame, region)
        case LostWorker():
            gone = gateway_pb2.WorkerGone(reason=message.reason, connection_lost=message.connection_lost)
            return gateway_pb2.RolloutUp(worker_id=message.worker_id, gone=gone)
        case _:
            assert_never(message)


def to_trainer(message: ToAbove, *, region: str) -> gateway_pb2.TrainerDown:
    """Return the message to the trainer. `region` is this gateway's."""
    if isinstance(message, AnchorRequest):
        return gateway_pb2.TrainerDown(anchor=gateway_pb2.AnchorRequest())
    return gateway_pb2.TrainerDown(up=to_above(message, region=region))


def from_above(message: gateway_pb2.RolloutDown, *, region: str) -> FromAbove:
    """Return the value of a message from above. `region` is this gateway's."""
    if not message.HasField("committed"):
        return RelayedDown(worker_id=message.worker_id, is_finish=message.HasField("finish"), payload=message)
    committed = message.committed
    if committed.region != region:
        return RelayedCommit(region=committed.region, payload=message)
    return LocalCommit(keys_from_pb(message.worker_id, committed.epoch, committed.sequences))


def to_below(message: ToBelow) -> list[gateway_pb2.RolloutDown]:
    """Return the messages to a worker or a remote gateway: one, or for a receipt one per start of a process."""
    match message:
        case RelayedDown() | RelayedCommit():
            assert isinstance(message.payload, gateway_pb2.RolloutDown)
            return [message.payload]
        case SpoolReceipt():
            return spooled_to_pb(message.keys)
        case _:
            assert_never(message)
