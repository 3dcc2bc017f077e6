"""Conversions between the protobuf messages of a worker's streams and its values.

Only this module and the streams (gateway.py) know protobuf in the worker. Nothing here decides anything. A message of a
kind that this version does not know converts to None. A record of a publication that cannot be read converts to a value
that says why.
"""

from typing import assert_never

from periplus.errors import WireError
from periplus.net.convert import policy_from_pb, policy_to_pb, publication_record_from_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.trajectory import Purpose
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
from rollout_worker.weights.incoming import ReceivedRecord, UnreadableRecord
from rollout_worker.weights.subscription import SubscriptionRequest
from rollout_worker.weights.version_report import VersionReport


def gateway_message_from_pb(message: gateway_pb2.RolloutDown) -> GatewayMessage | None:
    """Return what the gateway says to the worker, or None if this version does not know such a message."""
    match message.WhichOneof("body"):
        case "leases":
            return LeasesReceived(tuple(lease_from_pb(lease) for lease in message.leases.leases))
        case "revoked":
            return LeasesRevoked(frozenset(message.revoked.lease_ids), message.revoked.still_wanted)
        case "spooled":
            return FramesSpooled(message.spooled.epoch, tuple(message.spooled.sequences))
        case "finish":
            return FinishReceived(message.finish.reason)
        case "doubted":
            return DoubtReceived(message.doubted.why, message.doubted.starts_anew)
        case _:
            return None


def worker_message_to_pb(worker_id: str, message: WorkerMessage) -> gateway_pb2.RolloutUp:
    """Return the message that tells the trainer what the worker has begun, could not produce, or holds."""
    match message:
        case SamplingStarted(lease_ids, policy):
            started = gateway_pb2.LeasesStarted(lease_ids=lease_ids, policy=policy_to_pb(policy))
            return gateway_pb2.RolloutUp(worker_id=worker_id, started=started)
        case FailedLease(lease, why, reward_failure):
            failed = gateway_pb2.SampleFailed(
                lease_id=lease.lease_id,
                why=why,
                group=lease.group,
                sample=lease.sample,
                reward_failure=reward_failure,
            )
            return gateway_pb2.RolloutUp(worker_id=worker_id, failed=failed)
        case VersionReport():
            return gateway_pb2.RolloutUp(worker_id=worker_id, proof=_report_to_pb(message))
        case _:
            assert_never(message)


def subscription_to_pb(job_id: str, reader_id: str, request: SubscriptionRequest) -> gateway_pb2.SubscribeRequest:
    """Return the message that asks for the publications which the reader still needs."""
    return gateway_pb2.SubscribeRequest(
        job_id=job_id,
        reader_id=reader_id,
        has_state=request.have is not None,
        have=None if request.have is None else policy_to_pb(request.have),
        has_bundle=request.has_bundle,
        distrust_copies=request.distrusts_copies,
    )


def received_record_from_pb(message: gateway_pb2.PublicationRecord) -> ReceivedRecord:
    """Return a record of a publication, or a value that says why it cannot be read. Nothing is raised."""
    try:
        return publication_record_from_pb(message)
    except WireError as error:
        is_derived = message.HasField("opening") and message.opening.HasField("attested")
        return UnreadableRecord(kind=message.WhichOneof("body"), is_derived=is_derived, why=error)


def lease_from_pb(message: gateway_pb2.Lease) -> QueuedLease:
    """Return the lease of a message."""
    return QueuedLease(
        lease_id=message.lease_id,
        group=message.group,
        sample=message.sample,
        item=message.item,
        start_at=policy_from_pb(message.start_at),
        consume_by_version=message.consume_by_version,
        purpose=Purpose.EVAL if message.purpose == gateway_pb2.PURPOSE_EVAL else Purpose.TRAIN,
        alone=message.alone,
    )


def _report_to_pb(report: VersionReport) -> gateway_pb2.WeightProof:
    return gateway_pb2.WeightProof(
        policy=policy_to_pb(report.policy),
        state_digest=report.state_digest,
        ok=report.ok,
        why=report.why,
        engine_checked=report.engine_checked,
        probe_mean_difference=report.probe_mean_difference,
        probe_max_difference=report.probe_max_difference,
        transfer_s=report.transfer_s,
        apply_s=report.apply_s,
        pause_s=report.pause_s,
        fallback=report.fallback,
        generation_s=report.generation_s,
    )
