"""Conversions between the protobuf messages of the gateway's stream and the trainer's values.

Only this module and the stream itself (gateway.py) know protobuf in the trainer. Nothing here decides anything. A
message of a kind that this version does not know converts to None. A frame that cannot be read converts to a value that
says why. Nothing is raised, because one bad message must not end the stream.
"""

from typing import assert_never

from periplus.errors import WireError
from periplus.net.convert import policy_from_pb, policy_to_pb, trajectory_frame_from_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.trajectory import Purpose
from periplus.values.transport_keys import FrameKey
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
from trainer.reporting.delivery import ReaderProof

_PURPOSE = {Purpose.TRAIN: gateway_pb2.PURPOSE_TRAIN, Purpose.EVAL: gateway_pb2.PURPOSE_EVAL}


def message_from_pb(message: gateway_pb2.TrainerDown) -> UpMessage | None:
    """Return what the gateway says, or None if this version does not know such a message.

    Certificates are the stream's own business and are not converted here.
    """
    match message.WhichOneof("body"):
        case "anchor":
            return AnchorWanted()
        case "up":
            return _of_worker(message.up)
        case _:
            return None


def message_to_pb(message: DownMessage) -> gateway_pb2.RolloutDown:
    """Return the message to one worker, or to the gateway that keeps its frames."""
    worker_id = message.worker_id
    match message:
        case Granted():
            leases = gateway_pb2.LeaseBatch(leases=[_lease_to_pb(lease) for lease in message.leases])
            return gateway_pb2.RolloutDown(worker_id=worker_id, leases=leases)
        case Revoked():
            revoked = gateway_pb2.LeasesRevoked(lease_ids=message.lease_ids, still_wanted=message.still_wanted)
            return gateway_pb2.RolloutDown(worker_id=worker_id, revoked=revoked)
        case FramesAcknowledged():
            committed = gateway_pb2.FramesCommitted(
                region=message.region, epoch=message.epoch, sequences=message.sequences
            )
            return gateway_pb2.RolloutDown(worker_id=worker_id, committed=committed)
        case JobFinished():
            return gateway_pb2.RolloutDown(worker_id=worker_id, finish=gateway_pb2.Finish(reason=message.why))
        case EngineDoubted():
            doubted = gateway_pb2.EngineDoubted(why=message.why, starts_anew=message.starts_anew)
            return gateway_pb2.RolloutDown(worker_id=worker_id, doubted=doubted)
        case _:
            assert_never(message)


def _of_worker(up: gateway_pb2.RolloutUp) -> UpMessage | None:
    worker_id = up.worker_id
    match up.WhichOneof("body"):
        case "frame":
            key = FrameKey(worker_id=worker_id, epoch=up.frame.epoch, sequence=up.frame.sequence)
            # One frame that cannot be read must not end the stream: it becomes a value that is counted and logged.
            try:
                return FrameReceived(key, up.frame.region, trajectory_frame_from_pb(up.frame))
            except WireError as error:
                return UnreadableMessage(worker_id, error)
        case "proof":
            return ProofReceived(worker_id, _proof_from_pb(up.proof))
        case "hello":
            return HelloReceived(
                worker_id=worker_id,
                region=up.hello.region,
                bundle_digest=up.hello.bundle_digest,
                epoch=up.hello.epoch,
            )
        case "gone":
            return DepartureReceived(worker_id=worker_id, why=up.gone.reason, connection_lost=up.gone.connection_lost)
        case "capacity":
            return RoomOffered(worker_id, up.capacity.num_samples)
        case "started":
            return LeasesStarted(worker_id, tuple(up.started.lease_ids), policy_from_pb(up.started.policy))
        case "failed":
            failed = up.failed
            return FailureReceived(
                worker_id=worker_id,
                lease_id=failed.lease_id,
                group=failed.group,
                sample=failed.sample,
                why=failed.why,
                reward_failure=failed.reward_failure,
            )
        case _:
            return None


def _proof_from_pb(message: gateway_pb2.WeightProof) -> ReaderProof:
    return ReaderProof(
        policy=policy_from_pb(message.policy),
        digest=message.state_digest,
        ok=message.ok,
        why=message.why,
        engine_checked=message.engine_checked,
        fallback=message.fallback,
        probe_mean_difference=message.probe_mean_difference,
        probe_max_difference=message.probe_max_difference,
        transfer_s=message.transfer_s,
        apply_s=message.apply_s,
        pause_s=message.pause_s,
        generation_s=message.generation_s,
    )


def _lease_to_pb(lease: Lease) -> gateway_pb2.Lease:
    return gateway_pb2.Lease(
        lease_id=lease.lease_id,
        group=lease.group,
        sample=lease.sample,
        item=lease.item,
        start_at=policy_to_pb(lease.start_at),
        consume_by_version=lease.consume_by_version,
        purpose=_PURPOSE[lease.purpose],
        alone=lease.alone,
    )
