"""Conversions between the protobuf messages of the gateway's stream and the trainer's values.

The ledger sees plain values only. Nothing here decides anything.
"""

from periplus.net.convert import policy_from_pb, policy_to_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.trajectory import Purpose
from trainer.ledger.values import Granted, Lease, Revoked
from trainer.reporting.delivery import ReaderProof

_PURPOSE = {Purpose.TRAIN: gateway_pb2.PURPOSE_TRAIN, Purpose.EVAL: gateway_pb2.PURPOSE_EVAL}


def granted_to_pb(granted: Granted) -> gateway_pb2.RolloutDown:
    """Return the message that brings new leases to one worker."""
    leases = gateway_pb2.LeaseBatch(leases=[_lease_to_pb(lease) for lease in granted.leases])
    return gateway_pb2.RolloutDown(worker_id=granted.worker_id, leases=leases)


def revoked_to_pb(revoked: Revoked) -> gateway_pb2.RolloutDown:
    """Return the message that tells a worker which of its leases it may drop."""
    return gateway_pb2.RolloutDown(
        worker_id=revoked.worker_id, revoked=gateway_pb2.LeasesRevoked(lease_ids=revoked.lease_ids)
    )


def proof_from_pb(message: gateway_pb2.WeightProof) -> ReaderProof:
    """Return what a reader of the weights (a worker) reports about the version that it holds."""
    return ReaderProof(
        policy=policy_from_pb(message.policy),
        digest=message.state_digest,
        ok=message.ok,
        why=message.why,
        engine_checked=message.engine_checked,
        fallback=message.fallback,
        probe_max_difference=message.probe_max_difference,
        transfer_s=message.transfer_s,
        apply_s=message.apply_s,
        pause_s=message.pause_s,
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
