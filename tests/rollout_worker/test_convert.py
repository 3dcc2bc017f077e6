"""Messages of a worker's streams from and to protobuf."""

import pytest

from periplus.errors import CorruptFrame, UnknownCodec
from periplus.net.convert import publication_record_to_pb
from periplus.pb.v1 import common_pb2, gateway_pb2
from periplus.publication import Chunk
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from rollout_worker.convert import (
    gateway_message_from_pb,
    received_record_from_pb,
    subscription_to_pb,
    worker_message_to_pb,
)
from rollout_worker.episodes.episode import FailedLease
from rollout_worker.episodes.queue import QueuedLease
from rollout_worker.messages import (
    DoubtReceived,
    FinishReceived,
    FramesSpooled,
    GatewayMessage,
    LeasesReceived,
    LeasesRevoked,
    SamplingStarted,
    WorkerMessage,
)
from rollout_worker.weights.incoming import UnreadableRecord
from rollout_worker.weights.subscription import SubscriptionRequest
from rollout_worker.weights.version_report import VersionReport

LEASE = QueuedLease(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    start_at=Policy(1, 5),
    consume_by_version=7,
    purpose=Purpose.EVAL,
    alone=True,
)
REPORT = VersionReport(
    policy=Policy(1, 2),
    state_digest=b"d",
    ok=True,
    why="y",
    engine_checked=True,
    probe_mean_difference=0.25,
    probe_max_difference=0.5,
    transfer_s=1.0,
    apply_s=2.0,
    pause_s=3.0,
    fallback=True,
    generation_s=4.0,
)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ("0a016112160a1408011002180320042a0408011005300738024001", LeasesReceived((LEASE,))),
        ("0a016122050a0301ac02", LeasesRevoked(frozenset({1, 300}))),
        ("0a016122050a01011001", LeasesRevoked(frozenset({1}), still_wanted=True)),
        ("0a01611a060a04646f6e65", FinishReceived("done")),
        ("0a01613a070a036f64641001", DoubtReceived("odd", starts_anew=True)),
        ("0a01612a06080512020607", FramesSpooled(5, (6, 7))),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else "",
)
def test_a_message_of_the_gateway_is_read_whole(wire: str, message: GatewayMessage) -> None:
    assert gateway_message_from_pb(gateway_pb2.RolloutDown.FromString(bytes.fromhex(wire))) == message


def test_a_message_that_is_not_for_the_worker_is_passed_over() -> None:
    committed = gateway_pb2.RolloutDown(worker_id="a", committed=gateway_pb2.FramesCommitted(region="far"))
    assert gateway_message_from_pb(committed) is None
    assert gateway_message_from_pb(gateway_pb2.RolloutDown()) is None


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (SamplingStarted((1, 300), Policy(1, 2)), "0a01613a0b0a0301ac02120408011002"),
        (FailedLease(LEASE, "why"), "0a0161420b0801120377687918022003"),
        (
            REPORT,
            "0a01612a480a04080110021201641801220179280131000000000000e03f39000000000000f03f"
            "410000000000000040490000000000000840500159000000000000d03f610000000000001040",
        ),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else "",
)
def test_the_bytes_of_a_message_up_are_frozen(message: WorkerMessage, wire: str) -> None:
    assert worker_message_to_pb("a", message).SerializeToString().hex() == wire


@pytest.mark.parametrize("have", [None, Policy(1, 2)])
def test_a_subscription_says_what_the_reader_has(have: Policy | None) -> None:
    message = subscription_to_pb("j", "r", SubscriptionRequest(have=have, has_bundle=True, distrusts_copies=True))
    assert (message.job_id, message.reader_id, message.has_bundle, message.distrust_copies) == ("j", "r", True, True)
    assert message.has_state == message.HasField("have") == (have is not None)
    assert have is None or message.have == common_pb2.Policy(fork=1, version=2)


def test_a_record_that_cannot_be_read_is_a_value_that_says_of_which_kind_it_is() -> None:
    chunk = Chunk(0, b"data", b"signature")
    assert received_record_from_pb(publication_record_to_pb(chunk)) == chunk
    nothing = received_record_from_pb(gateway_pb2.PublicationRecord())
    assert isinstance(nothing, UnreadableRecord)
    assert (nothing.kind, nothing.is_derived, type(nothing.why)) == (None, False, CorruptFrame)


@pytest.mark.parametrize("is_derived", [False, True])
def test_an_opening_of_an_unknown_codec_still_says_whether_a_gateway_made_it(is_derived: bool) -> None:
    opening = gateway_pb2.Opening(
        kind=gateway_pb2.PUBLICATION_KIND_ANCHOR,
        policy=common_pb2.Policy(fork=1, version=2),
        attested=gateway_pb2.Attestation() if is_derived else None,
    )
    record = received_record_from_pb(gateway_pb2.PublicationRecord(opening=opening))
    assert isinstance(record, UnreadableRecord)
    assert (record.kind, record.is_derived, type(record.why)) == ("opening", is_derived, UnknownCodec)
