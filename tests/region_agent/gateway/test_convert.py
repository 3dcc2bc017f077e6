"""What the gateway reads of a message, and that the rest passes through as the same object."""

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.errors import CorruptFrame, UnknownCodec
from periplus.net.convert import keyed_frame_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.transport_keys import FrameKey, KeyedFrame
from region_agent.gateway.convert import from_above, from_below, to_above, to_below, to_trainer
from region_agent.gateway.messages import (
    AnchorRequest,
    LocalCommit,
    LostWorker,
    RelayedCommit,
    RelayedDown,
    RelayedUp,
    SpoolReceipt,
    UpKind,
)
from tests.support.gateway.messages import committed_to_pb

BODIES_UP = [field.name for field in gateway_pb2.RolloutUp.DESCRIPTOR.oneofs_by_name["body"].fields]
BODIES_DOWN = [field.name for field in gateway_pb2.RolloutDown.DESCRIPTOR.oneofs_by_name["body"].fields]
READ_UP = {"hello": UpKind.HELLO, "gone": UpKind.GONE, "frame": UpKind.FRAME, "gateway": UpKind.GATEWAY}


def key(sequence: int, epoch: int = 1) -> FrameKey:
    return FrameKey(worker_id="w", epoch=epoch, sequence=sequence)


def kept(sequence: int = 0) -> KeyedFrame:
    return KeyedFrame(key(sequence), Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"payload"))


@pytest.mark.parametrize("body", BODIES_UP)
def test_a_remote_gateway_s_message_goes_up_as_the_same_object_whatever_it_says(body: str) -> None:
    message = gateway_pb2.RolloutUp(worker_id="w")
    getattr(message, body).SetInParent()
    value = from_below(message, is_local=False)
    assert value == RelayedUp(worker_id="w", kind=READ_UP.get(body, UpKind.OTHER), payload=message)
    assert isinstance(value, RelayedUp)
    assert to_above(value, region="home") is message
    assert to_trainer(value, region="home").up == message


def test_a_message_of_a_kind_that_this_gateway_does_not_know_is_relayed() -> None:
    message = gateway_pb2.RolloutUp.FromString(
        gateway_pb2.RolloutUp(worker_id="w").SerializeToString() + b"\xfa\x01\x00"
    )
    value = from_below(message, is_local=True)
    assert isinstance(value, RelayedUp)
    assert value.kind is UpKind.OTHER
    assert to_above(value, region="home").SerializeToString() == message.SerializeToString()


def test_a_local_frame_is_decoded_and_goes_up_with_the_region_that_keeps_it() -> None:
    message = keyed_frame_to_pb(kept().key, kept().frame, "")
    assert from_below(message, is_local=True) == kept()
    assert to_above(kept(), region="far") == keyed_frame_to_pb(kept().key, kept().frame, "far")


def test_a_local_frame_without_its_key_or_with_an_unknown_codec_is_refused_and_a_relayed_one_is_not_read() -> None:
    no_key = keyed_frame_to_pb(key(0, epoch=0), kept().frame, "")
    unknown = keyed_frame_to_pb(key(0), kept().frame, "")
    unknown.frame.codec = 999  # type: ignore[assignment]
    for message, error in ((no_key, CorruptFrame), (unknown, UnknownCodec)):
        with pytest.raises(error):
            from_below(message, is_local=True)
        assert isinstance(from_below(message, is_local=False), RelayedUp)


def test_a_lost_worker_and_a_request_have_messages_of_their_own() -> None:
    report = LostWorker(worker_id="w", reason="ended", connection_lost=True)
    gone = gateway_pb2.RolloutUp(worker_id="w", gone=gateway_pb2.WorkerGone(reason="ended", connection_lost=True))
    assert to_above(report, region="home") == gone
    assert to_trainer(AnchorRequest(), region="home").HasField("anchor")


@pytest.mark.parametrize("body", [body for body in BODIES_DOWN if body != "committed"])
def test_a_message_to_a_worker_goes_down_as_the_same_object(body: str) -> None:
    message = gateway_pb2.RolloutDown(worker_id="w")
    getattr(message, body).SetInParent()
    value = from_above(message, region="home")
    assert value == RelayedDown(worker_id="w", is_finish=body == "finish", payload=message)
    assert isinstance(value, RelayedDown)
    (down,) = to_below(value)
    assert down is message


def test_a_commit_is_read_in_the_region_that_has_the_frames_and_relayed_elsewhere() -> None:
    (message,) = committed_to_pb("far", [key(0), key(2)])
    assert from_above(message, region="far") == LocalCommit((key(0), key(2)))
    value = from_above(message, region="home")
    assert value == RelayedCommit(region="far", payload=message)
    assert isinstance(value, RelayedCommit)
    (down,) = to_below(value)
    assert down is message


def test_a_receipt_is_one_message_for_each_start_of_a_worker() -> None:
    messages = to_below(SpoolReceipt((key(0), key(1), key(0, epoch=2))))
    assert [(down.spooled.epoch, list(down.spooled.sequences)) for down in messages] == [(1, [0, 1]), (2, [0])]
