import json
from collections.abc import Callable

import numpy as np
import pytest

from periplus.codec.weights import head
from periplus.codec.weights.decoder import Decoder, decode
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.codec.zstd import compress
from periplus.errors import CorruptFrame, WireError
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from tests.periplus.codec.weights.cases import noise, step
from tests.periplus.codec.weights.golden.write import cases

NUM_DAMAGED = 400

BASE, NEW = step(2e-6, count=1500)
PARTS = encode(BASE, NEW)
CAP = content_bytes(NEW)
SPARSE = next(index for index, part in enumerate(PARTS) if part[0] == 1 and index)


def refused_or_bounded(base: WeightState | None, parts: list[bytes], max_content_bytes: int) -> None:
    try:
        found = decode(base, parts, max_content_bytes=max_content_bytes)
    except WireError:
        return
    assert content_bytes(found) <= max_content_bytes


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_damaged_byte_is_refused_or_bounded(flip: int) -> None:
    for number, part in enumerate(PARTS):
        for at in range(len(part)):
            damaged = bytearray(part)
            damaged[at] ^= flip
            refused_or_bounded(BASE, [*PARTS[:number], bytes(damaged), *PARTS[number + 1 :]], CAP)


def test_every_truncation_and_extension_of_a_part_is_refused() -> None:
    for number, part in enumerate(PARTS):
        for size in range(len(part)):
            refused_or_bounded(BASE, [*PARTS[:number], part[:size], *PARTS[number + 1 :]], CAP)
        for more in (b"\0", b"\1", b"\xff" * 100, bytes(1 << 16)):
            refused_or_bounded(BASE, [*PARTS[:number], part + more, *PARTS[number + 1 :]], CAP)
    with pytest.raises(CorruptFrame):
        decode(BASE, [*PARTS[:-1], PARTS[-1] + b"\1"], max_content_bytes=CAP)


def test_noise_in_place_of_parts_never_crashes_nor_hangs() -> None:
    everything = [(base, encode(base, new), content_bytes(new)) for base, new in cases().values()]
    for seed in range(NUM_DAMAGED):
        base, parts, cap = everything[seed % len(everything)]
        words = noise(64, seed)
        number = int(words[0]) % len(parts)
        damaged = bytearray(parts[number])
        for place, value in zip(words[1:8], words[8:15], strict=True):
            damaged[int(place) % len(damaged)] = int(value) & 255
        if seed % 3 == 0 and number:
            damaged[:1] = bytes([int(words[20]) % 4])
        if seed % 5 == 0:
            damaged[1:] = words.tobytes()
        refused_or_bounded(base, [*parts[:number], bytes(damaged), *parts[number + 1 :]], cap)


def feed_all(decoder: Decoder, parts: list[bytes]) -> None:
    for part in parts:
        decoder.feed(part)
    decoder.staged()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a payload begins with its head"),
        (PARTS[1:], "this build reads format 1"),
        (PARTS[:-1], "missing"),
        ([PARTS[0], PARTS[0]], None),
        ([*PARTS, PARTS[-1]], "part 3 of a payload of 3 parts"),
        ([PARTS[0], PARTS[2], PARTS[1]], None),
    ],
)
def test_missing_repeated_and_swapped_parts_are_refused(parts: list[bytes], message: str | None) -> None:
    decoder = Decoder(BASE, max_content_bytes=CAP, max_parts=9)
    with pytest.raises(CorruptFrame, match=message):
        feed_all(decoder, parts)


def test_parts_come_in_any_order_with_their_index_but_once() -> None:
    decoder = Decoder(BASE, max_content_bytes=CAP, max_parts=9)
    assert list(decoder.missing) == [0]
    decoder.feed(PARTS[0], index=0)
    for index in reversed(range(1, len(PARTS))):
        decoder.feed(PARTS[index], index=index)
        with pytest.raises(CorruptFrame, match="came twice"):
            decoder.feed(PARTS[index], index=index)
    assert not decoder.missing
    assert decoder.staged().state(BASE) == NEW
    with pytest.raises(CorruptFrame, match="the head came twice"):
        decoder.feed(PARTS[0], index=0)


def test_a_refused_part_leaves_room_for_the_right_one() -> None:
    decoder = Decoder(BASE, max_content_bytes=CAP, max_parts=9)
    decoder.feed(PARTS[0])
    with pytest.raises(CorruptFrame):
        decoder.feed(b"\x09")
    for part in PARTS[1:]:
        decoder.feed(part)
    assert decoder.staged().state(BASE) == NEW


def test_caps_are_checked_before_anything_is_made() -> None:
    with pytest.raises(CorruptFrame, match=f"declares {CAP} bytes of tensors; at most {CAP - 1}"):
        decode(BASE, PARTS, max_content_bytes=CAP - 1)
    with pytest.raises(CorruptFrame, match="makes 2 spans; at most 1"):
        Decoder(BASE, max_content_bytes=CAP, max_parts=2).feed(PARTS[0])


def head_of(lines: object, span_log2: int = 23) -> bytes:
    return bytes([16, span_log2]) + compress(json.dumps(lines).encode(), 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([["w", "BF16", [1 << 62, 4]]], "bytes of tensors; at most"),
        ([["w", "BF16", [1 << 62] * 60]], "bytes of tensors; at most"),
        ([["w", "BF16", [1 << 63]]], "not readable"),
        ([["w", "BF16", [-1]]], "not readable"),
        ([["w", "Q4", [1]]], "not readable"),
        ([["w", "BF16", [1.5]]], "not readable"),
        ([["w", "BF16", "x"]], "not readable"),
        ([["b", "BF16", [1]], ["a", "BF16", [1]]], "repeat or are not sorted"),
        ([["a", "BF16", [1]], ["a", "BF16", [1]]], "repeat or are not sorted"),
        ([[1, "BF16", [1]]], "not readable"),
        ([["w"]], "not readable"),
        ({"w": 1}, "not readable"),
        (7, "not readable"),
    ],
)
def test_hostile_layouts_are_refused(lines: object, message: str) -> None:
    with pytest.raises(CorruptFrame, match=message):
        Decoder(None, max_content_bytes=1 << 40, max_parts=1 << 20).feed(head_of(lines))


@pytest.mark.parametrize("first", [b"", b"\x10", b"\x20\x17", b"\x17\x17", b"\x10\x09", b"\x10\xff"])
def test_a_first_part_that_is_no_head_is_refused(first: bytes) -> None:
    with pytest.raises(CorruptFrame):
        Decoder(None, max_content_bytes=1 << 40, max_parts=1 << 20).feed(first)


def test_frames_that_declare_more_than_their_span_are_refused_unopened() -> None:
    bomb = compress(bytes(1 << 24), 1)
    for way in (2, 3):
        with pytest.raises(CorruptFrame, match="declares 16777216 bytes"):
            decode(BASE, [PARTS[0], bytes([way]) + bomb, *PARTS[2:]], max_content_bytes=CAP)
    with pytest.raises(CorruptFrame, match="declares 33554432 bytes"):
        Decoder(None, max_content_bytes=CAP, max_parts=9).feed(b"\x10\x17" + compress(b" " * (1 << 25), 1))
    with pytest.raises(CorruptFrame, match="no encoder writes so many"):
        decode(BASE, [PARTS[0], bytes(1 << 20), *PARTS[2:]], max_content_bytes=CAP)


def test_ways_that_do_not_fit_a_span_are_refused() -> None:
    base: WeightState = {"w": Tensor("I64", (4,), np.arange(4))}
    new: WeightState = {"w": Tensor("I64", (4,), np.arange(1, 5))}
    parts = encode(base, new)
    with pytest.raises(CorruptFrame, match="no number line"):
        decode(base, [parts[0], PARTS[SPARSE]], max_content_bytes=99)
    anchor = encode(None, new)
    for part in (b"\0", PARTS[SPARSE]):
        with pytest.raises(CorruptFrame, match="needs a base"):
            decode(base, [anchor[0], part], max_content_bytes=99)


@pytest.mark.parametrize(
    "change", [lambda part: part[:1], lambda part: part + b"\0", lambda part: part[:1] + b"\0" * 9]
)
def test_a_stack_that_ends_in_zero_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CorruptFrame, match="ends in zero"):
        decode(BASE, [*PARTS[:SPARSE], change(PARTS[SPARSE]), *PARTS[SPARSE + 1 :]], max_content_bytes=CAP)


def test_the_head_is_two_bytes_and_tells_layouts_apart() -> None:
    assert PARTS[0][:1] == b"\x19"
    assert len(PARTS[0]) == 2
    described = head.read(PARTS[0], layout_of(BASE), max_content_bytes=CAP, max_spans=8)
    assert described.layout == layout_of(NEW)
    assert all(described.with_base)
