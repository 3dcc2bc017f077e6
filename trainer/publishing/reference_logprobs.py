"""Log-probabilities of the fixed prompts under what is published: what an engine's own are compared with.

A hash of an engine's tensors says that the right bits are there, not that the engine computes with them: a tensor may
be read into the wrong place and read back from it. So some closings carry what the trainer's own model thinks of a few
fixed sequences (periplus/values/probe_prompts.py), computed in float32 from the weights rounded as they are published.

The masters are never changed for longer than one module's forward pass, and nobody may train meanwhile: the probe
belongs to the snapshot of a version. At most one module's parameters exist twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@torch.no_grad()
def logprobs(model: Any, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the log-probability of each next token, given those before it, with the weights as they are published.

    *Shapes*: `ids_RP` [R, P] token ids; returns [R, P - 1], in nats.
    """
    ids = torch.from_numpy(ids_RP).to(next(model.parameters()).device)
    with _rounded(model):
        logits_RPV = model(input_ids=ids, use_cache=False).logits.to(torch.float32)
    all_RPV = torch.log_softmax(logits_RPV[:, :-1], dim=-1)
    found: npt.NDArray[np.float32] = all_RPV.gather(-1, ids[:, 1:, None]).squeeze(-1).cpu().numpy()
    return found


@contextmanager
def _rounded(model: Any) -> Iterator[None]:
    masters: dict[torch.nn.Module, list[torch.Tensor]] = {}

    def enter(module: torch.nn.Module, _: object) -> None:
        parameters = list(module.parameters(recurse=False))
        masters[module] = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.data.to(torch.bfloat16).to(parameter.dtype)

    def leave(module: torch.nn.Module, *_: object) -> None:
        for parameter, data in zip(module.parameters(recurse=False), masters.pop(module, ()), strict=False):
            parameter.data = data

    hooks = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for module in reversed(tuple(masters)):
            leave(module)
        for hook in hooks:
            hook.remove()
