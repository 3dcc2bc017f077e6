"""The digest of tensors that come in loads, against the digest of the whole state."""

import asyncio

import numpy as np
import pytest

from periplus.codec.weights.layout import StateLayout, layout_of
from periplus.errors import ConfigError
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.vllm.gathered_digest import Region, gathered_digest, loads
from rollout_worker.engines.vllm.transfer_buffer import MIN_BUFFER_BYTES, TransferBuffer

SHAPES = {"a.norm": (640,), "b.large": (900, 1200), "c": (3, 5), "d.empty": (0, 7), "e": (1, 1)}
"""The second has more than two blocks of 1 MiB, and a block ends inside a row."""


def state() -> WeightState:
    rng = np.random.default_rng(0)
    return {
        name: Tensor("BF16", shape, rng.integers(0, 0xFFFF, int(np.prod(shape)), dtype=np.uint16))
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("num_bytes", [MIN_BUFFER_BYTES, 1 << 20, (1 << 21) + 24])
def test_it_is_the_digest_of_the_whole_state_whatever_the_size_of_a_load(num_bytes: int) -> None:
    held = state()
    buffer = TransferBuffer.create(num_bytes)
    buffer.unlink()

    async def copy_rows(regions: list[Region]) -> None:
        for name, first, stop, offset in regions:
            rows = held[name].data.view(np.uint16).reshape(SHAPES[name][0], -1)[first:stop]
            buffer.words(offset, rows.size)[:] = rows.reshape(-1)

    assert asyncio.run(gathered_digest(layout_of(held), buffer, copy_rows)) == state_digest(held)


def test_a_row_that_is_larger_than_the_block_is_refused() -> None:
    layout: StateLayout = layout_of(state())
    with pytest.raises(ConfigError, match=r"a row of b\.large has 2400 bytes"):
        list(loads(layout, 2048))
