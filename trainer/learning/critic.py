"""The critic of PPO: a copy of the actor's backbone, with a linear head that gives one value for each state.

The copy starts with the actor's weights, so it already represents text. The head starts at zero, so all values start at
0. The first advantages are therefore computed from rewards alone, as in REINFORCE. From then on the critic has its own
weights and its own optimizer.

Shapes: B rows, U = T + 1 states (before each completion token, and after the last column), H hidden.
"""

from copy import deepcopy
from typing import Any

import torch

from trainer.learning.batch import Batch
from trainer.learning.scoring import last_states


class Critic(torch.nn.Module):
    """The value network. `critic(batch)` returns the value of each state, BU.

    `actor` is a transformers causal language model; its backbone is copied. The critic stays in evaluation mode, so
    that dropout never makes its values random.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.backbone = deepcopy(actor.base_model)
        self.head = torch.nn.Linear(actor.config.hidden_size, 1, device=actor.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.eval()

    def forward(self, batch: Batch) -> torch.Tensor:
        # The head works in float32 whatever the backbone computes in.
        values_BU1: torch.Tensor = self.head(last_states(self.backbone, batch).float())
        return values_BU1[..., 0].clone()  # FSDP2 does not notice changes in place of a module's result that is a view
