"""Float32 master weights that compute in bfloat16, and the choice between the two.

The optimizer, the checkpoints and the published versions hold on to float32 masters: a step of AdamW at a usual
learning rate is smaller than the spacing of bfloat16 numbers, and would be lost. A forward pass needs less. Rounded to
bfloat16 for the time of one pass, the weights are those that rollout engines compute with.

    weights, inputs of matrix products, and what layers pass on      bfloat16
    sums in norms, attention on a CPU                                float32, inside the models' own layers and ours
    logits, softmax, losses, gradients of masters, optimizer         float32

Rounding is differentiable: its gradient is the gradient of the rounded weight, converted to float32 and added to the
master's. torch's autocast gives a similar result, but keeps the residual stream in float32, which took a third more
time on a CPU (docs/design/0012-training-devices.md has the numbers).

Under FSDP2, `MixedPrecisionPolicy(param_dtype=...)` does the rounding while it gathers the weights. A scorer must then
not round a second time: leave its `compute_dtype` at None.
"""

from typing import Any

import torch

from periplus.errors import ConfigError
from periplus.values.machine import BFLOAT16_CAPABILITY

BFLOAT16_PARAMETERS = 500_000
"""Number of parameters from which `auto` computes in bfloat16 on a CPU that has instructions for it. Steps of 256
samples of 44 tokens on one thread took 0.8 of the time in bfloat16 at 0.2 million parameters and 0.6 at 0.45 million
(docs/design/0012-training-devices.md). Smaller models take a second a step at most, and keep the precision."""


def compute_dtype(choice: str, *, device: torch.device, num_parameters: int, has_bfloat16_units: bool) -> torch.dtype:
    """Return the dtype of forward passes for `train.dtype`: `auto`, `float32` or `bfloat16`.

    `auto` takes bfloat16 only if the device multiplies in it (`has_bfloat16_units`), and on a CPU only if the model is
    large enough to gain. Raises: ConfigError for another choice.
    """
    match choice:
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case "auto":
            gains = device.type != "cpu" or num_parameters >= BFLOAT16_PARAMETERS
            return torch.bfloat16 if has_bfloat16_units and gains else torch.float32
        case _:
            raise ConfigError(f"train.dtype is {choice!r}; choose auto, float32 or bfloat16")


def has_bfloat16_units(device: torch.device) -> bool:
    """Return whether a device multiplies in bfloat16: this machine's CPU by AVX512-BF16 or AMX, a GPU by its age."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def call_rounded(module: torch.nn.Module, dtype: torch.dtype | None, options: dict[str, Any]) -> Any:
    """Call the module with its floating-point parameters rounded to `dtype`; the masters stay as they are.

    With None, or where a parameter has that dtype already, nothing is rounded. `options` are keyword arguments.
    """
    masters = dict(module.named_parameters())
    if dtype is None or all(master.dtype == dtype for master in masters.values()):
        return module(**options)
    rounded = {name: master.to(dtype) for name, master in masters.items() if master.is_floating_point()}
    return torch.func.functional_call(module, rounded, (), options)
