"""Blocks come back as they were written, and what is torn or damaged is never read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from periplus.job.samples.step_blocks import (
    NO_REGION,
    ROW,
    StepBlock,
    column,
    empty_rows,
    file_name,
    is_block_file,
    pack_block,
    read_blocks,
)
from periplus.values.policy import Policy

blocks = st.builds(
    lambda fork, version, regions, rows: StepBlock(policy=Policy(fork, version), regions=regions, rows=rows),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.from_regex(r"[a-z:1-9-]{1,9}", fullmatch=True), max_size=3).map(tuple),
    arrays(ROW, st.integers(0, 4)),
)


def alike(left: StepBlock, right: StepBlock) -> bool:
    same = left.rows.tobytes() == right.rows.tobytes()
    return same and (left.policy, left.regions) == (right.policy, right.regions)


@given(st.lists(blocks, max_size=3))
def test_blocks_come_back_in_order(written: list[StepBlock]) -> None:
    found = list(read_blocks(b"".join(map(pack_block, written))))
    assert len(found) == len(written)
    assert all(map(alike, found, written))


@given(blocks, blocks, st.data())
def test_a_torn_block_is_not_there_and_those_before_it_are(
    first: StepBlock, torn: StepBlock, data: st.DataObject
) -> None:
    whole, rest = pack_block(first), pack_block(torn)
    length = data.draw(st.integers(0, len(rest) - 1))
    [found] = read_blocks(whole + rest[:length])
    assert alike(found, first)


@given(blocks, st.data())
def test_no_damaged_byte_goes_unnoticed(block: StepBlock, data: st.DataObject) -> None:
    packed = bytearray(pack_block(block))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert list(read_blocks(bytes(packed))) == []


def test_a_row_takes_56_bytes_and_names_its_region_or_none() -> None:
    assert ROW.itemsize == 56
    rows = empty_rows(2)
    assert rows["region"].tolist() == [NO_REGION] * 2
    rows["region"][1] = 0
    block = StepBlock(policy=Policy(0, 1), regions=("eu",), rows=rows)
    assert [block.region_of(row) for row in (0, 1)] == ["", "eu"]


def test_names_of_files_sort_as_their_blocks() -> None:
    policies = [Policy(0, 2), Policy(0, 10), Policy(1, 3), Policy(10, 0)]
    names = [file_name(policy) for policy in policies]
    assert sorted(names) == names
    assert all(map(is_block_file, names))
    assert not is_block_file("tokenizer.json")


def test_a_column_of_no_block_is_empty() -> None:
    assert column([], "reward").dtype == np.float64
    assert len(column([], "reward")) == 0
