"""Divides a model among the ranks with FSDP2, with the weights that rank 0 has.

Each decoder layer is one unit, and the rest of the model another: FSDP2 gathers the parameters of a unit just before
they are needed and drops them afterwards. Rank 0 has the whole model in its memory, and the other ranks a skeleton on
the `meta` device. Rank 0 sends each rank its rows of one tensor after another, so no other rank ever holds the whole
model.

Losses are shares of the mean over the whole update (trainer/learning/losses/aggregate.py). So gradients are summed over
ranks, while FSDP2 would average them.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from trainer.distributed.process_group import RankGroups


def divide(model: Any, groups: RankGroups) -> Any:
    """Divide a model among all ranks by rows, in place, and return it. It is a collective.

    On rank 0 `model` holds the weights. Elsewhere it is the same model on the `meta` device. Parameters are DTensors
    afterwards, on the device of each rank.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers()) if groups.rank == 0 else {}
    whole = {name: tensor.detach() for name, tensor in tensors.items()}
    for layer in _layers(model):
        _divide_unit(layer, groups)
    _divide_unit(model, groups)
    _check_names(model, groups)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), f"{name} is not divided"
        # Dropped from `whole` as soon as it was sent, so that rank 0's memory shrinks.
        _send_rows(whole.pop(name, None), parameter.to_local().detach(), groups)
    for name, buffer in model.named_buffers():
        _send_whole(whole.pop(name, None), buffer, groups)
    return model


def rows_of_rank(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the rows [start, stop) that FSDP2 gives a rank: pieces of equal size, of which the last may be shorter."""
    most = -(-num_rows // size)
    return min(num_rows, rank * most), min(num_rows, (rank + 1) * most)


def _layers(model: Any) -> list[torch.nn.Module]:
    # transformers names the classes that must stay on one device: the decoder layers.
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]


def _divide_unit(unit: torch.nn.Module, groups: RankGroups) -> None:
    _materialise(unit, groups.device)
    # Gathered weights are dropped after each forward pass, those outside of layers too: several models are here, and
    # the large tables of all of them would stay.
    fully_shard(unit, mesh=groups.mesh, reshard_after_forward=True)
    assert isinstance(unit, FSDPModule)
    # gloo cannot scale within a sum, so it must be plain sums that FSDP2 asks for.
    unit.set_force_sum_reduction_for_comms(True)
    unit.set_gradient_divide_factor(1.0)


def _materialise(unit: torch.nn.Module, device: torch.device) -> None:
    # Replace tensors on the `meta` device by ones without content. Tied parameters stay tied.
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in unit.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.is_meta:
                if parameter not in made:
                    content = torch.empty_like(parameter, device=device)
                    made[parameter] = torch.nn.Parameter(content, requires_grad=parameter.requires_grad)
                setattr(module, name, made[parameter])
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, torch.empty_like(buffer, device=device))


def _check_names(model: Any, groups: RankGroups) -> None:
    # A tensor that only one rank has would be waited for in vain.
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    expected = groups.host.broadcast_value(names)
    assert names == expected, f"rank {groups.rank} has other tensors than rank 0: {set(names) ^ set(expected)}"


def _send_rows(whole: torch.Tensor | None, local: torch.Tensor, groups: RankGroups) -> None:
    # FSDP2 has already copied rank 0's own rows.
    if whole is not None:
        for rank in range(1, groups.size):
            start, stop = rows_of_rank(whole.shape[0], rank, groups.size)
            if stop > start:
                dist.send(whole[start:stop].cpu().contiguous(), group_dst=rank, group=groups.host_group)
        return
    if local.numel():
        content = torch.empty_like(local, device="cpu")
        dist.recv(content, group_src=0, group=groups.host_group)
        local.copy_(content)


def _send_whole(whole: torch.Tensor | None, mine: torch.Tensor, groups: RankGroups) -> None:
    content = torch.empty_like(mine, device="cpu") if whole is None else whole.cpu().contiguous()
    dist.broadcast(content, group_src=0, group=groups.host_group)
    mine.copy_(content)
