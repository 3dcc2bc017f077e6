"""Rows of tensors in several files: any division is put together again, and a gap or an overlap is an error."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.errors import CorruptFrame
from periplus.values.row_parts import PartReader, num_rows, parted_tensors
from periplus.values.weight_state import Tensor, write_safetensors


def manifest_of(shape: tuple[int, ...], cuts: list[tuple[int, int]]) -> dict[str, Any]:
    parts = [{"name": f"p{n}", "holds": "actor", "rows": {"w": list(cut)}} for n, cut in enumerate(cuts)]
    return {"tensors": {"actor": {"w": ["F32", list(shape)]}}, "parts": [*parts, {"name": "config.json"}]}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.randoms())
def test_any_division_in_any_order_of_parts_is_accepted(sizes: list[int], random: Any) -> None:
    edges = np.cumsum([0, *sizes]).tolist()
    cuts = list(pairwise(edges))
    random.shuffle(cuts)
    found = parted_tensors(manifest_of((edges[-1], 2), cuts))
    assert [(rows.start, rows.stop) for rows in found["actor"]["w"].ranges] == sorted(cuts)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=4))
def test_rows_that_are_not_in_exactly_one_part_are_refused(cuts: list[tuple[int, int]]) -> None:
    covered = sorted(row for start, stop in cuts for row in range(start, stop))
    exact = covered == list(range(5)) and all(start < stop for start, stop in cuts)
    if exact:
        assert parted_tensors(manifest_of((5,), cuts))["actor"].keys() == {"w"}
    else:
        with pytest.raises(ValueError, match=r"row|end at"):
            parted_tensors(manifest_of((5,), cuts))


def test_a_scalar_has_one_row_and_a_tensor_without_rows_is_in_no_part() -> None:
    assert (num_rows(()), num_rows((0, 4)), num_rows((7, 2))) == (1, 0, 7)
    assert parted_tensors(manifest_of((), [(0, 1)]))["actor"]["w"].shape == ()
    found = parted_tensors(manifest_of((0, 4), []))
    assert found["actor"]["w"].ranges == ()


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": {"actor": {"w": ["X9", [5]]}}},
        {"tensors": {"actor": {"w": ["F32", [-5]]}}},
        {"tensors": {"actor": {"w": ["F32"]}}},
        {"tensors": []},
        {"tensors": None},
        {"parts": [{"name": "p", "holds": "critic", "rows": {"w": [0, 5]}}]},
        {"parts": [{"name": "p", "holds": "actor", "rows": {"w": [0.0, 5]}}]},
        {"parts": [{"name": "p", "holds": "actor", "rows": {"w": [False, 5]}}]},
        {"parts": [{"name": "p", "rows": {"w": [0, 5]}}]},
        {"parts": [{"name": "p", "holds": "actor", "rows": {"w": [0, 5]}}, {"name": "p"}]},
    ],
)
def test_what_is_no_list_of_rows_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        parted_tensors({**manifest_of((5,), [(0, 5)]), **change})


def test_rows_are_read_across_parts(tmp_path: Path) -> None:
    values = np.arange(10, dtype="<f4")
    manifest = manifest_of((5, 2), [(0, 2), (2, 3), (3, 5)])
    for part in manifest["parts"][:-1]:
        start, stop = part["rows"]["w"]
        rows = Tensor("F32", (stop - start, 2), values[2 * start : 2 * stop].copy())
        write_safetensors(tmp_path / part["name"], {"w": rows})
    tensors = parted_tensors(manifest)
    reader = PartReader(tmp_path, tensors["actor"])
    for start in range(6):
        for stop in range(start, 6):
            found = b"".join(data.tobytes() for data in reader.rows("w", start, stop))
            assert found == values[2 * start : 2 * stop].tobytes()


def test_a_part_outside_of_the_directory_is_not_opened(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "secret", {"w": Tensor("F32", (1,), np.zeros(1, "<f4"))})
    manifest = manifest_of((1,), [(0, 1)])
    manifest["parts"][0]["name"] = "../secret"
    tensors = parted_tensors(manifest)
    (tmp_path / "inside").mkdir()
    with pytest.raises(CorruptFrame, match="outside"):
        PartReader(tmp_path / "inside", tensors["actor"])
