"""The critic of PPO: the actor's own backbone, copied, with one number in place of the vocabulary.

It starts where the actor is, so it can read; the head starts at zero, so it starts by expecting nothing, and the first
advantages are those of REINFORCE. From then on it has its own weights and its own optimizer.

Shapes: B rows, U = T + 1 states (before each completion token, and after the last column), H hidden.
"""

from copy import deepcopy
from typing import Any

import torch

from trainer.learning.batch import Batch
from trainer.learning.scoring import last_states


class Critic(torch.nn.Module):
    """`critic(batch)` is the value of each state, BU."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.backbone = deepcopy(actor.base_model)
        self.head = torch.nn.Linear(actor.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.eval()

    def forward(self, batch: Batch) -> torch.Tensor:
        values_BU: torch.Tensor = self.head(last_states(self.backbone, batch).float())[..., 0]
        return values_BU
