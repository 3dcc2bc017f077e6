"""How much of an adapter's update reaches the weights that generate: by our merge, and by adapters of their own.

The update is scale * B A of the trainer's float32 adapters, in float64. Ours is merged into bfloat16 weights, so that
an element moves only by whole units in the last place of the base. An engine with an adapter path adds the product of
bfloat16 adapters. *Kept* is the projection of what is served on the update, 1 for an exact one. *Error* is the norm of
the difference over the norm of the update.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.engine_cases.lora.adapter_training import SCALE, Step
from periplus.values.low_rank import adapters_of, merged
from periplus.values.weight_state import Tensor

Matrix = npt.NDArray[np.float64]


def served_update(step: Step, weight: str) -> dict[str, Any]:
    """Return `kept` and `error` of both ways for one adapted weight, after a step."""
    a_KC, b_RK = (_exact(step.adapters, name) for name in adapters_of(weight))
    update_RC = SCALE * b_RK @ a_KC
    base_RC = _widened(step.after[weight])
    merged_RC = _widened(merged(step.after, weight, SCALE)) - base_RC
    rounded_a_KC, rounded_b_RK = (_widened(step.after[name]) for name in adapters_of(weight))
    alone_RC = SCALE * rounded_b_RK @ rounded_a_KC
    return {
        "weight": weight,
        "update_rms": float(np.sqrt(np.mean(update_RC**2))),
        "base_rms": float(np.sqrt(np.mean(base_RC**2))),
        "elements_moved": float(np.mean(merged_RC != 0)),
        "merged": fidelity(merged_RC, update_RC),
        "adapter_path": fidelity(alone_RC, update_RC),
    }


def fidelity(served: Matrix, update: Matrix) -> dict[str, float]:
    """Return the projection of `served` on `update`, and the norm of their difference, both relative to `update`."""
    size = float(np.vdot(update, update))
    return {
        "kept": float(np.vdot(served, update)) / size,
        "error": float(np.sqrt(np.sum((served - update) ** 2) / size)),
    }


def _exact(adapters: Mapping[str, npt.NDArray[np.float32]], name: str) -> Matrix:
    return adapters[name].astype(np.float64)


def _widened(tensor: Tensor) -> Matrix:
    words = tensor.data.view(np.uint16).astype(np.uint32) << 16
    return words.view(np.float32).astype(np.float64).reshape(tensor.shape)
