"""The digest (periplus/values/digest.py) of weights that several ranks hold together.

A block of a tensor that is divided by columns has elements of every rank. So each tensor is hashed by one of the ranks
that hold it, to which the others send their parts over vLLM's own network, wherever they are (shard_memory.py). The
ranks are asked for some tensors at a time, and generate between two calls.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from periplus.codec.weights.layout import StateLayout
from periplus.errors import CorruptFrame
from periplus.values.digest import digest_of
from rollout_worker.engines.vllm.shards import TensorShard

LOAD_BYTES = 256 << 20
"""Bytes of the tensors of one call, unless one alone is larger. They are in the memory of the ranks' hosts meanwhile.
Chosen by hand: hundreds of calls for 100 GB, each of a fraction of a second."""

Gather = list[Any]
"""Tensor, its shape, the rank that hashes it, and the parts of all ranks that hold some of it: rank, first row, row
after the last, first column, column after the last. It is a JSON value."""


async def gathered_digest(
    layout: StateLayout,
    shards_of_ranks: Sequence[Sequence[TensorShard]],
    call: Callable[[list[Gather]], Awaitable[Sequence[Any]]],
) -> bytes:
    """Return the state digest of the tensors that the ranks hold.

    `call` has all ranks do `ShardMemory.gathered_digests`, and returns what each of them returned.

    Raises: CorruptFrame if a tensor has a value that no publication has, or ranks with the same part disagree; what
    `call` raises.
    """
    tensors: dict[str, bytes] = {}
    for load in gathers(layout, shards_of_ranks):
        for found in await call(load):
            if isinstance(found, str):
                raise CorruptFrame(found)
            tensors.update((name, bytes.fromhex(digest)) for name, digest in found)
    return whole_digest(layout, tensors)


def whole_digest(layout: StateLayout, tensors: Mapping[str, bytes]) -> bytes:
    """Return the state digest from the digest of each tensor of the layout."""
    return digest_of((line.name, line.dtype, line.shape, tensors[line.name]) for line in layout.lines)


def gathers(
    layout: StateLayout, shards_of_ranks: Sequence[Sequence[TensorShard]], load_bytes: int = LOAD_BYTES
) -> Iterator[list[Gather]]:
    """Yield what the ranks hash in each call. The holders of tensors take turns."""
    holders: dict[str, list[list[int]]] = {line.name: [] for line in layout.lines}
    for rank, shards in enumerate(shards_of_ranks):
        for each in shards:
            bounds = [each.row_start, each.row_stop, each.column_start, each.column_stop]
            holders[each.name].append([rank, *bounds])
    load: list[Gather] = []
    num_bytes = 0
    for number, line in enumerate(layout.lines):
        if load and num_bytes + line.num_bytes > load_bytes:
            yield load
            load, num_bytes = [], 0
        # A rank may have no row of a short vocabulary; an empty tensor has a holder too.
        parts = [each for each in holders[line.name] if each[1] < each[2]] or holders[line.name][:1]
        load.append([line.name, list(line.shape), parts[number % len(parts)][0], parts])
        num_bytes += line.num_bytes
    if load:
        yield load
