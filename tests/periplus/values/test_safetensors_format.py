import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.values.safetensors_format import (
    ELEMENT_BYTES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    SafetensorsHead,
    head_bytes,
    layout_bytes,
    parse_head,
    safetensors_head,
    safetensors_order,
)

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
LINES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(ELEMENT_BYTES)), SHAPES),
    max_size=5,
)
ENTRY = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}


def head_of(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def parsed(header: object, data_bytes: int) -> SafetensorsHead:
    head = head_of(header)
    return parse_head(head, len(head) + data_bytes)


@given(LINES)
def test_what_is_written_is_parsed_and_covers_the_data_without_a_gap(lines: dict[str, tuple[str, Any]]) -> None:
    ordered = safetensors_order((name, dtype, shape) for name, (dtype, shape) in lines.items())
    head = safetensors_head(ordered, {"format": "pt"})
    data_bytes = sum(layout_bytes(dtype, shape) for _, dtype, shape in ordered)
    assert head_bytes(head[:LENGTH_BYTES], len(head) + data_bytes) == len(head)
    found = parse_head(head, len(head) + data_bytes)
    assert sorted((entry.name, entry.dtype, entry.shape) for entry in found.entries) == sorted(ordered)
    assert [entry.start for entry in found.entries] == [0, *(entry.end for entry in found.entries)][: len(lines)]
    assert found.metadata == {"format": "pt"}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ([ENTRY], "pop"),
        ({"w": {**ENTRY, "dtype": "F4"}}, "dtype 'F4' is not one of"),
        ({"w": {**ENTRY, "dtype": ["BF16"]}}, "unhashable"),
        ({"w": {**ENTRY, "shape": [-4]}}, "shape"),
        ({"w": {**ENTRY, "shape": [2.0, 2]}}, "shape"),
        ({"w": {**ENTRY, "shape": [3]}}, r"'w', BF16 \(3,\), needs 6 bytes, not 8"),
        ({"w": {**ENTRY, "data_offsets": [0.0, 8.0]}}, "lies at 0.0-8.0"),
        ({"w": {**ENTRY, "data_offsets": [1, 9]}}, "expected to begin at 0"),
        ({"w": {**ENTRY, "data_offsets": [0, 8, 8]}}, "too many values"),
        ({"w": {"dtype": "BF16", "shape": [2, 2]}}, "data_offsets"),
        ({"w": ENTRY, "v": {**ENTRY, "data_offsets": [8, 16]}}, "cut short: tensor 'v' ends at byte 16"),
        ({}, "8 bytes belong to no tensor"),
        ({"__metadata__": {"a": 1}, "w": ENTRY}, "more than texts"),
        ({"\ud800": ENTRY}, "surrogates"),
    ],
)
def test_a_header_that_breaks_the_format_is_refused(header: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(header, 8)


def test_a_name_that_is_given_twice_is_refused() -> None:
    text = b'{"w":' + json.dumps(ENTRY).encode() + b',"w":' + json.dumps(ENTRY).encode() + b"}"
    head = struct.pack("<Q", len(text)) + text
    with pytest.raises(ValueError, match="'w' is given twice"):
        parse_head(head, len(head) + 8)


def test_a_header_nested_too_deep_is_refused_like_any_other_damage() -> None:
    text = b"[" * 100_000
    with pytest.raises(ValueError, match="recursion"):
        parse_head(struct.pack("<Q", len(text)) + text, LENGTH_BYTES + len(text))


@pytest.mark.parametrize(("length", "file_bytes"), [(93, 100), (MAX_HEADER_BYTES + 1, 1 << 40), (0, 7)])
def test_a_header_longer_than_its_file_or_than_the_format_allows_is_never_read(length: int, file_bytes: int) -> None:
    with pytest.raises(ValueError, match="its header would have"):
        head_bytes(struct.pack("<Q", length)[:file_bytes], file_bytes)
