"""Which rank hashes which tensor, and the digest of a state whose parts are hashed by ranks of real gloo groups."""

import asyncio
import multiprocessing
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from periplus.codec.weights.layout import layout_of
from periplus.errors import CorruptFrame
from periplus.values.digest import state_digest
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.vllm.gathered_digest import gathered_digest, gathers
from rollout_worker.engines.vllm.shard_memory import Digests, ShardMemory
from rollout_worker.engines.vllm.shards import TensorShard

Bounds = tuple[int, int, int, int]

PARTS: dict[str, tuple[tuple[int, ...], list[Bounds | None]]] = {
    "a.norm": ((640,), [(0, 640, 0, 1), (0, 640, 0, 1), None]),
    "b.columns": ((900, 1200), [(0, 900, 0, 800), (0, 900, 800, 1200), None]),
    "c.rows": ((3, 5), [(0, 2, 0, 5), (2, 3, 0, 5), None]),
    "d.short": ((4, 2), [(0, 4, 0, 2), (4, 4, 0, 2), None]),
    "e.stage": ((7, 1), [None, None, (0, 7, 0, 1)]),
}
"""Shape of each tensor, and the rows and columns of each of three ranks. The last one is another stage."""


def state() -> WeightState:
    rng = np.random.default_rng(0)
    return {
        name: Tensor("BF16", shape, rng.integers(0, 0x7F00, int(np.prod(shape)), dtype=np.uint16))
        for name, (shape, _) in PARTS.items()
    }


def shards_of(rank: int) -> dict[str, TensorShard]:
    return {
        name: TensorShard(
            name=name,
            shape=shape,
            row_start=bounds[0],
            row_stop=bounds[1],
            column_start=bounds[2],
            column_stop=bounds[3],
        )
        for name, (shape, parts) in PARTS.items()
        if (bounds := parts[rank]) is not None
    }


SHARDS = [tuple(shards_of(rank).values()) for rank in range(3)]


FAULTS = ("", "differs", "float")


def memory_of(rank: int, fault: str) -> ShardMemory:
    views = {}
    for name, shard in shards_of(rank).items():
        whole = state()[name].data.view(np.uint16).reshape(shard.shape[0], -1)
        part = whole[shard.row_start : shard.row_stop, shard.column_start : shard.column_stop]
        held = torch.from_numpy(np.ascontiguousarray(part).view(np.int16)).view(torch.bfloat16)
        views[name] = held.float() if fault == "float" else held
    if rank == 1 and fault == "differs":
        views["a.norm"].view(torch.int16)[5] ^= 1
    if rank == 1 and fault == "float":
        views["b.columns"][0, 0] = 1 + 2**-20
    return ShardMemory(shards_of(rank), views, is_stage=True)


def hashed(rank: int, folder: Path, loads: list[Any]) -> dict[str, list[Digests | str]]:
    """What one rank returns for each load, by fault."""
    dist.init_process_group(
        "gloo", store=FileStore(str(folder / "ranks"), 3), rank=rank, world_size=3, timeout=timedelta(seconds=60)
    )
    found = {
        fault: [memory_of(rank, fault).gathered_digests(load, rank, dist.group.WORLD) for load in loads]
        for fault in FAULTS
    }
    dist.destroy_process_group()
    return found


LOADS = list(gathers(layout_of(state()), SHARDS))


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Digests | str]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        return pool.starmap(hashed, [(rank, folder, LOADS) for rank in range(3)], chunksize=1)


def digest(of_ranks: list[dict[str, list[Digests | str]]], fault: str) -> bytes:
    async def call(load: Any) -> Sequence[Any]:
        return [found[fault][LOADS.index(load)] for found in of_ranks]

    return asyncio.run(gathered_digest(layout_of(state()), SHARDS, call))


def test_every_tensor_is_hashed_once_by_a_rank_that_holds_some_of_it_in_loads_of_a_size() -> None:
    for load_bytes, number in ((1, 5), (1300, 3), (1 << 30, 1)):
        loads = list(gathers(layout_of(state()), SHARDS, load_bytes))
        assert (len(loads), [each[0] for load in loads for each in load]) == (number, list(PARTS))
    owners = {name: owner for name, _, owner, _ in loads[0]}
    assert owners == {"a.norm": 0, "b.columns": 1, "c.rows": 0, "d.short": 0, "e.stage": 2}


@pytest.mark.processes
@pytest.mark.slow
def test_it_is_the_digest_of_the_whole_state(of_ranks: list[dict[str, list[Digests | str]]]) -> None:
    assert digest(of_ranks, "") == state_digest(state())


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [("differs", r"ranks 0 and 1 of vLLM hold different values of a\.norm"), ("float", r"b\.columns holds a value")],
)
def test_a_tensor_that_is_wrong_on_one_rank_is_named(
    of_ranks: list[dict[str, list[Digests | str]]], fault: str, words: str
) -> None:
    with pytest.raises(CorruptFrame, match=words):
        digest(of_ranks, fault)
