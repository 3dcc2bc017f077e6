"""Outcomes of a step's samples, for the tests of advantages."""

from collections.abc import Sequence
from typing import Any

import torch

from trainer.learning.advantages import Outcomes


def outcomes(rewards: Sequence[float], mask: Sequence[Sequence[int]], **changes: Any) -> Outcomes:
    """Return outcomes; by default all are of one group, as long as the mask, and ended by themselves."""
    mask_BT = torch.tensor(mask).bool()
    values: dict[str, Any] = {
        "groups": (0,) * len(rewards),
        "lengths_B": torch.full((len(rewards),), mask_BT.shape[1]),
        "truncated_B": torch.zeros(len(rewards), dtype=torch.bool),
    }
    return Outcomes(rewards=tuple(rewards), mask_BT=mask_BT, **values | changes)
