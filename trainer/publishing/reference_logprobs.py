"""The probe: log-probabilities of a few fixed prompts under a published version, to be compared with those of engines.

The hash of an engine's tensors shows that the right bits are there. It does not show that the engine computes with
them: a tensor could be written to a wrong place, and be read back from the same place. The closing of a version
therefore carries the trainer's own log-probabilities of a few fixed sequences (periplus/values/probe_prompts.py). The
trainer computes them in float32 from the rounded weights, which are those that are published. Adapters are merged into
their layers, as engines do it.

A deep model rounds more in bfloat16 than a shallow one. By how much is measured once, with the trainer's own weights,
and travels with the bundle: engines that compute in bfloat16 are held against it (`relative_rounding`).

The float32 masters of a module are replaced only during its forward pass, so at most one module's own parameters exist
twice. Nobody may train meanwhile: the probe is part of a version's snapshot.

On a model that FSDP2 has divided among ranks the probe is a collective: every rank calls it with the same prompts, and
each gets the result. FSDP2 gathers a module's parameters just before its forward pass. The gathered copies are rounded,
and the shards are never touched. Afterwards all modules are divided again.

Shapes: R prompts, P tokens of each, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from periplus.values.probe_prompts import probe_difference
from trainer.data.adapters import adapted_layers, adapters_off, merged_weight
from trainer.learning.forward.compiled import uncompiled
from trainer.publishing.local_rows import reshard


def relative_rounding(model: Any, ids_RP: npt.NDArray[np.int64]) -> float:
    """Return how far the log-probabilities in bfloat16 are from those in float32, as a share of their spread.

    The result is that of `ProbeDifference.relative`: not finite if a log-probability is not.
    """
    exact, rounded = (logprobs(model, ids_RP, dtype).reshape(-1).tolist() for dtype in (torch.float32, torch.bfloat16))
    return probe_difference(exact, rounded).relative


@torch.no_grad()
def logprobs(model: Any, ids_RP: npt.NDArray[np.int64], dtype: torch.dtype = torch.float32) -> npt.NDArray[np.float32]:
    """Return the log-probability of each token given those before it, with the weights rounded to bfloat16.

    `ids_RP` holds token ids. `dtype` is what the model computes in. The result has the shape [R, P - 1], in nats: the
    first token has no log-probability.
    """
    ids = torch.from_numpy(ids_RP).to(next(model.parameters()).device)
    with uncompiled(model), _rounded(model, dtype), adapters_off(model):
        logits_RPV = model(input_ids=ids, use_cache=False).logits.to(torch.float32)
    all_RPV = torch.log_softmax(logits_RPV[:, :-1], dim=-1)
    found: npt.NDArray[np.float32] = all_RPV.gather(-1, ids[:, 1:, None]).squeeze(-1).cpu().numpy()
    return found


@contextmanager
def _rounded(model: Any, dtype: torch.dtype) -> Iterator[None]:
    # Hooks round the parameters of each module when its forward pass begins, and put the masters back when it ends.
    # Parameters are kept as objects: FSDP2 exchanges those of a module when it gathers and divides them.
    masters: dict[torch.nn.Module, list[tuple[torch.nn.Parameter, torch.Tensor]]] = {}
    adapted = {layer.base_layer: layer for layer in adapted_layers(model).values()}

    def enter(module: torch.nn.Module, _: object) -> None:
        parameters = list(module.parameters(recurse=False))
        masters[module] = [(parameter, parameter.data) for parameter in parameters]
        merged = merged_weight(adapted[module]) if module in adapted else None
        for parameter in parameters:
            # In `dtype` also if FSDP2 has gathered them in bfloat16.
            parameter.data = parameter.data.to(torch.bfloat16).to(dtype)
        if merged is not None:
            module.weight.data = merged.to(dtype)

    def leave(module: torch.nn.Module, *_: object) -> None:
        for parameter, data in masters.pop(module, ()):
            parameter.data = data

    hooks = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            # Last before the forward pass, when FSDP2 has gathered, and first after it, before FSDP2 divides again.
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, prepend=True))
    try:
        yield
    finally:
        # After an error within a forward pass, the modules that were inside it still have rounded parameters.
        for module in reversed(tuple(masters)):
            leave(module)
        for hook in hooks:
            hook.remove()
        # The outermost module stays gathered after a forward pass, and the next one would use these old weights.
        reshard(model)
