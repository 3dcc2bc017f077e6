"""Compiled decoder layers: torch's compiler joins norms, rotary embeddings, activations and sums into few loops.

At small widths these take as long on a CPU as the matrix products. Attention stays as it is, between two compiled parts
of a layer: it depends on how sequences were packed, and would be compiled again for each way. All layers of a class
share their compiled code, whatever the number of tokens. It is compiled at the first pass, in tens of seconds, and kept
in a folder for the next start.

Results differ from those of plain layers by rounding: between operations that were joined, numbers keep float32.
"""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from transformers import AttentionInterface

from periplus.errors import ConfigError
from trainer.learning.forward.attention import PACKED, packed_attention, takes_packed
from trainer.learning.forward.decoder_layers import decoder_layers

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable of torch that names the folder of compiled code. Its default lies in a folder where other users
of the machine may write, and code is loaded from it."""

_MARK = "has_compiled_forward"
"""Attribute of layers that are compiled. Their `forward` may be wrapped once more (recomputation.py)."""


def keep_compiled_code(folder: Path) -> None:
    """Keep the compiled code of this process and its children in a folder."""
    os.environ[CACHE_VARIABLE] = str(folder)  # imports may have set it to torch's default already


def compile_layers(model: Any, *, backend: str = "inductor") -> int:
    """Compile each decoder layer of a transformers model at its first call. Return the number of layers.

    It is 0 if the model's class does not mark its layers; the model then works as before. A copy of the model is
    compiled too. `backend` is that of torch's compiler. Raises: ConfigError if this machine has no C++ compiler.
    """
    _check_compiler()
    if takes_packed(model):
        AttentionInterface.register(PACKED, torch.compiler.disable(packed_attention))  # type: ignore[no-untyped-call]
    compiled: dict[type, Any] = {}
    layers = list(decoder_layers(model))
    for layer in layers:
        kind = type(layer)
        if kind not in compiled:
            compiled[kind] = torch.compile(kind.forward, dynamic=True, backend=backend)
        # A method, so that a copy of the layer calls it with the copy. Below `__call__`, as in recomputation.py.
        layer.forward = MethodType(compiled[kind], layer)
        vars(layer)[_MARK] = True
    return len(layers)


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether `compile_layers` was applied to the model or to the model that it is a copy of."""
    return any(_MARK in vars(layer) for layer in decoder_layers(model))


def uncompiled(model: torch.nn.Module) -> AbstractContextManager[Any]:
    """Within this context no compiled layer of the process runs as such, so that hooks on its modules are called."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


def _check_compiler() -> None:
    """Raise ConfigError if this machine has no C++ compiler, which torch's compiler calls on GPUs too."""
    name = os.environ.get("CXX") or "g++"
    if shutil.which(name) is None:
        raise ConfigError(
            f"train.compile is true, and this machine has no C++ compiler {name}; install one, name another in the "
            "environment variable CXX, or set train.compile to false"
        )
