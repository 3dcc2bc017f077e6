"""Computes samples again with the weights that sampled them.

The trained model is called with the tensors of a kept version in the place of its own, so no second model is needed,
and the masters are not touched. Products are in float32 or bfloat16, as asked; the weights are the published ones,
which are rounded to bfloat16 either way.
"""

from collections.abc import Sequence
from typing import Any

import torch

from periplus.values.low_rank import merged_state
from periplus.values.weight_state import Tensor, WeightState
from trainer.data.adapters import adapters_off, published_parameters
from trainer.learning.batch import Sample
from trainer.learning.forward.packing import TokenSequence, pack
from trainer.learning.forward.scorer import PolicyScorer, Surprisals

TORCH_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


class Rescorer:
    """Computes samples again with published states of a model that is whole on its device.

    `adapter_scale` is the factor of the adapters' product, of a model that has some. They are merged, as in engines.
    """

    def __init__(self, model: Any, adapter_scale: float | None = None) -> None:
        self._model = model
        self._adapter_scale = adapter_scale
        parameters = {id(parameter): name for name, parameter in model.named_parameters()}
        self._name_of = {name: parameters[id(parameter)] for name, parameter in published_parameters(model)}

    def surprisals(
        self, state: WeightState, samples: Sequence[Sample], temperature: float, dtype: torch.dtype
    ) -> Surprisals:
        """Return what a state's distributions say of all completion tokens of the samples, in their order, on the host.

        Raises: KeyError if the state is of another model.
        """
        device = next(self._model.parameters()).device
        sequences = [TokenSequence(prompt_ids=s.prompt_ids, completion_ids=s.completion_ids) for s in samples]
        width = max(len(sample.completion_ids) for sample in samples)
        packed = pack(sequences, width, device)
        held = state if self._adapter_scale is None else merged_state(state, self._adapter_scale)
        weights = {f"scorer.model.{self._name_of[name]}": _on(device, each, dtype) for name, each in held.items()}
        called = _Call(PolicyScorer(self._model, compute_dtype=dtype))
        with torch.no_grad(), adapters_off(self._model):
            found = torch.func.functional_call(called, weights, (packed, temperature))
        cells = packed.cells_M.cpu()
        in_order = torch.argsort(cells)  # packed longest first; cells run through the rows of the batch
        return Surprisals(*(each.cpu()[in_order] for each in found))


class _Call(torch.nn.Module):
    """What `functional_call` needs: a module that calls a method of another one."""

    def __init__(self, scorer: PolicyScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, *arguments: Any) -> Surprisals:
        return self.scorer.surprisals(*arguments)


def _on(device: torch.device, tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
    # The state's bytes may not be written to; torch only warns of that, and nothing here writes.
    there = torch.frombuffer(tensor.data, dtype=TORCH_DTYPES[tensor.dtype]) if tensor.data.size else torch.empty(0)
    return there.reshape(tensor.shape).to(device=device, dtype=dtype)
