"""The rows of each tensor that this process holds: all of them, or one shard of a model that FSDP2 has divided.

FSDP2 (`fully_shard`) divides each parameter along its first dimension, as `torch.chunk` does: rank i of N holds the
rows [i * c, (i + 1) * c) with c = ceil(rows / N), cut off at the last row. So later ranks may hold fewer rows or none.
Rows are contiguous in memory, so a shard is one range of the tensor's elements.

A tensor that is not divided is held by every rank alike. It counts as held by rank 0, so that each row has one holder.
A tensor without dimensions counts as one row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRows:
    """Rows [start, stop) of a tensor with the shape `shape`, which are those that this process holds.

    `tensor` holds exactly these rows, without gradient. It shares the memory of the parameter.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    tensor: torch.Tensor

    @property
    def row_elements(self) -> int:
        """Number of elements in one row."""
        return prod(self.shape[1:])

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the rows that are here. Without any row, a tensor without dimensions has the shape (0,)."""
        if not self.shape:
            return () if self.stop else (0,)
        return (self.stop - self.start, *self.shape[1:])


def num_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a tensor: its first dimension, or 1 for a tensor without dimensions."""
    return shape[0] if shape else 1


def parameter_rows(model: Any, rank: int) -> tuple[LocalRows, ...]:
    """Return this rank's rows of all parameters of a model, sorted by their names. Tied weights appear once.

    Modules that FSDP2 has gathered for a forward pass are divided again first.

    Raises: ValueError as `rows_of` does, or if only some parameters are divided. A parameter is whole here if a module
    outside of `model` has gathered it.
    """
    reshard(model)
    parameters = dict(model.named_parameters())
    whole = [name for name, parameter in parameters.items() if not isinstance(parameter, DTensor)]
    if whole and len(whole) < len(parameters):
        raise ValueError(f"{whole[0]} is whole, while other parameters are divided among ranks")
    return tuple(sorted(rows_of(parameters.items(), rank), key=lambda rows: rows.name))


def rows_of(tensors: Iterable[tuple[str, torch.Tensor]], rank: int) -> Iterator[LocalRows]:
    """Yield this rank's rows of named tensors, in their order.

    Raises: ValueError for a tensor that is divided in another way than by rows over one dimension of ranks.
    """
    for name, found in tensors:
        tensor, shape = found.detach(), tuple(found.shape)
        start, stop = (0, num_rows(shape)) if rank == 0 else (0, 0)
        if isinstance(tensor, DTensor):
            start, stop = _range(name, tensor)
            tensor = tensor.to_local()
        elif rank:
            tensor = tensor.reshape(num_rows(shape), *shape[1:])[:0]
        yield LocalRows(name=name, shape=shape, start=start, stop=stop, tensor=tensor)


def reshard(model: Any) -> None:
    """Divide all modules again that FSDP2 has gathered. The outermost one stays gathered after a forward pass.

    As long as it is gathered, the next forward pass uses the gathered weights, even if the shards have changed.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_sharded(model: Any) -> bool:
    """Return whether FSDP2 has divided the model or a part of it."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def _range(name: str, tensor: DTensor) -> tuple[int, int]:
    placements, mesh, total = tensor.placements, tensor.device_mesh, tensor.shape[0]
    if placements != (Shard(0),):
        raise ValueError(f"{name} is divided as {placements}; only rows over one dimension of ranks can be taken")
    most = -(-total // mesh.size())
    start = min(total, mesh.get_local_rank() * most)
    stop = min(total, start + most)
    # FSDP2 could divide in another way in a later release.
    if tensor.to_local().shape[0] != stop - start:
        raise ValueError(f"{name} has {tensor.to_local().shape[0]} rows here, and {stop - start} were expected")
    return start, stop
