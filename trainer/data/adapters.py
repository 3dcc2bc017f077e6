"""Low-rank adapters (LoRA) of the trained model, by the peft library: only they are trained, and the base stays fixed.

peft replaces each adapted linear layer by one that holds the layer as `base_layer` and two small matrices. `inject`
does this to a loaded model, after `round_base` has rounded its weights to bfloat16: so the trainer's base is the one
that readers have. A is drawn from the job's seed and B is zero, so that the model computes what it computed before.

Parameters have other names within such a model than in what is published; `published_parameters` translates them
(periplus/values/low_rank.py). This is the only module that imports peft, and only for a job with adapters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from periplus.errors import ConfigError
from periplus.values.low_rank import merged_words

ADAPTER = "default"
"""peft's name of the adapter. There is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """Settings of the adapters: their rank, `alpha` / rank as their scale, and the names of the adapted layers.

    A layer is adapted if its name within its parent is among `target_modules`, such as `q_proj`.
    """

    rank: int
    alpha: float
    target_modules: Sequence[str]

    @property
    def scale(self) -> float:
        """Factor of the adapters' product."""
        return self.alpha / self.rank


@torch.no_grad()
def round_base(model: Any) -> None:
    """Round all weights of a model to bfloat16 in place, as readers get them. They keep their dtype."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def inject(model: Any, settings: AdapterSettings, seed: int) -> None:
    """Freeze a model's weights, which `round_base` has rounded, and add adapters to the chosen layers, in place.

    Raises: ConfigError if a name in `target_modules` is not that of linear layers, if a chosen layer shares its weight
    with another module, or if peft is not installed.
    """
    check_adapter_targets(model, settings.target_modules)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.lora needs peft, which is not installed; install periplus[train]") from error
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.target_modules),
        lora_dropout=0.0,
        bias="none",
    )
    # The adapters depend on the seed alone, and torch's own generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, ADAPTER)
    model.eval()


def check_adapter_targets(model: Any, targets: Sequence[str]) -> None:
    """Check that layers with these names can have adapters. The model may be on the `meta` device.

    Raises: ConfigError if a name is not that of linear layers, or if a layer shares its weight with another module.
    """
    shared = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    for target in targets:
        found = [module for name, module in model.named_modules() if name.rpartition(".")[2] == target]
        if not found:
            names = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if _is_linear(module)})
            raise ConfigError(
                f"model.lora.target_modules has {target!r}, but no layer of the model is named so; its linear layers "
                f"are {', '.join(names)}"
            )
        for module in found:
            if not _is_linear(module):
                raise ConfigError(
                    f"model.lora.target_modules has {target!r}, but it is a {type(module).__name__}; give linear layers"
                )
            if sum(parameter is module.weight for parameter in shared) > 1:
                raise ConfigError(
                    f"model.lora.target_modules has {target!r}, but it shares its weight with another layer; leave it "
                    "out"
                )


def _is_linear(module: Any) -> bool:
    return isinstance(module, torch.nn.Linear)


def published_name(parameter_name: str) -> str:
    """Return the name under which a parameter of a model with adapters is published."""
    name = parameter_name.replace(".base_layer.", ".")
    return name.replace(f".lora_A.{ADAPTER}.", ".lora_A.").replace(f".lora_B.{ADAPTER}.", ".lora_B.")


def published_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters of a model by the names under which they are published. Tied weights come once."""
    has_adapters = bool(adapted_layers(model))
    for name, parameter in model.named_parameters():
        yield (published_name(name) if has_adapters else name), parameter


def trained_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters that are trained: all, or only the adapters of a model that has them."""
    has_adapters = bool(adapted_layers(model))
    for name, parameter in published_parameters(model):
        if parameter.requires_grad or not has_adapters:
            yield name, parameter


def adapted_layers(model: Any) -> dict[str, Any]:
    """Return the adapted layers by their names; nothing for a model without adapters."""
    modules = getattr(model, "named_modules", None)
    if modules is None:
        return {}
    return {name: module for name, module in modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer")}


def merged_weight(layer: Any) -> torch.Tensor:
    """Return the weight with which engines compute an adapted layer, as float32 with bfloat16 values.

    It is merged on the host, from the bfloat16 rounding of base and adapters, by the arithmetic that readers use.
    """
    base = layer.base_layer.weight
    tensors = (base, layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight)
    base_RC, a_KC, b_RK = (_words(tensor) for tensor in tensors)
    words = merged_words(base_RC, a_KC, b_RK, float(layer.scaling[ADAPTER]))
    return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).to(device=base.device, dtype=base.dtype)


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """Let adapted layers compute with their base weight alone, until the body ends."""
    layers = tuple(adapted_layers(model).values())
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _words(tensor: torch.Tensor) -> Any:
    rounded = tensor.detach().to(torch.bfloat16).cpu().contiguous()
    return rounded.view(torch.int16).numpy().view(np.uint16)
