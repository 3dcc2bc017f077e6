import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import CodecId, Frame
from periplus.errors import CorruptFrame
from periplus.values import transport_keys
from periplus.values.transport_keys import FrameKey, SeenFrames, pack_keyed, unpack_keyed
from tests.support.cases.strategies import u64

MAX = 1 << 20


def key(sequence: int, epoch: int = 1, worker_id: str = "w") -> FrameKey:
    return FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence)


keys = st.builds(FrameKey, worker_id=st.sampled_from(["a", "b"]), epoch=st.integers(1, 2), sequence=st.integers(0, 12))


@given(st.lists(keys, max_size=60))
def test_what_was_added_in_any_order_is_seen_and_nothing_else(added: list[FrameKey]) -> None:
    seen, oracle = SeenFrames(), set[FrameKey]()
    for each in added:
        assert seen.add(each) == (each not in oracle)
        oracle.add(each)
        for worker_id in "ab":
            for epoch in (1, 2):
                for sequence in range(14):
                    one = key(sequence, epoch, worker_id)
                    assert (one in seen) == (one in oracle)


def test_what_is_remembered_is_bounded_and_forgetting_invents_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_keys, "MAX_RUNS", 3)
    monkeypatch.setattr(transport_keys, "MAX_SENDERS", 2)
    seen = SeenFrames()
    for sequence in range(0, 20, 2):
        assert seen.add(key(sequence))
    assert [sequence for sequence in range(20) if key(sequence) in seen] == [14, 16, 18]
    seen.add(key(0, epoch=2))
    seen.add(key(15))
    seen.add(key(0, epoch=3))
    assert key(0, epoch=2) not in seen, "the one that was silent longest goes"
    assert all(key(sequence) in seen for sequence in (14, 15, 16, 18))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), u64, u64, st.binary(max_size=50))
def test_a_frame_comes_back_with_its_key(worker_id: str, epoch: int, sequence: int, payload: bytes) -> None:
    one = FrameKey(worker_id=worker_id, epoch=epoch, sequence=sequence)
    frame = Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, payload)
    assert unpack_keyed(b"".join(pack_keyed(one, frame)), max_payload_bytes=MAX) == (one, frame)


def test_the_bytes_of_a_record_do_not_change() -> None:
    record = b"".join(pack_keyed(key(7, epoch=5), Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"payload")))
    assert record.hex() == "504601000700000038c842e7a6186c677061796c6f6164" + "0500000000000000070000000000000077"


@given(st.binary(max_size=80))
def test_what_is_no_record_is_refused_as_such(data: bytes) -> None:
    with pytest.raises(CorruptFrame):
        unpack_keyed(data, max_payload_bytes=MAX)


@pytest.mark.parametrize("length", [0, 15, 20, 38])
def test_a_record_cut_anywhere_before_its_worker_is_refused(length: int) -> None:
    record = b"".join(pack_keyed(key(7), Frame(CodecId.TRAJECTORY_COLUMNS_ZSTD, b"payload")))
    with pytest.raises(CorruptFrame):
        unpack_keyed(record[:length], max_payload_bytes=MAX)
    with pytest.raises(CorruptFrame, match="names no worker"):
        unpack_keyed(record[:-1] + b"\xff", max_payload_bytes=MAX)
