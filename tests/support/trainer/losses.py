"""Tensors and settings for the tests of losses."""

from typing import Any

import torch

from trainer.learning.losses.aggregate import Aggregation, StepCounts
from trainer.learning.losses.importance import Correction, Importance
from trainer.learning.losses.objective import LossSettings
from trainer.learning.losses.surrogate import Clip

COUPLED = Importance(correction=Correction.NONE)


def loss_settings(**changes: Any) -> LossSettings:
    """Return settings of a decoupled loss, truncated at 2, clipped at 0.2 and 0.3, with the mean over tokens."""
    values: dict[str, Any] = {
        "clip": Clip(low=0.2, high=0.3),
        "importance": Importance(),
        "aggregation": Aggregation.TOKEN_MEAN,
    }
    return LossSettings(**values | changes)


def counts_of(mask_BT: torch.Tensor) -> StepCounts:
    return StepCounts(num_tokens=int(mask_BT.sum()), num_sequences=len(mask_BT))


def random_step(
    seed: int, rows: int = 6, width: int = 5, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return arguments of `policy_loss`: ratios from 1/e to e, ragged rows with gaps, each with at least one token."""
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return -torch.rand(rows, width, generator=generator, dtype=dtype)

    mask_BT = torch.rand(rows, width, generator=generator) < 0.7
    mask_BT[:, 0] = True
    tensors = {name: uniform() for name in ("logprobs_BT", "proximal_BT", "behaviour_BT", "reference_BT")}
    advantages_B1 = torch.randn(rows, 1, generator=generator, dtype=dtype)
    return tensors | {"mask_BT": mask_BT, "advantages_BT": advantages_B1.expand(rows, width).clone()}
