import base64
import io
import json
import struct
from pathlib import Path

import pytest
from blake3 import blake3

from periplus.codec.weights.layout import StateLayout, TensorLayout
from periplus.codec.zstd import compress
from periplus.errors import CorruptFrame, NotFound, StorageError, UnknownCodec
from periplus.weights.files import (
    MAGIC,
    MAX_PART_BYTES,
    DeltaReader,
    DeltaWriter,
    FileHead,
    FileTail,
    FloorBits,
    open_delta,
)

LAYOUT = StateLayout(
    lines=(TensorLayout(name="a", dtype="BF16", shape=(2, 2)), TensorLayout(name="ü", dtype="I8", shape=()))
)
PARTS = [b"head", b"", b"span" * 9]
HEAD = FileHead(base_digest=bytes(32), result_digest=bytes(range(32)), num_parts=3, layout=LAYOUT)
FLOORS = FloorBits(num_changed=2, iid_bits=11.5, conditional_bits=8.25, conditional_with_tables_bits=9.0)
TAIL = FileTail(num_elements=5, num_changed=2, payload_bytes=40, floors=FLOORS)
GOLDEN = (
    "iVBQVw0KGgqwAAAAKLUv/WQGABUFAKLLJSWQp+l5//9/YVyg7TZk0QD738rdkt3OQeucWNtGTYSktGWMXVcCCWsthWYGjFZYsMK1DjwUerlA"
    "gNFqpZJf1DhQx4gkuwfpk2BEBkYrvm9nb65HnPnhy5UnR378zytysyXLJjURyeQhl1QySSSP/HMit5DR6eTnlmDREuu0MSrJbFuDGX0Afc42"
    "g4ucZwHt42RlbAFzRggCAFY4zlECULo4n2AEAAAANfHqACv7AMEliE5lD4ZARraH4KSKbtwaWRxFn4w0HaVoZWFkAAAAAK8TSbn1+aGmoEBN"
    "6jbcyUmbyyXJrcESt8yak8rkHzJiJAAAAMachGz5yGXR0mLWKDQWVvt+yrO2hLQ5oWM+iMOuwLYbc3BhbnNwYW5zcGFuc3BhbnNwYW5zcGFu"
    "c3BhbnNwYW5zcGFueQAAACi1L/0km2UDAELGFRmQtw3dsTARUNJcGn5uz9ydl6rY2Fo0Y1eUTYNOoCmvfJX8HooD4GzfX9aOHB6HIHYptsuk"
    "awV3FhwiI13TX5Zi6bwk4bBIx3TQmSB4pGvfqiirUgx9TAYAR2Ue9HEnV4OtAqhmQcK0Azx2BI/zUo6Ko3Z53PCaFvL8G+KnVxIvmuYw0jkL"
    "BJKJhlAbvQ=="
)
"""A file that `written()` gave once: zstandard may compress differently one day, and this must still be read."""


def written(head: FileHead = HEAD, parts: list[bytes] = PARTS, tail: FileTail = TAIL) -> bytes:
    file = io.BytesIO()
    writer = DeltaWriter(file, head)
    for part in parts:
        writer.part(part)
    writer.finish(tail)
    assert writer.file_bytes == len(file.getvalue())
    return file.getvalue()


def read(data: bytes) -> tuple[FileHead, list[bytes], FileTail]:
    reader = DeltaReader(io.BytesIO(data), Path("x.delta"))
    parts = list(reader.parts())
    assert reader.file_bytes == len(data)
    return reader.head, parts, reader.tail


def forged(head: object, tail: object = None, parts: list[bytes] = PARTS) -> bytes:
    """Return a file whose head is any JSON, with every hash right."""
    data = MAGIC + _frame(json.dumps(head).encode())
    for part in parts:
        data += struct.pack("<I", len(part)) + blake3(part).digest() + part
    data += _frame(json.dumps(tail).encode())
    return data + blake3(data).digest()


def _frame(text: bytes) -> bytes:
    frame = compress(text, 1)
    return struct.pack("<I", len(frame)) + frame


HEAD_TREE = {
    "schema": "periplus.delta/1",
    "codec": 5,
    "base_digest": "00" * 32,
    "result_digest": bytes(range(32)).hex(),
    "num_parts": 3,
    "layout": [["a", "BF16", [2, 2]], ["ü", "I8", []]],
}
TAIL_TREE = {
    "num_elements": 5,
    "num_changed": 2,
    "payload_bytes": 40,
    "floors": {"num_changed": 2, "iid_bits": 11.5, "conditional_bits": 8.25, "conditional_with_tables_bits": 9},
}


def test_what_was_written_is_read() -> None:
    assert read(written()) == (HEAD, PARTS, TAIL)
    without = FileTail(num_elements=0, num_changed=0, payload_bytes=1, floors=None)
    empty = FileHead(base_digest=bytes(32), result_digest=bytes(32), num_parts=1, layout=StateLayout(lines=()))
    assert read(written(empty, [b"h"], without)) == (empty, [b"h"], without)


def test_the_format_is_frozen() -> None:
    assert read(base64.b64decode(GOLDEN)) == (HEAD, PARTS, TAIL)
    assert read(forged(HEAD_TREE, TAIL_TREE)) == (HEAD, PARTS, TAIL)
    assert written()[:8] == b"\x89PPW\r\n\x1a\n"


def test_every_damaged_byte_is_refused() -> None:
    data = written()
    for at in range(len(data)):
        for flip in (1, 16, 128):
            with pytest.raises((CorruptFrame, UnknownCodec)):
                read(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_every_cut_is_refused_and_so_is_what_follows_the_end() -> None:
    data = written()
    for length in range(len(data)):
        with pytest.raises(CorruptFrame):
            read(data[:length])
    with pytest.raises(CorruptFrame, match="goes on behind its end"):
        read(data + b"\0")


def test_the_last_part_is_handed_out_only_when_the_whole_file_is_proven() -> None:
    data = written()
    reader = DeltaReader(io.BytesIO(data[:-1] + bytes([data[-1] ^ 1])), Path("x"))
    seen: list[bytes] = []
    with pytest.raises(CorruptFrame):
        seen.extend(reader.parts())
    assert len(seen) <= len(PARTS) - 1


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "periplus.delta/2"},
        {"base_digest": "00"},
        {"base_digest": 7},
        {"result_digest": "zz" * 32},
        {"num_parts": 0},
        {"num_parts": 2.0},
        {"num_parts": True},
        {"num_parts": 1 << 40},
        {"layout": None},
        {"layout": [["a", "BF16"]]},
        {"layout": [["a", "BF17", [2]]]},
        {"layout": [["a", "BF16", [-2]]]},
        {"layout": [["a", "BF16", [2.5]]]},
        {"layout": [["a", "BF16", [1 << 64]]]},
        {"layout": [["a", "BF16", [2]], ["a", "BF16", [2]]]},
        {"layout": [["b", "BF16", [2]], ["a", "BF16", [2]]]},
        {"layout": [["\ud800", "BF16", [2]]]},
        {"layout": [[["a"], "BF16", [2]]]},
        {"layout": [["a", ["BF16"], [2]]]},
    ],
)
def test_a_head_that_says_what_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptFrame):
        read(forged(HEAD_TREE | change, TAIL_TREE))


def test_a_newer_codec_is_named() -> None:
    with pytest.raises(UnknownCodec, match="codec 9"):
        read(forged(HEAD_TREE | {"codec": 9}, TAIL_TREE))


@pytest.mark.parametrize(
    "change",
    [
        {"num_changed": 6},
        {"num_changed": -1},
        {"num_elements": 1 << 63},
        {"payload_bytes": 41},
        {"floors": 3},
        {"floors": TAIL_TREE["floors"] | {"iid_bits": -1}},  # type: ignore[operator]
        {"floors": TAIL_TREE["floors"] | {"iid_bits": 10**400}},  # type: ignore[operator]
        {"floors": TAIL_TREE["floors"] | {"iid_bits": float("nan")}},  # type: ignore[operator]
        {"floors": TAIL_TREE["floors"] | {"iid_bits": "1"}},  # type: ignore[operator]
    ],
)
def test_a_tail_that_says_what_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptFrame):
        read(forged(HEAD_TREE, TAIL_TREE | change))


@pytest.mark.parametrize("head", [[], None, 5, "x", {}, [[[]]]])
def test_any_other_json_is_refused(head: object) -> None:
    with pytest.raises(CorruptFrame):
        read(forged(head))
    with pytest.raises(CorruptFrame):
        read(forged(HEAD_TREE, head))


def test_deep_json_is_refused() -> None:
    with pytest.raises(CorruptFrame):
        read(MAGIC + _frame(b"[" * 200_000))


def test_a_length_above_the_cap_is_refused_before_anything_is_read() -> None:
    data = written()
    at = len(MAGIC) + 4 + struct.unpack("<I", data[8:12])[0]
    with pytest.raises(CorruptFrame, match=f"at most {MAX_PART_BYTES}"):
        read(data[:at] + struct.pack("<I", MAX_PART_BYTES + 1) + data[at + 4 :])
    with pytest.raises(CorruptFrame, match="at most"):
        read(MAGIC + b"\xff" * 4)


def test_a_head_that_would_decompress_to_gigabytes_is_refused() -> None:
    bomb = compress(bytes(100 << 20), 1)
    with pytest.raises(CorruptFrame, match="at most"):
        read(MAGIC + struct.pack("<I", len(bomb)) + bomb)


def test_a_file_that_is_not_there_is_not_found_and_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"), open_delta(tmp_path / "none"):
        pass
    with pytest.raises(StorageError, match="directory"), open_delta(tmp_path):
        pass


def test_something_else_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(CorruptFrame, match="not a delta's file"), open_delta(tmp_path / "x"):
        pass
