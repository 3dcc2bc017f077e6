import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.frame import HEADER_BYTES, CodecId, Frame, codec_id, pack, read, unpack
from periplus.errors import CorruptFrame, UnknownCodec, WireError

frames = st.builds(Frame, st.sampled_from(CodecId), st.binary(max_size=50))
GOLDEN = bytes.fromhex("50460400080000000094173922c1e591") + b"periplus"


@given(frames)
def test_any_frame_survives(frame: Frame) -> None:
    assert unpack(pack(frame), max_payload_bytes=50) == frame


def test_the_layout_of_a_frame_is_frozen() -> None:
    assert pack(Frame(CodecId.FILES_ZSTD, b"periplus")) == GOLDEN


@given(st.lists(frames, max_size=4), st.integers(0, 60))
def test_a_file_of_frames_is_walked_up_to_its_torn_tail(written: list[Frame], num_torn_bytes: int) -> None:
    torn = pack(Frame(CodecId.FILES_ZSTD, b"x" * 60))[:num_torn_bytes]
    data = b"".join(map(pack, written)) + torn
    found, offset = [], 0
    while (step := read(data, offset, max_payload_bytes=60)) is not None:
        frame, offset = step
        found.append(frame)
    assert found == written
    assert len(data) - offset == len(torn)


def test_every_changed_byte_is_refused() -> None:
    for i in range(len(GOLDEN)):
        for flip in range(1, 256):
            with pytest.raises(WireError):
                unpack(GOLDEN[:i] + bytes([GOLDEN[i] ^ flip]) + GOLDEN[i + 1 :], max_payload_bytes=1 << 32)


@pytest.mark.parametrize("data", [b"", GOLDEN[:-1], GOLDEN[: HEADER_BYTES - 1], GOLDEN + b"x"])
def test_a_frame_that_is_cut_or_followed_by_more_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFrame):
        unpack(data, max_payload_bytes=100)


def test_a_payload_beyond_the_bound_is_refused_before_it_is_there() -> None:
    with pytest.raises(CorruptFrame, match="declares 8 bytes of payload; at most 7"):
        read(GOLDEN[:HEADER_BYTES], 0, max_payload_bytes=7)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnknownCodec, match="codec 99 is unknown"):
        codec_id(99)
