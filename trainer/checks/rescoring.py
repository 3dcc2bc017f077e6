"""Computes samples again with the weights that sampled them.

The model is a skeleton: it has no weights of its own, and each call lends it those of a published version. So it works
beside a trained model that ranks have divided among them, and masters are not touched. Products are in float32 or
bfloat16, as asked; the weights are the published ones, which are rounded to bfloat16 either way.
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM, PretrainedConfig

from periplus.values.low_rank import merged_state
from periplus.values.weight_state import Tensor, WeightState
from trainer.learning.batch import Sample
from trainer.learning.forward.memory import free_device_bytes
from trainer.learning.forward.packing import TokenSequence, pack
from trainer.learning.forward.scorer import PolicyScorer, Surprisals

TORCH_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}

WORK_BYTES = 1 << 30
"""Memory of an accelerator for activations and logits of a call, beside the weights. Chosen by hand; not measured."""


class Rescorer:
    """Computes samples again with published states of a model of this configuration, on `device`.

    `adapter_scale` is the factor of the adapters' product, of a model that has some. They are merged, as in engines.
    """

    def __init__(self, config: PretrainedConfig, device: torch.device, adapter_scale: float | None = None) -> None:
        with init_empty_weights(include_buffers=False):
            self._model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
        self._model.tie_weights()  # each parameter was made anew
        for module in self._model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        self._device = device
        self._adapter_scale = adapter_scale

    @property
    def missing_bytes(self) -> int:
        """Bytes of memory that a call lacks on the device at present; 0 on a CPU."""
        needed = 4 * sum(parameter.numel() for parameter in self._model.parameters()) + WORK_BYTES
        return 0 if self._device.type == "cpu" else max(0, needed - free_device_bytes(self._device))

    def surprisals(
        self, state: WeightState, samples: Sequence[Sample], temperature: float, dtype: torch.dtype
    ) -> Surprisals:
        """Return what a state's distributions say of all completion tokens of the samples, in their order, on the host.

        Raises: RuntimeError if the state lacks a weight of the model.
        """
        sequences = [TokenSequence(prompt_ids=s.prompt_ids, completion_ids=s.completion_ids) for s in samples]
        width = max(len(sample.completion_ids) for sample in samples)
        packed = pack(sequences, width, self._device)
        held = state if self._adapter_scale is None else merged_state(state, self._adapter_scale)
        weights = {f"scorer.model.{name}": _on(self._device, each, dtype) for name, each in held.items()}
        called = _Call(PolicyScorer(self._model, compute_dtype=dtype))
        with torch.no_grad():
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
