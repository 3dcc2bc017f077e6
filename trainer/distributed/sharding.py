"""Gives the ranks a model with the weights that rank 0 has: divided among them with FSDP2, or whole on each of them.

Each decoder layer is one unit, and the rest of the model another: FSDP2 gathers the parameters of a unit just before
they are needed and drops them afterwards. Rank 0 has the whole model in its memory, and the other ranks a skeleton on
the `meta` device. Rank 0 sends each rank its rows of one tensor after another, so no other rank ever holds the whole
model. Where each machine has a copy (HSDP), the ranks of a machine divide it among them. Where each rank has a copy,
it trains as a single process does, and gradients are summed after its passes (trainer/learning/step.py).

Losses are shares of the mean over the whole update (trainer/learning/losses/aggregate.py). So gradients are summed over
ranks, while FSDP2 would average them.

A model that computes in bfloat16 keeps float32 rows. FSDP2 rounds them before it gathers them, so half as many bytes
travel, and sums gradients in float32.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from trainer.distributed.process_group import RankGroups
from trainer.learning.critic import Critic
from trainer.learning.forward.scorer import PolicyScorer


def divide(module: PolicyScorer | Critic, groups: RankGroups) -> None:
    """Divide the model of a scorer, or a critic, among all ranks by rows, in place. It is a collective.

    On rank 0 the model has its weights. Elsewhere it is the same model on the `meta` device. Parameters are DTensors
    afterwards, on the device of each rank; or whole, if each rank has a copy.
    """
    root: Any = module.model if isinstance(module, PolicyScorer) else module
    tensors = dict(root.named_parameters()) | dict(root.named_buffers()) if groups.rank == 0 else {}
    whole = {name: tensor.detach() for name, tensor in tensors.items()}
    # Inputs are not cast: embeddings have the type of their weights, and the probe computes in float32.
    rounding = MixedPrecisionPolicy(
        param_dtype=module.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    _check_alike(root, rounding, groups)
    if groups.is_whole:
        _materialise(root, groups.device)
        root.to(groups.device)
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            _send_whole(whole.pop(name, None), tensor.detach(), groups)
        return
    module.compute_dtype = None  # the gathered weights are rounded already
    for layer in _layers(root):
        _divide_unit(layer, groups, rounding)
    if isinstance(module, Critic):
        _divide_unit(module.head, groups, MixedPrecisionPolicy(cast_forward_inputs=False))  # it computes in float32
    _divide_unit(root, groups, rounding)
    if isinstance(module, PolicyScorer):
        module.around = _call_within(root)
    _send_weights(root, whole, groups)


def _call_within(root: Any) -> Callable[[Callable[[], Any]], Any]:
    # A method of the root that FSDP2 takes for a forward pass: it gathers what belongs to the root, and calls `run`.
    def call(_: Any, run: Callable[[], Any]) -> Any:
        return run()

    root.call_within = MethodType(call, root)
    register_fsdp_forward_method(root, "call_within")
    found: Callable[[Callable[[], Any]], Any] = root.call_within
    return found


def _send_weights(root: Any, whole: dict[str, torch.Tensor], groups: RankGroups) -> None:
    for name, parameter in root.named_parameters():
        assert isinstance(parameter, DTensor), f"{name} is not divided"
        # Dropped from `whole` as soon as it was sent, so that rank 0's memory shrinks.
        _send_rows(whole.pop(name, None), parameter.to_local().detach(), groups)
    for name, buffer in root.named_buffers():
        _send_whole(whole.pop(name, None), buffer, groups)


def rows_of_rank(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the rows [start, stop) that FSDP2 gives a rank of a copy: equal pieces, but the last may be shorter."""
    most = -(-num_rows // size)
    return min(num_rows, rank * most), min(num_rows, (rank + 1) * most)


def _layers(model: Any) -> list[torch.nn.Module]:
    # transformers names the classes that must stay on one device: the decoder layers.
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]


def _divide_unit(unit: torch.nn.Module, groups: RankGroups, rounding: MixedPrecisionPolicy) -> None:
    _materialise(unit, groups.device)
    # Gathered weights are dropped after each forward pass, those outside of layers too: several models are here, and
    # the large tables of all of them would stay.
    fully_shard(unit, mesh=groups.mesh, reshard_after_forward=True, mp_policy=rounding)
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


def _check_alike(root: Any, rounding: MixedPrecisionPolicy, groups: RankGroups) -> None:
    # A tensor that only one rank has, or of which one rank sends other bytes, would be waited for in vain.
    names = [name for name, _ in (*root.named_parameters(), *root.named_buffers())]
    mine = [str(rounding.param_dtype), names]
    expected = groups.host.broadcast_value(mine)
    assert mine == expected, f"rank {groups.rank} divides another model than rank 0: {mine} instead of {expected}"


def _send_rows(whole: torch.Tensor | None, local: torch.Tensor, groups: RankGroups) -> None:
    # FSDP2 has already copied rank 0's own rows.
    if whole is not None:
        parts = groups.mesh.shape[-1]
        for rank in range(1, groups.size):
            start, stop = rows_of_rank(whole.shape[0], rank % parts, parts)
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
