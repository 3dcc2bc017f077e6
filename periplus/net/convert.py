"""Converts between protobuf messages and the values of `periplus` that several services share.

A conversion from protobuf checks only that required fields are present and that enum values are known; the code that
uses a value checks its range. A message with a missing field or an unknown enum value raises CorruptFrame or
UnknownCodec, and never another exception. Conversions to protobuf do not raise.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import assert_never

from periplus.codec.frame import Frame, codec_id
from periplus.errors import ConfigError, CorruptFrame, UnknownCodec
from periplus.pb.v1 import common_pb2, control_pb2, gateway_pb2
from periplus.publication import (
    Attestation,
    Certificate,
    Chunk,
    Closing,
    Opening,
    PublicationKind,
    PublicationRecord,
)
from periplus.values.machine import Device, DeviceFamily, EngineVersion, Inventory, Machine, Pace
from periplus.values.policy import Policy
from periplus.values.profile import Profile
from periplus.values.record import Record, RecordKind
from periplus.values.task import RunFiles
from periplus.values.transport_keys import FrameKey

_KIND_TO_PB = {
    PublicationKind.BUNDLE: gateway_pb2.PUBLICATION_KIND_BUNDLE,
    PublicationKind.ANCHOR: gateway_pb2.PUBLICATION_KIND_ANCHOR,
    PublicationKind.DELTA: gateway_pb2.PUBLICATION_KIND_DELTA,
}
_KIND_FROM_PB = {value: kind for kind, value in _KIND_TO_PB.items()}


_DEVICE_KIND_TO_PB = {
    DeviceFamily.CUDA: control_pb2.Device.KIND_CUDA,
    DeviceFamily.CPU: control_pb2.Device.KIND_CPU,
    DeviceFamily.EMULATED: control_pb2.Device.KIND_EMULATED,
}
_DEVICE_KIND_FROM_PB = {value: kind for kind, value in _DEVICE_KIND_TO_PB.items()}


def policy_to_pb(policy: Policy) -> common_pb2.Policy:
    """Return the message of a policy."""
    return common_pb2.Policy(fork=policy.fork, version=policy.version)


def policy_from_pb(message: common_pb2.Policy) -> Policy:
    """Return the policy of a message."""
    return Policy(message.fork, message.version)


def run_files_to_pb(files: RunFiles | None) -> control_pb2.RunFiles | None:
    """Return the message of a run's paths, or None for None, which leaves the field unset."""
    if files is None:
        return None
    checkpoint = None if files.checkpoint is None else policy_to_pb(files.checkpoint)
    return control_pb2.RunFiles(run_dir=files.run_dir, log=files.log, checkpoint=checkpoint, report=files.report)


def run_files_from_pb(message: control_pb2.RunFiles) -> RunFiles:
    """Return the paths of a run. The caller has checked that the field is set."""
    checkpoint = policy_from_pb(message.checkpoint) if message.HasField("checkpoint") else None
    return RunFiles(run_dir=message.run_dir, log=message.log, checkpoint=checkpoint, report=message.report)


def inventory_to_pb(inventory: Inventory) -> control_pb2.Inventory:
    """Return the message of what a region offers."""
    return control_pb2.Inventory(
        machines=[
            control_pb2.Machine(
                name=machine.name,
                num_cores=machine.num_cores,
                memory_bytes=machine.memory_bytes,
                devices=map(_device_to_pb, machine.devices),
                engines=[control_pb2.InstalledEngine(name=each.name, version=each.version) for each in machine.engines],
                has_launcher=machine.has_launcher,
                shares_cores=machine.shares_cores,
            )
            for machine in inventory.machines
        ],
        allows_own_code=inventory.allows_own_code,
        replica_store=inventory.replica_store,
        profiles=[each.to_json() for each in inventory.profiles],
        relays=inventory.relays,
        fabric_bytes_per_s=inventory.fabric_bytes_per_s,
        fabric_latency_s=inventory.fabric_latency_s,
    )


def inventory_from_pb(message: control_pb2.Inventory) -> Inventory:
    """Return what a region offers. Raises: CorruptFrame if it has no machine, UnknownCodec for an unknown device."""
    if not message.machines:
        raise CorruptFrame("an inventory without a machine; are coordinator and agent of one version?")
    return Inventory(
        machines=tuple(
            Machine(
                name=machine.name,
                num_cores=machine.num_cores,
                memory_bytes=machine.memory_bytes,
                devices=tuple(map(_device_from_pb, machine.devices)),
                engines=tuple(EngineVersion(name=each.name, version=each.version) for each in machine.engines),
                has_launcher=machine.has_launcher,
                shares_cores=machine.shares_cores,
            )
            for machine in message.machines
        ),
        allows_own_code=message.allows_own_code,
        replica_store=message.replica_store,
        profiles=tuple(_profiles_from_pb(message.profiles)),
        relays=message.relays,
        fabric_bytes_per_s=_known(message.fabric_bytes_per_s),
        fabric_latency_s=_known(message.fabric_latency_s),
    )


def _known(figure: float) -> float:
    """Return a figure that plans can count with, else 0, which says that it is not known."""
    return figure if math.isfinite(figure) and figure > 0 else 0.0


def _profiles_from_pb(texts: Iterable[str]) -> Iterator[Profile]:
    """Yield the profiles that this version can read: a region without one is better than no region."""
    for text in texts:
        with contextlib.suppress(ConfigError):
            yield Profile.from_json(text)


def pace_to_pb(pace: Pace | None) -> control_pb2.Pace | None:
    """Return the message of a pace, or None for None, which leaves the field unset."""
    if pace is None:
        return None
    return control_pb2.Pace(prefill_s=pace.prefill_s, decode_s=pace.decode_s, training_s=pace.training_s)


def pace_from_pb(message: control_pb2.Pace) -> Pace:
    """Return the pace of a message. Raises: CorruptFrame if it is none."""
    try:
        return Pace(prefill_s=message.prefill_s, decode_s=message.decode_s, training_s=message.training_s)
    except ValueError as error:
        raise CorruptFrame(str(error)) from error


def _device_to_pb(device: Device) -> control_pb2.Device:
    return control_pb2.Device(
        index=device.index,
        kind=_DEVICE_KIND_TO_PB[device.kind],
        model=device.model,
        uuid=device.uuid,
        memory_bytes=device.memory_bytes,
        cores=device.cores,
        driver=device.driver,
        has_nvlink=device.has_nvlink,
        problem=device.problem,
        problem_s=device.problem_s,
        slowdown=device.slowdown,
        usd_per_hour=device.usd_per_hour,
    )


def _device_from_pb(message: control_pb2.Device) -> Device:
    if message.kind not in _DEVICE_KIND_FROM_PB:
        raise UnknownCodec(f"a device of the unknown kind {message.kind}; is the agent newer than the coordinator?")
    return Device(
        index=message.index,
        kind=_DEVICE_KIND_FROM_PB[message.kind],
        model=message.model,
        uuid=message.uuid,
        memory_bytes=message.memory_bytes,
        cores=tuple(message.cores),
        driver=message.driver,
        has_nvlink=message.has_nvlink,
        problem=message.problem,
        problem_s=message.problem_s,
        slowdown=message.slowdown,
        usd_per_hour=message.usd_per_hour,
    )


def publication_record_to_pb(record: PublicationRecord) -> gateway_pb2.PublicationRecord:
    """Return the message of one record of a publication: its opening, a chunk, or its closing."""
    match record:
        case Opening():
            return gateway_pb2.PublicationRecord(opening=_opening_to_pb(record))
        case Chunk():
            chunk = gateway_pb2.Chunk(index=record.index, data=record.data, signature=record.signature)
            return gateway_pb2.PublicationRecord(chunk=chunk)
        case Closing():
            return gateway_pb2.PublicationRecord(closing=_closing_to_pb(record))
        case _:
            assert_never(record)


def publication_record_from_pb(message: gateway_pb2.PublicationRecord) -> PublicationRecord:
    """Return the record of a publication. Raises: CorruptFrame, UnknownCodec."""
    match message.WhichOneof("body"):
        case "opening":
            return _opening_from_pb(message.opening)
        case "chunk":
            return Chunk(message.chunk.index, message.chunk.data, message.chunk.signature)
        case "closing":
            return _closing_from_pb(message.closing)
        case _:
            raise CorruptFrame("a publication record is neither opening, chunk nor closing; is the peer newer?")


def certificate_to_pb(certificate: Certificate) -> common_pb2.Certificate:
    """Return the message of a certificate, in which the job authority certifies a publisher's key."""
    return common_pb2.Certificate(
        job_id=certificate.job_id,
        fork=certificate.fork,
        public_key=certificate.public_key,
        signature=certificate.signature,
    )


def certificate_from_pb(message: common_pb2.Certificate) -> Certificate:
    """Return the certificate of a message. It is not verified here; `Trust` does that."""
    return Certificate(
        job_id=message.job_id, fork=message.fork, public_key=message.public_key, signature=message.signature
    )


def trajectory_frame_from_pb(message: gateway_pb2.TrajectoryFrame) -> Frame:
    """Return the frame of a message. Raises: UnknownCodec."""
    return Frame(codec_id(message.codec), message.payload)


def keyed_frame_to_pb(key: FrameKey, frame: Frame, region: str) -> gateway_pb2.RolloutUp:
    """Return the message that carries a frame with its transport key towards the trainer.

    `region` is the region whose gateway has spooled the frame; it is empty before that.
    """
    message = gateway_pb2.TrajectoryFrame(
        codec=_codec_to_pb(frame.codec), payload=frame.payload, epoch=key.epoch, sequence=key.sequence, region=region
    )
    return gateway_pb2.RolloutUp(worker_id=key.worker_id, frame=message)


def keyed_frame_from_pb(message: gateway_pb2.RolloutUp) -> tuple[FrameKey, Frame]:
    """Return the transport key and the frame of a message.

    Raises: UnknownCodec, or CorruptFrame for a frame without its transport key.
    """
    if not message.frame.epoch:
        raise CorruptFrame(f"a frame of {message.worker_id} has no transport key; is the worker older?")
    key = FrameKey(worker_id=message.worker_id, epoch=message.frame.epoch, sequence=message.frame.sequence)
    return key, trajectory_frame_from_pb(message.frame)


def spooled_to_pb(keys: Iterable[FrameKey]) -> list[gateway_pb2.RolloutDown]:
    """Return the messages that tell workers that their gateway has spooled these frames.

    There is one message for each start of a worker's process.
    """
    by_sender: dict[tuple[str, int], list[int]] = {}
    for key in keys:
        by_sender.setdefault((key.worker_id, key.epoch), []).append(key.sequence)
    return [
        gateway_pb2.RolloutDown(
            worker_id=worker_id, spooled=gateway_pb2.FramesSpooled(epoch=epoch, sequences=sequences)
        )
        for (worker_id, epoch), sequences in by_sender.items()
    ]


def keys_from_pb(worker_id: str, epoch: int, sequences: Iterable[int]) -> tuple[FrameKey, ...]:
    """Return the transport keys that one FramesSpooled or FramesCommitted message names."""
    return tuple(FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence) for sequence in sequences)


def record_to_pb(job_id: str, record: Record) -> control_pb2.StepRecord:
    """Return the message of one record of a job's metrics."""
    return control_pb2.StepRecord(
        job_id=job_id,
        kind=record.kind.value,
        policy=policy_to_pb(record.policy),
        time_s=record.time_s,
        values=dict(record.values),
        staleness_tokens=dict(record.staleness_tokens),
        text=record.text,
    )


def record_from_pb(message: control_pb2.StepRecord) -> Record:
    """Return the record of a message; its job is `message.job_id`. Raises: CorruptFrame for an unknown kind."""
    try:
        kind = RecordKind(message.kind)
    except ValueError as error:
        raise CorruptFrame(
            f"job {message.job_id} sent a record of the unknown kind {message.kind[:80]!r}; is its trainer newer?"
        ) from error
    return Record(
        kind=kind,
        policy=policy_from_pb(message.policy),
        time_s=message.time_s,
        values=dict(message.values),
        staleness_tokens=dict(message.staleness_tokens),
        text=message.text,
    )


def _opening_to_pb(opening: Opening) -> gateway_pb2.Opening:
    return gateway_pb2.Opening(
        job_id=opening.job_id,
        kind=_KIND_TO_PB[opening.kind],
        policy=policy_to_pb(opening.policy),
        base=None if opening.base is None else policy_to_pb(opening.base),
        codec=_codec_to_pb(opening.codec),
        max_payload_bytes=opening.max_payload_bytes,
        max_chunks=opening.max_chunks,
        content_bytes=opening.content_bytes,
        base_digest=opening.base_digest,
        certificate=None if opening.certificate is None else certificate_to_pb(opening.certificate),
        signature=opening.signature,
        attested=None if opening.attested is None else _attestation_to_pb(opening.attested),
    )


def _opening_from_pb(message: gateway_pb2.Opening) -> Opening:
    # A newer peer may know kinds that this version does not.
    kind = _KIND_FROM_PB.get(message.kind)
    if kind is None:
        raise CorruptFrame(f"a publication has the unknown kind {message.kind}; is the peer newer?")
    if not message.HasField("policy"):
        raise CorruptFrame(f"the opening of a {kind} of job {message.job_id[:80]!r} names no policy")
    return Opening(
        job_id=message.job_id,
        kind=kind,
        policy=policy_from_pb(message.policy),
        base=policy_from_pb(message.base) if message.HasField("base") else None,
        codec=codec_id(message.codec),
        max_payload_bytes=message.max_payload_bytes,
        max_chunks=message.max_chunks,
        content_bytes=message.content_bytes,
        base_digest=message.base_digest,
        certificate=certificate_from_pb(message.certificate) if message.HasField("certificate") else None,
        signature=message.signature,
        attested=_attestation_from_pb(message.attested) if message.HasField("attested") else None,
    )


def _closing_to_pb(closing: Closing) -> gateway_pb2.Closing:
    return gateway_pb2.Closing(
        num_chunks=closing.num_chunks,
        payload_bytes=closing.payload_bytes,
        root=closing.root,
        state_digest=closing.state_digest,
        probe_logprobs=closing.probe_logprobs,
        signature=closing.signature,
    )


def _closing_from_pb(message: gateway_pb2.Closing) -> Closing:
    return Closing(
        num_chunks=message.num_chunks,
        payload_bytes=message.payload_bytes,
        root=message.root,
        state_digest=message.state_digest,
        probe_logprobs=tuple(message.probe_logprobs),
        signature=message.signature,
    )


def _attestation_to_pb(attestation: Attestation) -> gateway_pb2.Attestation:
    return gateway_pb2.Attestation(
        opening=_opening_to_pb(attestation.opening), closing=_closing_to_pb(attestation.closing)
    )


def _attestation_from_pb(message: gateway_pb2.Attestation) -> Attestation:
    if message.opening.HasField("attested"):
        raise CorruptFrame("a derived publication is attested by another derived one; only a trainer attests")
    return Attestation(opening=_opening_from_pb(message.opening), closing=_closing_from_pb(message.closing))


def _codec_to_pb(codec: int) -> common_pb2.Codec.ValueType:
    return common_pb2.Codec.ValueType(codec)
