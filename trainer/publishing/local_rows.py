"""The rows of each tensor that this process holds: all of them, or one shard of a model that FSDP2 has divided.

FSDP2 (`fully_shard`) divides each parameter along its first dimension, as `torch.chunk` does: rank i of N holds the
rows [i * c, (i + 1) * c) with c = ceil(rows / N), cut off at the last row. So later ranks may hold fewer rows or none.
Rows are contiguous in memory, so a shard is one range of the tensor's elements.

A tensor that is not divided is held by every rank alike. Rank 0 *owns* its rows; other rows are owned by their holder,
in the first copy if there are several (HSDP).
A tensor without dimensions counts as one row.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from periplus.values.row_parts import num_rows
from trainer.data.adapters import published_parameters, trained_parameters
from trainer.distributed.collectives import Arrays, HostCollectives


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
        """Shape of the rows that are here, if there is any."""
        return (self.stop - self.start, *self.shape[1:]) if self.shape else ()


def parameter_rows(model: Any, rank: int, *, trained_only: bool = False) -> tuple[LocalRows, ...]:
    """Return the rows of all parameters of a model that this rank owns, sorted by the names of their publication.

    With `trained_only`, they are the adapters of a model that has some. Tied weights appear once. Modules that FSDP2
    has gathered for a forward pass are divided again first.

    Raises: ValueError as `held_rows` does, or if only some parameters are divided. A parameter is whole here if a
    module outside of `model` has gathered it.
    """
    reshard(model)
    parameters = dict(trained_parameters(model) if trained_only else published_parameters(model))
    whole = [name for name, parameter in parameters.items() if not isinstance(parameter, DTensor)]
    if whole and len(whole) < len(parameters):
        raise ValueError(f"{whole[0]} is whole, while other parameters are divided among ranks")
    return tuple(owned_rows(name, parameters[name], rank) for name in sorted(parameters))


def held_rows(name: str, tensor: torch.Tensor) -> LocalRows:
    """Return the rows of a tensor that this process has in memory: all of them unless it is divided.

    Raises: ValueError for a tensor that is divided in another way than by rows over the ranks of a copy.
    """
    local, shape = tensor.detach(), tuple(tensor.shape)
    start, stop = 0, num_rows(shape)
    if isinstance(local, DTensor):
        start, stop = _range(name, local)
        local = local.to_local()
    return LocalRows(name=name, shape=shape, start=start, stop=stop, tensor=local)


def owned_rows(name: str, tensor: torch.Tensor, rank: int) -> LocalRows:
    """Return the rows of a tensor for which this rank answers, such that each row has one owner.

    Raises: ValueError as `held_rows` does.
    """
    held = held_rows(name, tensor)
    if _is_in_first_copy(tensor) if isinstance(tensor, DTensor) else rank == 0:
        return held
    nothing = held.tensor.reshape(held.stop - held.start, *held.shape[1:])[:0]
    return LocalRows(name=name, shape=held.shape, start=0, stop=0, tensor=nothing)


def gather_each(
    all_rows: Iterable[LocalRows],
    ranks: HostCollectives,
    arrays_of: Callable[[LocalRows], Arrays],
    visit: Callable[[LocalRows, Arrays], None],
) -> None:
    """For one tensor after another, call `visit` on rank 0 with the arrays of each rank, in order.

    All ranks give the same tensors in the same order. Rank 0 holds the arrays of one rank at a time. `visit` gets rank
    0's own rows with them, of which only name and shape are those of the other rank too.

    Raises: on rank 0 the first error of `visit`, after all arrays of all ranks came; `visit` is not called again.
    """
    failures: list[Exception] = []

    def visited(rows: LocalRows, arrays: Arrays) -> None:
        if not failures:
            visit(rows, arrays)

    for rows in all_rows:
        try:
            ranks.gather(arrays_of(rows), lambda _, arrays, of=rows: visited(of, arrays))  # type: ignore[misc]
        except Exception as error:  # raised below, once no rank waits
            failures.append(error)
    if failures:
        raise failures[0]


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


def _is_in_first_copy(tensor: DTensor) -> bool:
    place = tensor.device_mesh.get_coordinate()
    assert place is not None, "all ranks are in the mesh"
    return not any(place[:-1])


def _range(name: str, tensor: DTensor) -> tuple[int, int]:
    placements, mesh, total = tensor.placements, tensor.device_mesh, tensor.shape[0]
    if placements not in ((Shard(0),), (Replicate(), Shard(0))):
        raise ValueError(f"{name} is divided as {placements}; only rows over one dimension of ranks can be taken")
    most = -(-total // mesh.shape[-1])
    start = min(total, mesh.get_local_rank(mesh.ndim - 1) * most)
    stop = min(total, start + most)
    # FSDP2 could divide in another way in a later release.
    if tensor.to_local().shape[0] != stop - start:
        raise ValueError(f"{name} has {tensor.to_local().shape[0]} rows here, and {stop - start} were expected")
    return start, stop
