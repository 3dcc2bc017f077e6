import json
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from periplus.errors import CorruptFrame, NotFound
from periplus.values.weight_state import (
    Tensor,
    WeightState,
    content_bytes,
    open_safetensors,
    read_safetensors,
    read_safetensors_file,
    write_safetensors,
)
from tests.support.cases.strategies import states

SAME_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
BF16 = Tensor("BF16", (2, 2), np.array([0x3F80, 0x7FC1, 0x8000, 0], "<u2"))
GOLDEN = (
    b'X\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,2],"data_offsets":'
    b"[0,8]}}\x80?\xc1\x7f\x00\x80\x00\x00"
)


def test_a_tensor_is_built_from_any_flat_array_and_kept_as_bytes() -> None:
    assert BF16.data.dtype == np.uint8
    assert BF16.data.tobytes() == bytes.fromhex("803fc17f00800000")
    assert BF16.num_elements == 4
    assert content_bytes({"a": BF16, "b": BF16}) == 16


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("BF17", (2,), np.zeros(4, np.uint8)),
        ("F32", (2,), np.zeros(4, np.uint8)),
        ("F32", (-1,), np.zeros(0, np.uint8)),
        ("F32", (1,) * 65, np.zeros(4, np.uint8)),
        ("F32", (0, 1 << 63), np.zeros(0, np.uint8)),
        ("U8", (2, 2), np.zeros((2, 2), np.uint8)),
        ("U8", (2,), np.zeros(4, np.uint8)[::2]),
    ],
)
def test_a_tensor_whose_data_and_shape_disagree_is_refused(
    dtype: str, shape: tuple[int, ...], data: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"
) -> None:
    with pytest.raises(ValueError):
        Tensor(dtype, shape, data)


@SAME_DIRECTORY
@given(states())
def test_any_state_survives_a_file(tmp_path: Path, state: WeightState) -> None:
    write_safetensors(tmp_path / "model.safetensors", state)
    assert read_safetensors(tmp_path) == state


def test_the_file_format_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": BF16})
    assert path.read_bytes() == GOLDEN
    assert list(tmp_path.iterdir()) == [path]


def test_the_safetensors_package_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.randn(3, 5).to(torch.bfloat16), "s": torch.tensor(2.5), "e": torch.zeros(0, 4)}
    theirs.save_file(tensors, tmp_path / "model.safetensors")
    state = read_safetensors(tmp_path)
    write_safetensors(tmp_path / "ours.safetensors", state)
    back = theirs.load_file(tmp_path / "ours.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_what_is_read_is_mapped_and_stays_when_its_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": BF16})
    tensor = read_safetensors(tmp_path)["w"]
    write_safetensors(path, {"w": Tensor("BF16", (2, 2), np.zeros(4, "<u2"))})
    assert tensor == BF16
    assert not tensor.data.flags.writeable
    assert type(tensor.data) is np.ndarray


def test_a_file_tells_its_head_its_metadata_and_the_order_of_its_data(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(GOLDEN)
    file = open_safetensors(tmp_path / "x")
    assert (file.head, file.metadata, dict(file.tensors)) == (GOLDEN[:-8], {"format": "pt"}, {"w": BF16})


def test_metadata_that_are_no_texts_are_refused_as_the_safetensors_package_does(tmp_path: Path) -> None:
    for metadata in ('{"a":1}', "[1]", '"a"'):
        head = f'{{"__metadata__":{metadata}}}'.encode()
        (tmp_path / "x").write_bytes(struct.pack("<Q", len(head)) + head)
        with pytest.raises(CorruptFrame):
            open_safetensors(tmp_path / "x")


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": BF16})
    write_safetensors(tmp_path / "b.safetensors", {"y": BF16})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_safetensors(tmp_path) == {"x": BF16, "y": BF16}


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        "not json",
        '{"weight_map": {}}',
        '{"weight_map": [1]}',
        "[" * 100_000,
        '{"weight_map": {"x": "../a.safetensors"}}',
        '{"weight_map": {"z": "a.safetensors"}}',
    ],
)
def test_a_bad_index_is_refused(tmp_path: Path, index: str) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": BF16})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptFrame):
        read_safetensors(tmp_path)


def test_a_directory_without_weights_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_safetensors(tmp_path)


def test_a_damaged_byte_or_a_cut_of_a_file_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header_end = len(GOLDEN) - 8
    damaged = [
        GOLDEN[:i] + bytes([GOLDEN[i] ^ flip]) + GOLDEN[i + 1 :] for i in range(header_end) for flip in (1, 16, 128)
    ]
    for data in damaged + [GOLDEN[:i] for i in range(len(GOLDEN))]:
        path.write_bytes(data)
        with suppress(CorruptFrame):
            assert sum(t.data.size for t in read_safetensors_file(path).values()) <= len(data)


def test_bytes_that_belong_to_no_tensor_or_to_two_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for offsets in ([[0, 1], [0, 1]], [[0, 1], [2, 3]], [[1, 2], [2, 3]]):
        header = {str(i): {"dtype": "U8", "shape": [1], "data_offsets": pair} for i, pair in enumerate(offsets)}
        head = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + b"abc")
        with pytest.raises(CorruptFrame):
            read_safetensors_file(path)


def test_the_reserved_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_safetensors(tmp_path / "x", {"__metadata__": BF16})
