import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.columns import Columns, column, from_planes, planes
from periplus.errors import CorruptFrame


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 20), st.data())
def test_planes_are_a_permutation_that_is_undone(width: int, count: int, data: st.DataObject) -> None:
    elements = np.frombuffer(data.draw(st.binary(min_size=width * count, max_size=width * count)), np.uint8)
    assert np.array_equal(from_planes(planes(elements, width), width), elements)


def test_equal_bytes_of_neighbours_stand_together() -> None:
    assert column([0x0102, 0x0103, 0x0104], "<u2") == bytes([2, 3, 4, 1, 1, 1])


@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.floats(width=32)))
def test_columns_come_back_in_order(numbers: list[int], floats: list[float]) -> None:
    columns = Columns(column(numbers, "<u8") + column(floats, "<f4"))
    assert columns.column(len(numbers), "<u8").tolist() == numbers
    assert columns.column(len(floats), "<f4").tobytes() == np.array(floats, "<f4").tobytes()
    columns.end()


def test_content_that_is_short_or_long_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="ends at byte 3"):
        Columns(b"abc").column(1, "<u4")
    with pytest.raises(CorruptFrame, match="3 bytes of content follow"):
        Columns(b"abc").end()
