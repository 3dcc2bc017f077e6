"""Parts of tensors against numpy's own indexing, through the shared block."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.codec.weights.staged import Update
from periplus.errors import ConfigError
from rollout_worker.engines.vllm.shards import TensorShard, whole_layout
from rollout_worker.engines.vllm.transfer_buffer import (
    LEAST_BUFFER_BYTES,
    MAX_BUFFER_BYTES,
    MIN_BUFFER_BYTES,
    Record,
    TransferBuffer,
)
from tests.support.processes.fake_engine import wait_for

ROOT = Path(__file__).parents[4]
NAME = "tensor"


@st.composite
def divided(draw: st.DrawFn) -> tuple[tuple[int, ...], list[TensorShard]]:
    """A matrix or vector, and the shards of all ranks, by rows or by columns."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    shape = (rows, columns) if draw(st.booleans()) else (rows * columns,)
    rows, columns = (rows, columns) if len(shape) == 2 else (rows * columns, 1)
    by_columns = len(shape) == 2 and draw(st.booleans())
    size = columns if by_columns else rows
    cuts = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})
    shards = [
        TensorShard(
            name=NAME,
            shape=shape,
            row_start=0 if by_columns else low,
            row_stop=rows if by_columns else high,
            column_start=low if by_columns else 0,
            column_stop=high if by_columns else columns,
        )
        for low, high in pairwise(cuts)
    ]
    return shape, shards


@st.composite
def changes(draw: st.DrawFn, size: int) -> Update:
    values = st.integers(0, 0xFFFF)
    if draw(st.booleans()):
        positions = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
        drawn = draw(st.lists(values, min_size=len(positions), max_size=len(positions)))
        return Update(
            name=NAME, positions=np.array(positions), start=positions[0], values=np.array(drawn, dtype=np.uint16)
        )
    start = draw(st.integers(0, size - 1))
    drawn = draw(st.lists(values, min_size=1, max_size=size - start))
    return Update(name=NAME, positions=None, start=start, values=np.array(drawn, dtype=np.uint16))


def apply(flat: np.ndarray, update: Update) -> None:
    if update.positions is None:
        flat[update.start : update.start + len(update.values)] = update.values
    else:
        flat[update.positions] = update.values


@given(st.data())
def test_updates_of_the_parts_make_the_updated_whole(data: st.DataObject) -> None:
    shape, shards = data.draw(divided())
    updates = data.draw(st.lists(changes(int(np.prod(shape))), max_size=4))
    whole = np.arange(int(np.prod(shape)), dtype=np.uint16)
    matrix = whole.reshape(shape[0], -1)
    parts = [
        matrix[shard.row_start : shard.row_stop, shard.column_start : shard.column_stop].copy() for shard in shards
    ]
    for update in updates:
        apply(whole, update)
        for shard, part in zip(shards, parts, strict=True):
            shard.check(update)
            for local in shard.local(update):
                apply(part.reshape(-1), local)
    for shard, part in zip(shards, parts, strict=True):
        assert part.size == shard.num_elements
        expected = matrix[shard.row_start : shard.row_stop, shard.column_start : shard.column_stop]
        assert np.array_equal(part, expected)
    assert whole_layout([[shard] for shard in shards]).lines[0].shape == shape


@given(divided())
def test_a_shard_is_the_same_after_json(found: tuple[tuple[int, ...], list[TensorShard]]) -> None:
    for shard in found[1]:
        assert TensorShard.from_json(shard.to_json()) == shard


def shard(rows: tuple[int, int], shape: tuple[int, ...] = (10, 3)) -> TensorShard:
    return TensorShard(
        name=NAME, shape=shape, row_start=rows[0], row_stop=rows[1], column_start=0, column_stop=shape[1]
    )


def test_ranks_that_do_not_hold_the_whole_are_refused() -> None:
    with pytest.raises(ConfigError, match="hold 27 elements of tensor, which has 30"):
        whole_layout([[shard((0, 5))], [shard((5, 9))]])
    with pytest.raises(ConfigError, match="disagree"):
        whole_layout([[shard((0, 5))], [shard((5, 10), (10, 4))]])


def test_ranks_that_hold_the_same_rows_count_once() -> None:
    assert whole_layout([[shard((0, 10))], [shard((0, 10))]]).lines[0].shape == (10, 3)


@pytest.mark.parametrize(
    ("positions", "start", "number"), [(None, 29, 2), (None, -1, 2), ([3, 30], 3, 2), ([-1, 3], 0, 2), ([1, 2], 1, 3)]
)
def test_an_update_outside_the_tensor_is_refused(positions: list[int] | None, start: int, number: int) -> None:
    places = None if positions is None else np.array(positions)
    update = Update(name=NAME, positions=places, start=start, values=np.zeros(number, np.uint16))
    with pytest.raises(ValueError, match="it has 30"):
        shard((0, 10)).check(update)


@given(st.data())
def test_updates_come_out_of_the_shared_block_as_they_went_in(data: st.DataObject) -> None:
    size = 3000
    updates = data.draw(st.lists(changes(size), max_size=3))
    # One that needs several loads.
    rng = np.random.default_rng(0)
    updates.append(
        Update(
            name=NAME,
            positions=np.sort(rng.choice(size, 2500, replace=False)),
            start=0,
            values=rng.integers(0, 0xFFFF, 2500, dtype=np.uint16),
        )
    )
    expected, found = np.zeros(size, np.uint16), np.zeros(size, np.uint16)
    for update in updates:
        apply(expected, update)
    block = TransferBuffer.create(MIN_BUFFER_BYTES)
    other = TransferBuffer.attach(block.path)
    block.unlink()
    num_loads = 0
    for records in block.loads(updates):
        num_loads += 1
        for update in other.updates(records):
            apply(found, update)
    assert np.array_equal(found, expected)
    assert num_loads >= 8


def test_a_load_is_put_into_the_block_while_the_one_before_is_read() -> None:
    updates = [Update(name=NAME, positions=None, start=0, values=np.arange(9000, dtype=np.uint16))]
    block = TransferBuffer.create(MIN_BUFFER_BYTES)
    block.unlink()
    found, begun, ended = np.zeros(9000, np.uint16), list[int](), list[int]()

    async def announce(records: Sequence[Record]) -> None:
        begun.append(len(begun))
        for _ in range(20):
            await asyncio.sleep(0)
        # Read late: the next load is in the block by now.
        for update in block.updates(records):
            apply(found, update)
        ended.append(len(begun))

    asyncio.run(block.send(updates, announce))
    assert np.array_equal(found, updates[0].values)
    assert ended == [number + 1 for number in begun], "one load is read at a time"

    async def refuse(records: Sequence[Record]) -> None:
        begun.append(len(begun))
        raise OSError("no")

    begun.clear()
    with pytest.raises(OSError, match="no"):
        asyncio.run(block.send(updates, refuse))
    assert len(begun) == 1


def test_a_block_takes_a_part_of_the_shared_memory_that_is_free(tmp_path: Path) -> None:
    block = TransferBuffer.create(folder=tmp_path)
    block.unlink()
    assert LEAST_BUFFER_BYTES <= block.num_bytes <= MAX_BUFFER_BYTES


def test_positions_far_apart_are_sent_in_pieces() -> None:
    positions = np.array([5, 6, (1 << 32) + 4, (1 << 32) + 5, 1 << 34])
    update = Update(name=NAME, positions=positions, start=5, values=np.arange(5, dtype=np.uint16))
    block = TransferBuffer.create(MIN_BUFFER_BYTES)
    block.unlink()
    (records,) = block.loads([update])
    found = list(block.updates(records))
    assert len(found) == 3
    assert [
        int(place) for each in found if each.positions is not None for place in each.positions
    ] == positions.tolist()


def test_no_file_is_left_of_the_shared_block_and_its_mappings_go_on(tmp_path: Path) -> None:
    block = TransferBuffer.create(MIN_BUFFER_BYTES, tmp_path)
    assert block.path.stat().st_mode & 0o777 == 0o600
    other = TransferBuffer.attach(block.path)
    block.unlink()
    block.unlink()
    assert list(tmp_path.iterdir()) == []
    block.words(16, 2)[:] = (7, 9)
    assert other.words(16, 2).tolist() == [7, 9]


@pytest.mark.processes
def test_no_file_is_left_of_a_block_whose_maker_is_killed_while_it_has_a_name() -> None:
    program = (
        "import os; from rollout_worker.engines.vllm.transfer_buffer import MIN_BUFFER_BYTES, TransferBuffer;"
        "print(TransferBuffer.create(MIN_BUFFER_BYTES).path, flush=True); input(); os.kill(os.getpid(), 9)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as maker:
        assert maker.stdin is not None
        assert maker.stdout is not None
        path = Path(maker.stdout.readline().strip())
        assert path.exists()
        maker.stdin.write("\n")
    wait_for(lambda: not path.exists(), f"the end of {path}")


def test_a_record_outside_the_block_is_refused() -> None:
    block = TransferBuffer.create(MIN_BUFFER_BYTES)
    block.unlink()
    for record in ((NAME, 0, MIN_BUFFER_BYTES, False, 0), (NAME, 0, 1, False, 3), (NAME, 0, -1, False, 0)):
        with pytest.raises(ValueError, match="a record of"):
            list(block.updates([record]))


def test_shared_memory_that_is_full_or_missing_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs shared memory"):
        TransferBuffer.create(folder=tmp_path / "missing")
