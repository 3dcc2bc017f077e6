from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.files import content, decode, encode
from periplus.codec.zstd import compress
from periplus.errors import CorruptFrame

names = st.from_regex(r"[a-zA-Zπ_]{1,5}(/[a-z.]{0,3}[a-z]){0,2}", fullmatch=True)
bundles = st.dictionaries(names, st.binary(max_size=30), max_size=4)
SMALL = {"config.json": b"{}", "sub/π.txt": b"abc"}


def _is_directory_too(files: dict[str, bytes]) -> bool:
    return any(other.startswith(name + "/") for name in files for other in files)


@given(bundles)
def test_any_bundle_survives_unless_a_name_is_both_file_and_directory(files: dict[str, bytes]) -> None:
    if _is_directory_too(files):
        with pytest.raises(ValueError, match="both a file and a directory"):
            encode(files)
    else:
        assert decode(encode(files), max_content_bytes=len(content(files))) == files


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\\b", "C:x", "a\nb", "a\0b", "x" * 1025, "\x1b[2J"],
)
def test_names_that_leave_the_directory_or_hide_are_refused_on_both_sides(name: str) -> None:
    with pytest.raises(ValueError):
        encode({name: b""})
    raw = name.encode()
    forged = b"\1\0\0\0" + len(raw).to_bytes(4, "little") + raw + bytes(8)
    with pytest.raises(CorruptFrame):
        decode(compress(forged, 1), max_content_bytes=10_000)


def test_a_file_that_is_also_a_directory_is_refused() -> None:
    with pytest.raises(ValueError, match="both a file and a directory"):
        encode({"a": b"", "a/b": b""})


def test_the_content_is_frozen_and_an_earlier_payload_is_read() -> None:
    assert content(SMALL).hex() == GOLDEN_CONTENT
    assert decode(bytes.fromhex(GOLDEN_PAYLOAD), max_content_bytes=1000) == SMALL


def test_every_changed_byte_is_refused_or_harmless() -> None:
    payload = encode(SMALL)
    for i in range(len(payload)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = payload[:i] + bytes([payload[i] ^ flip]) + payload[i + 1 :]
            with suppress(CorruptFrame):
                assert decode(damaged, max_content_bytes=1000) == SMALL


@given(st.data())
def test_content_that_lies_is_refused_or_read_as_some_bundle(data: st.DataObject) -> None:
    lying = bytearray(content(SMALL))
    for _ in range(data.draw(st.integers(1, 3))):
        lying[data.draw(st.integers(0, len(lying) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptFrame):
        decode(compress(bytes(lying), 1), max_content_bytes=1000)


def test_names_that_repeat_are_refused() -> None:
    entry = b"\1\0\0\0a" + bytes(8)
    with pytest.raises(CorruptFrame, match="repeat or are not sorted"):
        decode(compress(b"\2\0\0\0" + entry + entry, 1), max_content_bytes=1000)


def test_content_beyond_the_bound_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="at most"):
        decode(encode(SMALL), max_content_bytes=len(content(SMALL)) - 1)


GOLDEN_CONTENT = (
    "020000000b000000636f6e6669672e6a736f6e02000000000000000a0000007375622fcf802e74787403000000000000007b7d616263"
)
GOLDEN_PAYLOAD = (
    "28b52ffd24369501009402020000000b000000636f6e6669672e6a736f6e02000a0000007375622fcf802e747874037b7d61"
    "6263020039733d803bfd0923b0"
)
