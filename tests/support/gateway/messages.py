"""Messages of trainers."""

from collections.abc import Iterable

from periplus.net.convert import spooled_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.transport_keys import FrameKey


def committed_to_pb(region: str, keys: Iterable[FrameKey]) -> list[gateway_pb2.RolloutDown]:
    """Return the messages that tell a region's gateway that the trainer's ledger has committed these frames."""
    spooled = [(each.worker_id, each.spooled) for each in spooled_to_pb(keys)]
    return [
        gateway_pb2.RolloutDown(
            worker_id=worker_id,
            committed=gateway_pb2.FramesCommitted(region=region, epoch=each.epoch, sequences=each.sequences),
        )
        for worker_id, each in spooled
    ]
