"""The critic of PPO: a copy of the actor's backbone, with a linear head that gives one value for each state.

The copy starts with the actor's weights, so it already represents text. The head starts at zero, so all values start at
0. The first advantages are therefore computed from rewards alone, as in REINFORCE. From then on the critic has its own
weights and its own optimizer.

Shapes: N packed tokens, K states (before each completion token of each row, and after its last), H hidden.
"""

from copy import deepcopy
from typing import Any

import torch

from trainer.learning.forward.packing import PackedSequences
from trainer.learning.forward.scorer import last_states


class Critic(torch.nn.Module):
    """The value network, on the actor's device. `critic(packed)` returns the value of each state, K in float32.

    `actor` is a transformers causal language model; its backbone is copied. The critic stays in evaluation mode, so
    that dropout never makes its values random. `compute_dtype` is the dtype to which the backbone's weights are rounded
    for a pass; None leaves them as they are.
    """

    def __init__(self, actor: Any, *, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.backbone = deepcopy(actor.base_model)
        self.compute_dtype = compute_dtype
        self.head = torch.nn.Linear(actor.config.hidden_size, 1, device=actor.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def forward(self, packed: PackedSequences) -> torch.Tensor:
        states_NH = last_states(self.backbone, packed, self.compute_dtype)
        # The head works in float32 whatever the backbone computes in.
        values_K1: torch.Tensor = self.head(states_NH.index_select(0, packed.states_K).float())
        return values_K1[:, 0].clone()  # FSDP2 does not notice changes in place of a module's result that is a view
