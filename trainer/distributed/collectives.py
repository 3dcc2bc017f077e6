"""Collectives of host memory: arrays of different lengths go to rank 0, and small values go to all ranks.

torch's own `gather` wants arrays of one length on all ranks. Here each rank sends what it has, and rank 0 receives the
ranks one after another, so that it holds the arrays of one other rank at a time.

Rules for callers:
- Every rank calls the same methods in the same order, and each call waits for the other ranks. How long it waits at
  most is the time limit of the process group.
- Work that runs in a thread beside training needs a process group of its own. On one group, calls of two threads could
  meet each other's partners.
- The group's backend must send host memory (gloo), whatever backend the training itself uses.

A single process (`size` 1) sends nothing, and needs no process group.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

Arrays = Sequence[npt.NDArray[Any]]
"""Arrays of one dimension."""


class HostCollectives:
    """Position of this process among `size` ranks, and what it exchanges with them.

    `group` is a torch.distributed process group, and None means the default one. It is not used if `size` is 1.
    """

    def __init__(self, *, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group

    @classmethod
    def over(cls, group: Any = None) -> Self:
        """Return the collectives of a process group, or of the default one."""
        return cls(rank=dist.get_rank(group), size=dist.get_world_size(group), group=group)

    def gather(self, arrays: Arrays, visit: Callable[[int, Arrays], None]) -> None:
        """Call `visit(rank, arrays)` on rank 0 for each rank in order, itself first. Elsewhere send the arrays.

        All ranks give the same number of arrays of one dimension, and their dtypes agree by position. The lengths are
        free. Rank 0 drops the arrays of one rank before it receives those of the next, unless `visit` keeps them.

        Raises: on rank 0 the first error of `visit`, after it has received the arrays of all ranks. So an error there
        leaves no other rank waiting.
        """
        if self.rank:
            self._send(np.array([array.size for array in arrays], np.int64))
            for array in arrays:
                self._send(array)
            return
        failure: Exception | None = None
        for rank in range(self.size):
            found = arrays if rank == 0 else self._received(rank, arrays)
            if failure is None:
                try:
                    visit(rank, found)
                except Exception as error:  # raised below, once no rank waits
                    failure = error
        if failure is not None:
            raise failure

    def gather_values(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks in order on rank 0, and an empty list elsewhere."""
        found: list[Any] = []
        self.gather([_packed(value)], lambda _, arrays: found.append(_unpacked(arrays[0])))
        return found

    def broadcast_value(self, value: Any) -> Any:
        """Return rank 0's JSON value on every rank; elsewhere `value` is ignored."""
        if self.size == 1:
            return value
        packed = _packed(value if self.rank == 0 else None)
        length = torch.tensor([packed.size])
        dist.broadcast(length, group_src=0, group=self._group)
        content = torch.from_numpy(packed) if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, group_src=0, group=self._group)
        return value if self.rank == 0 else _unpacked(content.numpy())

    def exchange_values(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in order, on every rank."""
        found: list[Any] = self.broadcast_value(self.gather_values(value))
        return found

    def _send(self, array: npt.NDArray[Any]) -> None:
        if array.size:
            dist.send(_as_bytes(array), group_dst=0, group=self._group)

    def _received(self, rank: int, like: Arrays) -> list[npt.NDArray[Any]]:
        lengths = np.empty(len(like), np.int64)
        if lengths.size:
            dist.recv(_as_bytes(lengths), group_src=rank, group=self._group)
        found: list[npt.NDArray[Any]] = [
            np.empty(length, array.dtype) for length, array in zip(lengths.tolist(), like, strict=True)
        ]
        for array in found:
            if array.size:
                dist.recv(_as_bytes(array), group_src=rank, group=self._group)
        return found


def _as_bytes(array: npt.NDArray[Any]) -> torch.Tensor:
    # gloo knows neither uint16 nor uint32, so bytes travel. The tensor shares the array's memory.
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))


def _packed(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(json.dumps(value).encode()), np.uint8)


def _unpacked(packed: npt.NDArray[Any]) -> Any:
    return json.loads(packed.tobytes())
