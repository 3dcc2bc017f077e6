import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame


@given(st.binary(), st.integers(1, 9))
def test_any_content_survives(content: bytes, level: int) -> None:
    assert decompress(compress(content, level), max_content_bytes=len(content)) == content


def test_a_small_frame_that_declares_too_much_is_refused_unopened() -> None:
    bomb = compress(bytes(1 << 20), 3)
    assert len(bomb) < 100
    with pytest.raises(CorruptFrame, match="declares 1048576 bytes of content; at most 1048575"):
        decompress(bomb, max_content_bytes=(1 << 20) - 1)


def test_a_frame_that_does_not_declare_its_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"content")
    with pytest.raises(CorruptFrame, match="does not declare"):
        decompress(silent, max_content_bytes=100)


def test_a_frame_followed_by_anything_is_refused() -> None:
    frame = compress(b"content", 3)
    for tail in (b"x", frame):
        with pytest.raises(CorruptFrame):
            decompress(frame + tail, max_content_bytes=100)


@given(st.binary(max_size=40))
def test_noise_is_refused_as_compressed_content(noise: bytes) -> None:
    with pytest.raises(CorruptFrame):
        decompress(noise, max_content_bytes=1000)


def test_every_changed_byte_is_refused_or_harmless() -> None:
    frame = compress(b"abcabcabcabc0123456789", 3)
    for i in range(len(frame)):
        for flip in range(1, 256):
            try:
                content = decompress(frame[:i] + bytes([frame[i] ^ flip]) + frame[i + 1 :], max_content_bytes=1 << 20)
            except CorruptFrame:
                continue
            assert content == b"abcabcabcabc0123456789"
