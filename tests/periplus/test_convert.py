from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.convert import (
    committed_to_pb,
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
    trajectory_frame_to_pb,
)
from periplus.errors import CorruptFrame, UnknownCodec
from periplus.pb.v1 import common_pb2, control_pb2, gateway_pb2
from periplus.policy import Policy
from periplus.publication import Chunk, Closing, Opening, PublicationKind, PublicationRecord
from periplus.record import Record, RecordKind
from periplus.transport import FrameKey

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
policies = st.builds(Policy, u32, u64)
openings = st.builds(
    Opening,
    job_id=texts,
    kind=st.sampled_from(PublicationKind),
    policy=policies,
    base=st.none() | policies,
    codec=st.sampled_from(CodecId),
    payload_bytes=u64,
    num_chunks=u32,
    content_bytes=u64,
)
publication_records = (
    openings
    | st.builds(Chunk, u32, st.binary())
    | st.builds(Closing, payload_digest=st.binary(), state_digest=st.binary())
)
step_records = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    policy=policies,
    time_s=st.floats(allow_nan=False),
    values=st.dictionaries(texts, st.floats(allow_nan=False), max_size=3),
    staleness_tokens=st.dictionaries(u32, u64, max_size=3),
    text=texts,
)
GOLDEN_OPENING = "0a1a0a016a10031a040801100722040801100628033009380340ac02"
OPENING = Opening(
    job_id="j", kind=PublicationKind.DELTA, policy=Policy(1, 7), base=Policy(1, 6), codec=CodecId.STATE_XOR_ZSTD,
    payload_bytes=9, num_chunks=3, content_bytes=300,
)  # fmt: skip


@given(policies)
def test_any_policy_survives(policy: Policy) -> None:
    assert policy_from_pb(policy_to_pb(policy)) == policy


@given(publication_records)
def test_any_publication_record_survives_the_wire(record: PublicationRecord) -> None:
    wire = publication_record_to_pb(record).SerializeToString()
    assert publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(wire)) == record


@given(step_records)
def test_any_step_record_survives_the_wire(record: Record) -> None:
    message = control_pb2.StepRecord.FromString(record_to_pb("job", record).SerializeToString())
    assert message.job_id == "job"
    assert record_from_pb(message) == record


@given(st.sampled_from(CodecId), st.binary())
def test_any_trajectory_frame_survives(codec: CodecId, payload: bytes) -> None:
    assert trajectory_frame_from_pb(trajectory_frame_to_pb(Frame(codec, payload))) == Frame(codec, payload)


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


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": 0}, CorruptFrame),
        ({"kind": 9}, CorruptFrame),
        ({"codec": 0}, UnknownCodec),
        ({"codec": 99}, UnknownCodec),
        ({"policy": None}, CorruptFrame),
    ],
)
def test_an_opening_that_leaves_out_or_makes_up_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    fields: dict[str, Any] = {"kind": 2, "codec": 2, "policy": common_pb2.Policy()} | change
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
        keyed_frame_from_pb(
            gateway_pb2.RolloutUp(frame=trajectory_frame_to_pb(Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"x")))
        )
