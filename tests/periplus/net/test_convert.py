from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.errors import CorruptFrame, UnknownCodec
from periplus.net.convert import (
    certificate_from_pb,
    certificate_to_pb,
    inventory_from_pb,
    inventory_to_pb,
    keyed_frame_from_pb,
    keyed_frame_to_pb,
    keys_from_pb,
    policy_from_pb,
    policy_to_pb,
    publication_record_from_pb,
    publication_record_to_pb,
    record_from_pb,
    record_to_pb,
    spooled_to_pb,
    trajectory_frame_from_pb,
)
from periplus.pb.v1 import common_pb2, control_pb2, gateway_pb2
from periplus.publication import (
    Assembler,
    Attestation,
    Certificate,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
)
from periplus.values.machine import Inventory, Machine
from periplus.values.policy import Policy
from periplus.values.profile import Profile
from periplus.values.record import Record, RecordKind
from periplus.values.transport_keys import FrameKey
from tests.support.gateway.messages import committed_to_pb
from tests.support.publication.signed import Signer, derived, trust

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
policies = st.builds(Policy, u32, u64)
certificates = st.builds(Certificate, job_id=texts, fork=u32, public_key=st.binary(), signature=st.binary())
signed_openings = st.builds(
    Opening,
    job_id=texts,
    kind=st.sampled_from(PublicationKind),
    policy=policies,
    base=st.none() | policies,
    base_digest=st.binary(),
    codec=st.sampled_from(CodecId),
    max_payload_bytes=u64,
    max_chunks=u32,
    content_bytes=u64,
    certificate=st.none() | certificates,
    signature=st.binary(),
)
closings = st.builds(
    Closing,
    num_chunks=u32,
    payload_bytes=u64,
    root=st.binary(),
    state_digest=st.binary(),
    probe_logprobs=st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(tuple),
    signature=st.binary(),
)
attestations = st.builds(Attestation, opening=signed_openings, closing=closings)
openings = st.builds(replace, signed_openings, attested=st.none() | attestations)
publication_records = openings | st.builds(Chunk, u32, st.binary(), st.binary()) | closings
step_records = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    policy=policies,
    time_s=st.floats(allow_nan=False),
    values=st.dictionaries(texts, st.floats(allow_nan=False), max_size=3),
    staleness_tokens=st.dictionaries(u32, u64, max_size=3),
    text=texts,
)
GOLDEN_OPENING = "0a2d0a016a10031a040801100722040801100628053009380340ac024a0164520b0a016a10011a014b2201435a0153"
GOLDEN_CHUNK = "120808031201781a0153"
GOLDEN_CLOSING = "1a17080210091a01722201732a080000c0bf0000803e320153"
OPENING = Opening(
    job_id="j",
    kind=PublicationKind.DELTA,
    policy=Policy(1, 7),
    base=Policy(1, 6),
    codec=CodecId.WEIGHTS,
    max_payload_bytes=9,
    max_chunks=3,
    content_bytes=300,
    base_digest=b"d",
    signature=b"S",
    certificate=Certificate(job_id="j", fork=1, public_key=b"K", signature=b"C"),
)
CLOSING = Closing(
    num_chunks=2, payload_bytes=9, root=b"r", state_digest=b"s", probe_logprobs=(-1.5, 0.25), signature=b"S"
)


@given(policies)
def test_any_policy_survives(policy: Policy) -> None:
    assert policy_from_pb(policy_to_pb(policy)) == policy


@given(publication_records)
def test_any_publication_record_survives_the_wire(record: PublicationRecord) -> None:
    wire = publication_record_to_pb(record).SerializeToString()
    assert publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(wire)) == record


@given(certificates)
def test_any_certificate_survives_the_wire(certificate: Certificate) -> None:
    wire = certificate_to_pb(certificate).SerializeToString()
    assert certificate_from_pb(common_pb2.Certificate.FromString(wire)) == certificate


TARGET = Signer().delta(1, 2)


@pytest.mark.parametrize("sent", [Signer().bundle(), Signer().anchor(1), TARGET, derived(TARGET)], ids=str)
def test_what_was_signed_is_believed_after_the_wire(sent: Publication) -> None:
    assembler = Assembler(trust(), max_content_bytes=1000)
    for record in sent.records():
        wire = publication_record_to_pb(record).SerializeToString()
        done = assembler.feed(publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(wire)))
    assert done == sent


def test_an_attestation_by_another_derived_one_is_refused_however_deep() -> None:
    nested = publication_record_to_pb(derived(TARGET).opening).opening
    for _ in range(20):
        outer = gateway_pb2.Opening()
        outer.CopyFrom(nested)
        outer.attested.opening.CopyFrom(nested)
        with pytest.raises(CorruptFrame, match="another derived"):
            publication_record_from_pb(gateway_pb2.PublicationRecord(opening=outer))
        nested = outer


@given(step_records)
def test_any_step_record_survives_the_wire(record: Record) -> None:
    message = control_pb2.StepRecord.FromString(record_to_pb("job", record).SerializeToString())
    assert message.job_id == "job"
    assert record_from_pb(message) == record


keys = st.builds(FrameKey, worker_id=texts, epoch=st.integers(1, 2**64 - 1), sequence=u64)


@given(keys, st.sampled_from(CodecId), st.binary(), texts)
def test_any_frame_survives_with_its_key(key: FrameKey, codec: CodecId, payload: bytes, region: str) -> None:
    sent = keyed_frame_to_pb(key, Frame(codec, payload), region).SerializeToString()
    message = gateway_pb2.RolloutUp.FromString(sent)
    assert keyed_frame_from_pb(message) == (key, Frame(codec, payload))
    assert message.frame.region == region


@given(st.lists(keys, max_size=6))
def test_any_keys_survive_grouped_by_their_sender(sent: list[FrameKey]) -> None:
    spooled = [gateway_pb2.RolloutDown.FromString(each.SerializeToString()) for each in spooled_to_pb(sent)]
    committed = [gateway_pb2.RolloutDown.FromString(each.SerializeToString()) for each in committed_to_pb("eu", sent)]
    assert len(spooled) == len(committed) == len({(key.worker_id, key.epoch) for key in sent})
    assert all(each.committed.region == "eu" for each in committed)
    for found in (
        [key for d in spooled for key in keys_from_pb(d.worker_id, d.spooled.epoch, d.spooled.sequences)],
        [key for d in committed for key in keys_from_pb(d.worker_id, d.committed.epoch, d.committed.sequences)],
    ):
        assert sorted(map(str, found)) == sorted(map(str, sent))


def test_the_wire_bytes_of_a_frame_are_frozen() -> None:
    key = FrameKey(worker_id="w", epoch=5, sequence=7)
    message = keyed_frame_to_pb(key, Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"x"), "eu")
    assert message.SerializeToString(deterministic=True).hex() == "0a0177220d0801120178180520072a026575"


def test_the_wire_bytes_of_an_opening_are_frozen() -> None:
    assert publication_record_to_pb(OPENING).SerializeToString(deterministic=True).hex() == GOLDEN_OPENING


def test_the_wire_bytes_of_chunks_and_closings_are_frozen() -> None:
    chunk = publication_record_to_pb(Chunk(3, b"x", b"S")).SerializeToString(deterministic=True)
    closing = publication_record_to_pb(CLOSING).SerializeToString(deterministic=True)
    assert (chunk.hex(), closing.hex()) == (GOLDEN_CHUNK, GOLDEN_CLOSING)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": 0}, CorruptFrame),
        ({"kind": 9}, CorruptFrame),
        ({"codec": 0}, UnknownCodec),
        ({"codec": 2}, UnknownCodec),
        ({"codec": 99}, UnknownCodec),
        ({"policy": None}, CorruptFrame),
    ],
)
def test_an_opening_that_leaves_out_or_makes_up_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    fields: dict[str, Any] = {"kind": 2, "codec": 5, "policy": common_pb2.Policy()} | change
    with pytest.raises(error):
        publication_record_from_pb(gateway_pb2.PublicationRecord(opening=gateway_pb2.Opening(**fields)))


def test_messages_without_meaning_are_refused() -> None:
    with pytest.raises(CorruptFrame, match="neither opening, chunk nor closing"):
        publication_record_from_pb(gateway_pb2.PublicationRecord())
    with pytest.raises(CorruptFrame, match="'nap'"):
        record_from_pb(control_pb2.StepRecord(kind="nap"))
    with pytest.raises(UnknownCodec):
        trajectory_frame_from_pb(gateway_pb2.TrajectoryFrame(payload=b"x"))
    with pytest.raises(CorruptFrame, match="no transport key"):
        keyed_frame_from_pb(gateway_pb2.RolloutUp(frame=gateway_pb2.TrajectoryFrame(payload=b"x")))


def test_a_profile_that_this_version_cannot_read_costs_no_region() -> None:
    readable = Profile(model="m", engine="torch", machine="a", device="", measured_at_s=1.0, versions={})
    offered = Inventory(machines=(Machine(name="a", num_cores=1, memory_bytes=1, devices=()),), profiles=(readable,))
    message = inventory_to_pb(offered)
    assert inventory_from_pb(message) == offered
    newer = readable.to_json().replace('"model"', '"of_a_later_version":1,"model"')
    message.profiles.extend([newer, "no JSON"])
    assert inventory_from_pb(message) == offered


def test_a_network_inside_a_region_is_told_and_is_unknown_to_agents_of_before() -> None:
    offered = Inventory(machines=(Machine(name="a", num_cores=1, memory_bytes=1, devices=()),))
    known = replace(offered, fabric_bytes_per_s=1e9, fabric_latency_s=1e-4)
    assert inventory_from_pb(inventory_to_pb(known)) == known
    message = control_pb2.Inventory(machines=inventory_to_pb(offered).machines)
    assert inventory_from_pb(message) == offered
    for wrong in (float("nan"), float("inf"), -1.0):
        message.fabric_bytes_per_s = message.fabric_latency_s = wrong
        assert inventory_from_pb(message) == offered
