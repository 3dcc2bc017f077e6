"""Messages of the gateway's stream from and to protobuf."""

from typing import Any

import pytest

from periplus.codec.frame import CodecId, Frame
from periplus.errors import UnknownCodec
from periplus.pb.v1 import common_pb2, control_pb2, gateway_pb2
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose
from periplus.values.transport_keys import FrameKey
from trainer.intake.convert import message_from_pb, message_to_pb
from trainer.intake.messages import (
    AnchorWanted,
    DepartureReceived,
    DownMessage,
    EngineDoubted,
    FailureReceived,
    FrameReceived,
    FramesAcknowledged,
    HelloReceived,
    JobFinished,
    ProofReceived,
    UnreadableMessage,
    UpMessage,
)
from trainer.ledger.values import Granted, Lease, LeasesStarted, Revoked, RoomOffered

FRAME: dict[str, Any] = {"payload": b"columns", "epoch": 5, "sequence": 6, "region": "far"}
PROOF = gateway_pb2.WeightProof(
    policy=common_pb2.Policy(fork=1, version=2),
    state_digest=b"digest",
    ok=True,
    why="why",
    engine_checked=True,
    probe_mean_difference=0.25,
    probe_max_difference=0.5,
    transfer_s=1.0,
    apply_s=2.0,
    pause_s=3.0,
    fallback=True,
    generation_s=4.0,
)


def of_worker(**body: Any) -> UpMessage | None:
    return message_from_pb(gateway_pb2.TrainerDown(up=gateway_pb2.RolloutUp(worker_id="a", **body)))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (
            {"hello": gateway_pb2.WorkerHello(job_id="j", region="far", bundle_digest=b"d", epoch=7)},
            HelloReceived(worker_id="a", region="far", bundle_digest=b"d", epoch=7),
        ),
        (
            {"gone": gateway_pb2.WorkerGone(reason="reset", connection_lost=True)},
            DepartureReceived(worker_id="a", why="reset", connection_lost=True),
        ),
        ({"capacity": gateway_pb2.Capacity(num_samples=8)}, RoomOffered("a", 8)),
        (
            {"started": gateway_pb2.LeasesStarted(lease_ids=[3, 1], policy=common_pb2.Policy(fork=1, version=2))},
            LeasesStarted("a", (3, 1), Policy(1, 2)),
        ),
        (
            {"failed": gateway_pb2.SampleFailed(lease_id=1, why="why", group=2, sample=3)},
            FailureReceived(worker_id="a", lease_id=1, group=2, sample=3, why="why"),
        ),
        (
            {"frame": gateway_pb2.TrajectoryFrame(codec=common_pb2.CODEC_TRAJECTORY_COLUMNS_ZSTD, **FRAME)},
            FrameReceived(
                FrameKey(worker_id="a", epoch=5, sequence=6), "far", Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"columns")
            ),
        ),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_message_of_a_worker_is_read_whole(body: dict[str, Any], value: UpMessage) -> None:
    assert of_worker(**body) == value


def test_a_proof_is_read_whole() -> None:
    received = of_worker(proof=PROOF)
    assert isinstance(received, ProofReceived)
    proof = received.proof
    assert (proof.policy, proof.digest, proof.ok, proof.why) == (Policy(1, 2), b"digest", True, "why")
    assert (proof.engine_checked, proof.fallback, proof.probe_max_difference) == (True, True, 0.5)
    assert proof.probe_mean_difference == 0.25
    assert (proof.transfer_s, proof.apply_s, proof.pause_s, proof.generation_s) == (1.0, 2.0, 3.0, 4.0)


def test_a_frame_of_an_unknown_codec_is_a_value_and_no_error_of_the_stream() -> None:
    received = of_worker(frame=gateway_pb2.TrajectoryFrame(**FRAME))
    assert isinstance(received, UnreadableMessage)
    assert received.worker_id == "a"
    assert isinstance(received.why, UnknownCodec)


def test_a_gateway_that_asks_for_an_anchor_is_heard_and_an_unknown_message_is_passed_over() -> None:
    assert message_from_pb(gateway_pb2.TrainerDown(anchor=gateway_pb2.AnchorRequest())) == AnchorWanted()
    assert message_from_pb(gateway_pb2.TrainerDown()) is None
    assert message_from_pb(gateway_pb2.TrainerDown(certificate=control_pb2.CertificateAnswer())) is None
    assert of_worker() is None
    assert of_worker(gateway=gateway_pb2.GatewayHello(job_id="j")) is None


LEASE = Lease(
    lease_id=1,
    group=2,
    sample=3,
    item=4,
    start_at=Policy(1, 5),
    consume_by_version=7,
    purpose=Purpose.EVAL,
    alone=True,
)


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (Granted("a", (LEASE,)), "0a016112160a1408011002180320042a0408011005300738024001"),
        (Revoked("a", (1, 300)), "0a016122050a0301ac02"),
        (Revoked("a", (1,), still_wanted=True), "0a016122050a01011001"),
        (JobFinished("a", "done"), "0a01611a060a04646f6e65"),
        (EngineDoubted(worker_id="a", why="odd", starts_anew=True), "0a01613a070a036f64641001"),
        (
            FramesAcknowledged(region="far", worker_id="a", epoch=5, sequences=(6, 7)),
            "0a0161320b0a0366617210051a020607",
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_bytes_of_a_message_down_are_frozen(message: DownMessage, wire: str) -> None:
    assert message_to_pb(message).SerializeToString().hex() == wire
